import { Chart } from "./chart.js";
import { Curves } from "./curves.js";
import { make } from "./dom.js";
import { bytes, duration, pill, progressBar } from "./format.js";
import { exact } from "./number.js";
import { bars, commands, copyButton, doctor, facts, problemBox, specDiff, table } from "./parts.js";
import { buildControls } from "./run_controls.js";
import { buildNotes } from "./run_notes.js";
import { Player } from "./run_player.js";
import { address, get } from "./server.js";

// The page of one run: live curves, a video of any moment, the doctor, notes, log, spec and files.

const TABS = ["Log", "Sessions", "Metrics", "Time", "Spec", "Files", "Machine"];
// the numbers at the top and the doctor, which need the whole run
const FACTS_MS = 8000;

// a run that has begun, and has no row yet
function openWaiting(id, row) {
  const words = { running: "It trains; the first row is not written yet.", waiting: "It waits for its turn in the experiment." };
  return {
    element: make("div", { class: "page run-page" }, make("div", { class: "title" }, make("h1", { text: id }), pill(row.status)),
      make("p", { class: "muted", text: row.problem || words[row.status] || "It has no rows." })),
    title: id,
    watched: [id],
    onEvent: (event) => {
      const now = event.type === "rows" && event.rows.find((one) => one.id === id);
      // the address stays, the page is built again
      if (now && (now.frame || now.status !== row.status)) window.dispatchEvent(new HashChangeEvent("hashchange"));
    },
    onKey: (event) => { if (event.key === "Escape") location.hash = "#/"; },
  };
}

export async function openRun([id], lab) {
  const known = (await get("/api/runs")).rows.find((row) => row.id === id);
  if (known && !known.frame && known.status !== "loading") return openWaiting(id, known);
  let data = await get("/api/run", { run: id });
  const [run] = data.runs;
  const extra = { column: "", chart: null };

  // --- the doctor's findings, each under the curve it comes from

  const findings = (name) => {
    const names = new Set(data.envs.flatMap((env) => env.charts.map((chart) => chart.name)));
    // what has no curve of its own stands under the score, but for the time split, which has a tab
    const found = data.runs[0].doctor.symptoms.filter(({ column, title }) => (title.endsWith("-bound") ? "" : names.has(column) ? column : "train") === name);
    if (!found.length) return null;
    const whole = doctor({ symptoms: found, conclusion: "" });
    if (name === "train") return whole;
    // under a small chart a line, which opens
    return make("details", { class: "finding" }, make("summary", { text: found.map(({ title }) => title).join(", ") }), whole);
  };

  const player = new Player(id, data);
  const curves = new Curves(data, {
    load: async (wanted) => {
      const charts = await get("/api/charts", { run: id, column: extra.column || undefined, wanted });
      showColumn(charts.column);
      return charts;
    },
    onPick: (curve, frame) => player.show(curve, frame),
    below: findings,
  });

  // --- any column

  const columnBox = make("div", { class: "any-column" });
  const columns = make("select", { "aria-label": "Show a column" }, make("option", { value: "", text: "show any column…" }),
    ...data.columns.map((name) => make("option", { value: name, text: name })));
  columns.addEventListener("change", async () => {
    extra.column = columns.value;
    const charts = extra.column ? await get("/api/charts", { run: id, column: extra.column, wanted: "" }) : { column: null };
    showColumn(charts.column);
  });

  function showColumn(chart) {
    if (!chart || chart.title !== extra.column) {
      extra.chart = null;
      columnBox.replaceChildren(extra.column ? make("p", { class: "muted", text: `no value in ${extra.column}` }) : "");
      return;
    }
    // linked with the other charts
    const { state } = curves.charts[0][0];
    if (extra.chart && state.charts.includes(extra.chart) && extra.chart.chart.name === chart.name) {
      extra.chart.update(chart);
    } else {
      state.charts = state.charts.filter((one) => one !== extra.chart);
      extra.chart = new Chart(chart, state, curves.looks, (curve, frame) => player.show(curve, frame));
      extra.chart.isInSight = true;
      columnBox.replaceChildren(extra.chart.figure);
    }
    extra.chart.measure();
    extra.chart.render();
  }

  // --- the top of the page

  const status = make("span", { class: "status" });
  const numbers = make("div", {});
  const problems = make("div", {});
  const side = make("div", {});
  const controls = buildControls(id, data, lab);

  function showFacts() {
    const [now] = data.runs;
    numbers.replaceChildren(facts(now));
    problems.replaceChildren(problemBox([...data.problems, ...now.problems]) || "");
    side.replaceChildren(make("h2", { text: "Doctor" }), buildDoctor(now));
  }

  function buildDoctor({ doctor: found }) {
    if (found.conclusion) return make("p", { class: "muted", text: found.conclusion });
    return make("ul", { class: "findings" }, ...found.symptoms.map(({ level, title, column }) =>
      make("li", { class: level }, make("button", { type: "button", class: "link", text: title, on: { click: () => jump(title, column) } }))));
  }

  function jump(title, column) {
    if (title.endsWith("-bound")) return tabs.show("Time");
    const target = document.querySelector(`[data-symptom="${CSS.escape(title)}"]`) || document.querySelector(`[data-chart="${CSS.escape(column)}"]`);
    const folded = target && target.closest("details");
    if (folded) folded.open = true;
    return target && target.scrollIntoView({ behavior: "smooth", block: "center" });
  }

  function showStatus(row) {
    const left = row.left ? `${duration(row.left)} left` : "";
    const speed = row.status === "running" && row.fps ? `${exact(Math.round(row.fps))} frames/s` : "";
    status.replaceChildren(pill(row.status), row.status === "running" ? progressBar(row.progress) : "",
      make("span", { class: "muted small", text: [row.status === "running" ? `${Math.floor((row.progress || 0) * 100)}%` : "", left, speed].filter(Boolean).join(" · ") }));
    controls.onStatus(row.status);
  }

  // --- tabs

  const log = buildLog(id);
  const tabs = buildTabs(TABS, (name) => ({
    Log: () => log.element,
    Sessions: () => table(data.runs[0].sessions),
    Metrics: () => (data.runs[0].metrics ? table(data.runs[0].metrics) : make("p", { class: "muted", text: "Metrics are computed when the run ends." })),
    Time: () => buildTime(data),
    Spec: () => buildSpec(data),
    Files: () => buildFiles(id),
    Machine: () => (data.runs[0].machine.length ? table({ head: ["what", "value"], rows: data.runs[0].machine }) : make("p", { class: "muted", text: "unknown" })),
  })[name]());

  const element = make("div", { class: "page run-page" },
    make("div", { class: "title" }, make("h1", { text: run.title }), status),
    make("p", { class: "muted path", text: id }),
    problems, numbers,
    make("div", { class: "columns" },
      make("div", { class: "left" },
        data.stride > 1 ? make("p", { class: "muted small", text: `Long tables: every ${exact(data.stride)}th row is drawn.` }) : null,
        curves.element, make("div", { class: "chooser" }, columns), columnBox),
      make("aside", {}, make("h2", { text: "Video" }), player.element, controls.element, side,
        make("h2", { text: "Tags and notes" }), buildNotes(id, data),
        make("h2", { text: "Commands" }), commands(run) || null)),
    tabs.element);

  showFacts();
  showStatus({ status: data.status, progress: null });
  let nextFacts = 0;

  async function refreshFacts(isNow) {
    if (!isNow && Date.now() < nextFacts) return;
    nextFacts = Date.now() + FACTS_MS;
    data = await get("/api/run", { run: id });
    player.update(data);
    showFacts();
    tabs.refresh();
  }

  return {
    element,
    title: id,
    watched: [id],
    onShow: async () => {
      curves.redraw();
      const row = (await get("/api/runs")).rows.find((one) => one.id === id);
      if (row && row.status !== "loading") showStatus(row);
      tabs.show("Log");
    },
    onResize: (isWider) => isWider && curves.redraw(),
    close: () => curves.close(),
    onConnect: () => curves.refresh(),
    onEvent: (event) => {
      if (event.type === "rows") {
        const row = event.rows.find((one) => one.id === id);
        if (!row || row.status === "loading") return;
        const isOver = row.status !== data.status;
        data.status = row.status;
        showStatus(row);
        curves.refresh();
        refreshFacts(isOver);
      } else if (event.type === "log" && event.id === id) {
        log.refresh();
      } else if (event.type === "video") {
        player.onVideo(event.video);
      }
    },
    onKey: (event) => {
      if (event.key === "Escape") location.hash = "#/";
      if (event.key === "/") columns.focus();
    },
  };
}

// --- parts

function buildTabs(names, build) {
  const body = make("div", { class: "tab-body", role: "tabpanel" });
  const buttons = names.map((name) => make("button", { type: "button", role: "tab", text: name, on: { click: () => show(name) } }));
  let current = null;
  function show(name) {
    current = name;
    buttons.forEach((button) => button.setAttribute("aria-selected", button.textContent === name));
    body.replaceChildren(build(name));
  }
  // the log has events of its own, and a spec or a list of files is not to close while it is read
  const refresh = () => ["Sessions", "Metrics", "Time"].includes(current) && show(current);
  return { element: make("section", { class: "tabs" }, make("div", { class: "tab-bar", role: "tablist" }, ...buttons), body), show, refresh };
}

function buildLog(id) {
  const text = make("pre", { class: "log", tabindex: 0, "aria-label": "Log" });
  const choice = make("select", { "aria-label": "Log file" });
  const element = make("div", {}, choice, text);
  let isReading = false;
  async function refresh() {
    if (isReading || !element.isConnected) return;
    isReading = true;
    try {
      if (!choice.options.length) {
        const { logs } = await get("/api/files", { run: id });
        choice.replaceChildren(...logs.map((path) => make("option", { value: path, text: path.replace("log/", "") })));
        choice.hidden = logs.length < 2;
      }
      const isAtEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 40;
      text.textContent = choice.value ? (await get("/api/log", { run: id, path: choice.value })).text || "(empty)" : "There is no log.";
      if (isAtEnd) text.scrollTop = text.scrollHeight;
    } finally {
      isReading = false;
    }
  }
  choice.addEventListener("change", refresh);
  return { get element() { setTimeout(refresh); return element; }, refresh };
}

function buildTime(data) {
  const [run] = data.runs;
  const bound = run.doctor.symptoms.filter(({ title }) => title.endsWith("-bound"));
  return make("div", {}, run.phases ? bars(run.phases, data.colors) : make("p", { class: "muted", text: "The split of time is written when a session ends." }),
    bound.length ? doctor({ symptoms: bound, conclusion: "" }) : null);
}

function buildSpec({ runs: [run], shipped }) {
  const parts = [];
  if (shipped && shipped.rows.length) parts.push(make("h3", { text: "Differences from the shipped spec" }), specDiff(shipped));
  else parts.push(make("p", { class: "muted", text: shipped ? "The same as the shipped spec." : "No shipped spec has this name." }));
  if (run.spec) parts.push(make("h3", { text: "Spec, with its defaults filled in" }), copyButton(run.spec, "the spec"), make("pre", { text: run.spec }));
  return make("div", {}, ...parts);
}

function buildFiles(id) {
  const box = make("div", { class: "files" });
  get("/api/files", { run: id }).then(({ files }) => {
    box.replaceChildren(...files.map(({ path, size }) => make("div", {},
      make("a", { href: address("/file", { run: id, path, download: "1" }), text: path, download: "" }), make("span", { class: "muted", text: bytes(size) }))));
  }, (error) => { box.textContent = error.message; });
  return box;
}
