import { Chart, Looks } from "./chart.js";
import { make } from "./dom.js";
import { pill, score } from "./format.js";
import { copyButton, facts, importance, table } from "./parts.js";
import { parallel, scaleColor, scatter } from "./search_chart.js";
import { get } from "./server.js";

// The board of a search: trials and rungs as they come, what mattered, and the best spec.

const REFRESH_MS = 3000;

// every trial as if it were a run, in the colour of its score
function buildCurves({ curves, trials }) {
  if (!curves.length) return null;
  const scores = new Map(trials.map((trial) => [trial.trial, trial.score]));
  const known = [...scores.values()].filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const share = (trial) => (scores.get(trial) === null || high === low ? 0.5 : (scores.get(trial) - low) / (high - low));
  const ordered = [...curves].sort((one, other) => one.is_best - other.is_best || share(one.trial) - share(other.trial));
  const runs = ordered.map(({ trial, is_best: isBest, is_done: isDone }) => ({ name: `trial ${trial}${isBest ? " (best)" : ""}`, color: scaleColor(share(trial)), dash: isDone ? "" : "3 3", width: isBest ? 3 : 1.4 }));
  const chart = { name: "trials", title: "Mean return of every trial while training", is_small: false, raw: ordered.map(({ x, y }, run) => ({ run, session: null, x, y })) };
  const looks = new Looks({ runs, dashes: [], envs: [{ charts: [chart] }] });
  looks.label = (run) => runs[run].name;
  return new Chart(chart, { hidden: new Set(), isSmooth: false, charts: [] }, looks);
}

function buildTrials({ trials, keys, best }) {
  const hasErrors = trials.some(({ error }) => error);
  return table({
    head: ["trial", "state", "score", ...keys, "rungs", ...(hasErrors ? ["error"] : [])],
    rows: trials.map(({ trial, state, score: value, values, rungs, error }) => [
      trial === best ? `${trial} ★` : `${trial}`, state, score(value), ...values, rungs.map(([, reached]) => score(reached)).join(" → ") || "–", ...(hasErrors ? [error] : [])]),
  });
}

export async function openSearch([id]) {
  let drawn = [];
  const element = make("div", { class: "page" });
  let timer = null;

  async function build() {
    const data = await get("/api/search", { run: id });
    const curves = buildCurves(data);
    drawn = [data.parallel && scatter(data.parallel, data.color), data.parallel && parallel(data.parallel), curves].filter(Boolean);
    const part = (title, ...children) => (children.some(Boolean) ? make("section", {}, make("h2", { text: title }), ...children) : null);
    const position = window.scrollY;
    element.replaceChildren(...[
      make("div", { class: "title" }, make("h1", { text: `Search: ${data.title}` }), pill(data.status)),
      make("p", { class: "muted path" }, id, make("span", { text: " · " }), make("a", { href: `#/run/${encodeURIComponent(id)}`, text: "the best trial as a run" })),
      facts(data),
      data.parallel ? part("Values and score", drawn[1].element,
        make("p", { class: "muted small", text: "Every line is a trial in the colour of its score: bold the best, dashed those that were stopped early." })) : null,
      make("div", { class: "columns" },
        make("div", { class: "left" }, part("Learning curves", curves && curves.figure)),
        make("aside", {}, data.importance.length ? part("What mattered", importance(data.importance),
          make("p", { class: "muted small", text: "The share of the ranking of trials that each key explains by itself. With few trials it is a hint." })) : null,
        data.rungs ? part("Rungs", table(data.rungs)) : null)),
      data.parallel ? part("Score against each key", drawn[0].element) : null,
      part("Trials", buildTrials(data), make("p", { class: "muted small", text: data.note })),
      data.best_spec ? part("Best spec", copyButton(data.best_spec, "the best spec"), make("pre", { text: data.best_spec })) : null,
    ].filter(Boolean));
    if (element.isConnected) {
      redraw();
      window.scrollTo(0, position);
    }
  }

  function redraw() {
    drawn.forEach((one) => one.measure());
    drawn.forEach((one) => one.render());
  }

  await build();
  return {
    element,
    title: id,
    watched: [id],
    onShow: redraw,
    onResize: (isWider) => isWider && redraw(),
    close: () => clearTimeout(timer),
    onEvent: (event) => {
      if (event.type !== "rows" || timer !== null || !event.rows.some((row) => row.id === id)) return;
      timer = setTimeout(() => { timer = null; build().catch(() => {}); }, REFRESH_MS);
    },
    onKey: (event) => { if (event.key === "Escape") location.hash = "#/"; },
  };
}
