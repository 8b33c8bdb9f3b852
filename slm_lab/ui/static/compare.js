import { Curves } from "./curves.js";
import { make } from "./dom.js";
import { pill } from "./format.js";
import { specDiff, table } from "./parts.js";
import { strip } from "./score_chart.js";
import { get } from "./server.js";

// Several runs side by side: curves in one chart, scores with their intervals, and where the specs differ.

export async function openCompare(ids) {
  const data = await get("/api/compare", { run: ids });
  data.runs.forEach((run, index) => { run.index = index; });
  const named = (charts) => {
    charts.runs.forEach((run, index) => { run.name = ids[index]; });
    return charts;
  };
  const curves = new Curves(named(data), { load: async (wanted) => named(await get("/api/charts", { run: ids, wanted })), hideSessions: true });
  const strips = data.envs.map((env) => strip(data.runs.filter((run) => run.env === env.name), false));
  const drawStrips = () => {
    strips.forEach((one) => one.measure());
    strips.forEach((one) => one.render());
  };
  const { comparison } = data;
  const verdicts = (lines) => make("ul", { class: "verdicts" }, ...lines.map((text) => make("li", { text })));
  const element = make("div", { class: "page" },
    make("h1", { text: `${ids.length} runs side by side` }),
    make("div", { class: "compared" }, ...data.runs.map((run) => make("a", { href: `#/run/${encodeURIComponent(run.id)}` },
      make("span", { class: "dot", style: { background: run.color } }), run.id, pill(run.status)))),
    data.problems.length ? make("div", { class: "problems" }, verdicts(data.problems)) : null,
    curves.element,
    make("h2", { text: "Scores" }), ...strips.map((one) => one.element),
    make("p", { class: "muted small", text: `Every dot is a session, the stroke their mean, the bar its 95 % interval. The score is the ${comparison.score}. Each run is compared with the first one in its env.` }),
    table(comparison), verdicts(comparison.verdicts),
    comparison.aggregates ? make("section", {}, make("h2", { text: "Over all envs" }), table(comparison.aggregates), verdicts(comparison.aggregates.notes)) : null,
    make("h2", { text: "Where the specs differ" }), specDiff(data.spec_diff));
  return {
    element,
    title: "Compare",
    watched: ids,
    onShow: () => { curves.redraw(); drawStrips(); },
    onResize: (isWider) => { if (isWider) { curves.redraw(); drawStrips(); } },
    close: () => curves.close(),
    onEvent: (event) => {
      if (event.type === "rows" && event.rows.some((row) => ids.includes(row.id) && row.status !== "loading")) curves.refresh();
    },
    onKey: (event) => { if (event.key === "Escape") location.hash = "#/"; },
  };
}
