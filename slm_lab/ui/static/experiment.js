import { Chart, Looks } from "./chart.js";
import { make } from "./dom.js";
import { interval, pill, score } from "./format.js";
import { problemBox, table } from "./parts.js";
import { get } from "./server.js";

// The board of an experiment: a small chart for each algorithm and env, and what they come to.

const REFRESH_MS = 3000;

function buildCell(cell, charts) {
  const link = make("a", { class: "cell-title", href: `#/run/${encodeURIComponent(cell.id)}` }, make("b", { text: score(cell.score) }),
    make("span", { class: "muted", text: interval(cell.low, cell.high) }), cell.status === "done" ? null : pill(cell.status));
  if (!cell.chart) return make("div", { class: "matrix-cell" }, link);
  const data = { ...cell.chart, is_small: true, title: "", ma: [] };
  const looks = new Looks({ runs: [cell.look], dashes: cell.dashes, envs: [{ charts: [data] }] });
  const state = { hidden: new Set(), isSmooth: false, charts: [] };
  const chart = new Chart(data, state, looks);
  chart.figure.setAttribute("data-chart", `${cell.label} on ${cell.env}`);
  charts.push(chart);
  return make("div", { class: "matrix-cell" }, link, chart.figure);
}

export async function openExperiment([id]) {
  let charts = [];
  let timer = null;
  const element = make("div", { class: "page" });

  async function build() {
    const data = await get("/api/experiment", { run: id });
    charts = [];
    const cellOf = (label, env) => data.cells.find((cell) => cell.label === label && cell.env === env);
    const matrix = make("div", { class: "matrix", style: { gridTemplateColumns: `max-content repeat(${data.envs.length}, minmax(220px, 1fr))` } },
      make("span", {}), ...data.envs.map((env) => make("strong", { text: env })),
      ...data.labels.flatMap((label) => [make("strong", { class: "matrix-label", text: label }), ...data.envs.map((env) => {
        const cell = cellOf(label, env);
        return cell ? buildCell(cell, charts) : make("div", { class: "matrix-cell muted", text: "–" });
      })]));
    const { comparison } = data;
    const list = (lines) => make("ul", { class: "verdicts" }, ...lines.map((text) => make("li", { text })));
    const all = data.cells.map((cell) => encodeURIComponent(cell.id));
    element.replaceChildren(...[
      make("h1", { text: `Experiment: ${data.title}` }),
      make("p", { class: "muted path" }, `${data.cells.length} runs${data.waiting.length ? `, ${data.waiting.length} without rows yet` : ""} · `,
        all.length > 1 && all.length <= 12 ? make("a", { href: `#/compare/${all.join("/")}`, text: "compare all" }) : ""),
      problemBox(data.problems),
      make("div", { class: "scroll" }, matrix),
      comparison ? make("section", {}, make("h2", { text: "Scores" }), table(comparison), list(comparison.verdicts)) : null,
      comparison && comparison.aggregates ? make("section", {}, make("h2", { text: "Over all envs" }), table(comparison.aggregates), list(comparison.aggregates.notes)) : null,
    ].filter(Boolean));
    if (element.isConnected) redraw();
  }

  function redraw() {
    charts.forEach((chart) => chart.measure());
    charts.forEach((chart) => chart.render());
  }

  await build();
  return {
    element,
    title: id,
    onShow: redraw,
    onResize: (isWider) => isWider && redraw(),
    close: () => clearTimeout(timer),
    onEvent: (event) => {
      if (event.type !== "rows" || timer !== null || !event.rows.some((row) => row.parent === id && row.status !== "loading")) return;
      timer = setTimeout(() => { timer = null; build().catch(() => {}); }, REFRESH_MS);
    },
    onKey: (event) => { if (event.key === "Escape") location.hash = "#/"; },
  };
}
