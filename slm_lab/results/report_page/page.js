import { Chart, Looks } from "./chart.js";
import { make } from "./dom.js";
import { bars, commands, doctor, facts, importance, legend, problemBox, section, spec, specDiff, table, videos } from "./parts.js";
import { strip } from "./score_chart.js";
import { parallel, scatter } from "./search_chart.js";

// The report: one page from the data inside it.

const data = JSON.parse(document.getElementById("data").textContent);
data.runs.forEach((run, index) => { run.index = index; });
const page = document.getElementById("page");
const looks = new Looks(data);
const { isSingle } = looks;
const [first] = data.runs;
// what is drawn again when the page gets another width
const drawers = [];
const drawn = (chart) => {
  drawers.push(chart);
  return chart.element;
};

function envCharts(env) {
  const indices = data.runs.map((_, i) => i).filter((i) => data.runs[i].env === env.name);
  // of several runs the means are compared; sessions are a click away
  const hidden = new Set(isSingle ? [] : indices.flatMap((i) => (looks.places[i].length > 1 ? looks.places[i].map((session) => `${i}/${session}`) : [])));
  const state = { hidden, isSmooth: false, charts: [] };
  const charts = env.charts.map((chart) => new Chart(chart, state, looks));
  const redraw = () => charts.forEach((chart) => chart.render());
  drawers.push({ measure: () => charts.forEach((chart) => chart.measure()), render: redraw });
  const large = charts.filter((chart) => !chart.chart.is_small).map((chart) => chart.figure);
  const small = charts.filter((chart) => chart.chart.is_small).map((chart) => chart.figure);
  return [
    data.has_legend ? legend(env, indices, state, looks, redraw) : null, ...large,
    small.length ? make("h3", { text: "Metrics of the algorithm" }) : null,
    small.length ? make("div", { class: "grid" }, ...small) : null,
    env.constants ? make("p", { class: "muted small constants", text: env.constants }) : null,
  ];
}

function search() {
  const { search: found } = data;
  if (!found) return [];
  const bestColor = first && first.color;
  const isBest = found.best !== null && first;
  return [
    facts(found),
    section("Next", commands(found)),
    section("Trials", table(found.trials), make("p", { class: "muted small", text: found.note })),
    found.importance.length ? section("What mattered", importance(found.importance),
      make("p", { class: "muted small", text: "The share of the ranking of trials that each key explains by itself. With few trials it is a hint." })) : null,
    found.parallel ? section("Values and score", drawn(scatter(found.parallel, bestColor)),
      make("p", { class: "muted small", text: "Every dot is a trial: large the best, filled those that are done, hollow those that were stopped early. A pointer names it." }),
      drawn(parallel(found.parallel)),
      make("p", { class: "muted small", text: "Every line is a trial in the colour of its score: bold the best, solid those that are done, dashed those that were stopped early." })) : null,
    isBest ? make("h1", { class: "part", text: `Best trial: ${found.best}` }) : null,
  ];
}

// --- the page

const own = (title, build) => section(title, ...data.runs.flatMap((run) => {
  const content = build(run);
  return content ? [isSingle ? null : make("h3", { text: run.name }), content] : [];
}));
const heading = (env) => (data.envs.length > 1 ? `Learning curves on ${env.name}` : "Learning curves");

// a graph alone is its charts; a report has all there is to say about its runs
const buildGraph = () => data.envs.flatMap(envCharts);
const buildReport = () => [
  problemBox([...data.problems, ...data.runs.flatMap((run) => run.problems.map((text) => (isSingle ? text : `${run.name}: ${text}`)))]),
  ...search(),
  isSingle ? facts(first) : null,
  ...(isSingle && first.score.values.length > 1 ? [drawn(strip(data.runs, isSingle)), make("p", { class: "muted small",
    text: `Every dot is a session, the stroke their mean${first.score.low === null ? "" : ", the bar its 95 % interval"}.` })] : []),
  data.comparison ? section("Comparison",
    ...data.envs.map((env) => drawn(strip(data.runs.filter((run) => run.env === env.name), isSingle))),
    make("p", { class: "muted small", text: `Every dot is a session, the stroke their mean, the bar its 95 % interval. The score is the ${data.comparison.score}. Each run is compared with the first one in its env.` }),
    table(data.comparison),
    make("ul", { class: "verdicts" }, ...data.comparison.verdicts.map((text) => make("li", { text })))) : null,
  data.comparison && data.comparison.aggregates ? section("Over all envs",
    make("p", { class: "muted small", text: "Interquartile mean of normalised scores, and the probability of a better score than the first algorithm, both with 95 % intervals." }),
    table(data.comparison.aggregates),
    make("ul", { class: "verdicts" }, ...data.comparison.aggregates.notes.map((text) => make("li", { text })))) : null,
  ...data.envs.map((env) => section(heading(env), ...envCharts(env))),
  own("Doctor", (run) => doctor(run.doctor)),
  own("Sessions", (run) => table(run.sessions)),
  own("Metrics", (run) => run.metrics && table(run.metrics)),
  own("Time", (run) => run.phases && bars(run.phases, data.colors)),
  own("Video", (run) => run.videos.length && videos(run)),
  own("Commands", commands),
  data.spec_diff ? section("Where the specs differ", specDiff(data.spec_diff)) : null,
  section("Spec", ...data.runs.map(spec)),
  own("Machine and versions", (run) => run.machine.length && table({ head: ["what", "value"], rows: run.machine })),
];
const subtitle = data.search ? `search ${data.search.name}` : isSingle ? first.name : `${data.runs.length} runs side by side`;
const header = make("header", {}, make("h1", { text: data.title }), make("p", { class: "muted", text: subtitle }));
page.append(header, ...(data.is_graph ? buildGraph() : buildReport()).filter((part) => part));
// all widths first: reading one after drawing would lay out the page again for each
const drawAll = () => {
  drawers.forEach(({ measure }) => measure());
  drawers.forEach(({ render }) => render());
};
drawAll();
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  drawAll();
});
