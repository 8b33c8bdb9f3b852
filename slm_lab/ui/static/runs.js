import { draw, make } from "./dom.js";
import { ago, interval, pageOf, pill, progressBar, score } from "./format.js";
import { short } from "./number.js";
import { get } from "./server.js";

// The table of all runs. Only the rows in sight are in the page, so that thousands scroll smoothly.

const COLUMNS = [
  { name: "run", value: (row) => row.id },
  { name: "algorithm", value: (row) => row.algorithm || "" },
  { name: "env", value: (row) => row.env || "" },
  { name: "score", value: (row) => row.score, isNumber: true },
  { name: "curve" },
  { name: "frames", value: (row) => row.frame, isNumber: true },
  { name: "progress", value: (row) => row.progress, isNumber: true },
  { name: "age", value: (row) => -row.age, isNumber: true },
  { name: "status", value: (row) => row.status },
  { name: "tags", value: (row) => (row.tags || []).join(" ") },
];
const GROUPS = {
  none: null, env: (row) => row.env, algorithm: (row) => row.algorithm, spec: (row) => row.spec, experiment: (row) => row.parent || "not in an experiment",
};
const STATUSES = ["running", "waiting", "done", "stopped", "failed"];
// rows above and below those in sight
const SPARE = 8;
// what was chosen, while the page stays open
const state = { sort: "age", isDescending: false, group: "none", filter: "", status: "", chosen: new Set(), at: null };

function spark({ spark: points, color }) {
  const svg = draw("svg", { class: "spark", viewBox: "0 0 96 24", "aria-hidden": "true" });
  if (!points || points.length < 2) return svg;
  const path = points.map((y, i) => `${(2 + i / (points.length - 1) * 92).toFixed(1)},${(21 - y * 18).toFixed(1)}`).join("L");
  draw("path", { d: `M${path}`, "stroke-width": 1.6 }, svg).style.stroke = color;
  return svg;
}

function matches(row, words) {
  const text = [row.id, row.algorithm, row.env, row.status, row.kind, ...(row.tags || []).map((tag) => `#${tag}`), row.note].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

// the end of a long name says when the run started, so it is never cut
function nameParts(id) {
  const start = id.length - (/_\d{6}$/.test(id) ? 7 : 0);
  return [make("span", { class: "start", text: id.slice(0, start) }), make("span", { class: "end", text: id.slice(start) })];
}

export async function openRuns() {
  const rows = new Map();
  for (const row of (await get("/api/runs")).rows) rows.set(row.id, row);
  let shown = [];
  let isWaiting = false;
  // events that come while all rows are asked for: the answer may not know them yet
  let late = null;
  // the rows in the page, by their run
  let drawn = new Map();
  // ages are written again now and then
  const minute = () => Math.floor(Date.now() / 10_000);

  const filter = make("input", { type: "search", placeholder: "Filter: words, #tag, status  ( / )", "aria-label": "Filter runs", value: state.filter });
  const groups = make("select", { "aria-label": "Group by" }, ...Object.keys(GROUPS).map((name) => make("option", { value: name, text: name === "none" ? "no groups" : `by ${name}` })));
  groups.value = state.group;
  const chips = make("div", { class: "chips", role: "group", "aria-label": "Status" });
  const count = make("span", { class: "muted small count", role: "status" });
  const head = make("div", { class: "row head", role: "row" });
  const body = make("div", { class: "body", role: "rowgroup" });
  const scroller = make("div", { class: "runs", role: "table", "aria-label": "Runs", tabindex: 0 }, head, body);
  const compare = make("div", { class: "compare-bar", hidden: "" });
  const element = make("div", { class: "runs-page" }, make("div", { class: "toolbar" }, filter, chips, groups, count), scroller, compare);

  const rowHeight = () => (matchMedia("(max-width: 760px)").matches ? 56 : 36);

  // --- which rows, in which order

  function arrange() {
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const column = COLUMNS.find(({ name }) => name === state.sort);
    const known = [...rows.values()].filter((row) => (!state.status || row.status === state.status) && matches(row, words));
    const direction = (column.isNumber && state.sort !== "age" ? -1 : 1) * (state.isDescending ? -1 : 1);
    const missing = (value) => value === null || value === undefined || value === "";
    known.sort((one, other) => {
      const [a, b] = [column.value(one), column.value(other)];
      if (missing(a) || missing(b)) return missing(a) - missing(b) || (one.id < other.id ? -1 : 1);
      return (a < b ? -1 : a > b ? 1 : 0) * direction || (one.id < other.id ? -1 : 1);
    });
    const group = GROUPS[state.group];
    if (!group) {
      shown = known;
    } else {
      const parts = new Map();
      for (const row of known) {
        const name = group(row) || "–";
        parts.set(name, [...(parts.get(name) || []), row]);
      }
      shown = [...parts].flatMap(([name, members]) => [{ group: name, size: members.length }, ...members]);
    }
    const all = rows.size === known.length ? `${known.length}` : `${known.length} of ${rows.size}`;
    const loading = [...rows.values()].filter((row) => row.status === "loading").length;
    count.textContent = `${all} run${rows.size === 1 ? "" : "s"}${loading ? `, reading ${loading}` : ""}`;
    buildChips();
    buildHead();
    buildCompare();
    render();
  }

  function buildChips() {
    const sizes = Object.fromEntries(STATUSES.map((status) => [status, 0]));
    for (const row of rows.values()) if (row.status in sizes) sizes[row.status]++;
    chips.replaceChildren(...STATUSES.filter((status) => sizes[status] || state.status === status).map((status) =>
      make("button", { type: "button", class: `chip ${status}`, "aria-pressed": state.status === status, text: `${status} ${sizes[status]}`,
        on: { click: () => { state.status = state.status === status ? "" : status; arrange(); } } })));
  }

  function buildHead() {
    head.replaceChildren(make("span", { role: "columnheader", "aria-label": "chosen" }), ...COLUMNS.map(({ name, value, isNumber }) => {
      const sorted = state.sort === name;
      const cell = make("span", { class: `cell c-${name}${isNumber ? " number" : ""}`, role: "columnheader", "aria-sort": sorted ? (state.isDescending ? "descending" : "ascending") : undefined });
      if (!value) {
        cell.textContent = name;
        return cell;
      }
      cell.append(make("button", { type: "button", class: "sort", text: name + (sorted ? (state.isDescending ? " ↑" : " ↓") : ""),
        on: { click: () => { state.isDescending = sorted && !state.isDescending; state.sort = name; arrange(); } } }));
      return cell;
    }));
  }

  function buildCompare() {
    for (const id of state.chosen) if (!rows.has(id)) state.chosen.delete(id);
    const chosen = [...state.chosen];
    compare.hidden = chosen.length === 0;
    compare.replaceChildren(make("span", { text: `${chosen.length} chosen` }),
      make("button", { type: "button", class: "primary", text: "Compare (c)", disabled: chosen.length < 2 ? "" : undefined, on: { click: openComparison } }),
      make("button", { type: "button", text: "Clear", on: { click: () => { state.chosen.clear(); arrange(); } } }));
  }

  function openComparison() {
    if (state.chosen.size > 1) location.hash = `#/compare/${[...state.chosen].map(encodeURIComponent).join("/")}`;
  }

  // --- rows in sight

  function choose(id) {
    if (!state.chosen.delete(id)) state.chosen.add(id);
    buildCompare();
    render();
  }

  function buildRow(row, index) {
    const top = { transform: `translateY(${index * rowHeight()}px)` };
    if ("group" in row) {
      return make("div", { class: "row group", role: "row", style: top }, make("strong", { text: row.group }), make("span", { class: "muted", text: `${row.size}` }));
    }
    const box = make("input", { type: "checkbox", "aria-label": `Choose ${row.id}`, on: { change: () => choose(row.id), click: (event) => event.stopPropagation() } });
    box.checked = state.chosen.has(row.id);
    box.disabled = row.kind === "experiment";
    const kind = row.kind === "run" ? null : make("span", { class: "kind", text: row.kind });
    const problem = row.problem ? make("span", { class: "muted small", text: row.problem }) : null;
    const cells = {
      run: [make("a", { href: pageOf(row), title: row.id, tabindex: -1 }, ...nameParts(row.id)), kind, problem, make("span", { class: "sub", text: [row.algorithm, row.env].filter(Boolean).join(" · ") })],
      algorithm: [row.color ? make("span", { class: "dot", style: { background: row.color } }) : null, row.algorithm || ""],
      env: [make("span", { class: "text", title: row.env || "", text: row.env || "" })],
      score: [make("b", { text: row.env ? score(row.score) : "" }), make("span", { class: "muted interval", text: interval(row.low, row.high) })],
      curve: [spark(row)],
      frames: [row.frame ? short(row.frame) : ""],
      progress: row.progress !== undefined ? [progressBar(row.progress), make("span", { class: "percent", text: row.progress === null ? "" : `${Math.floor(row.progress * 100)}%` })] : [],
      age: [row.age ? ago(row.age) : ""],
      status: [pill(row.status)],
      tags: (row.tags || []).map((tag) => make("span", { class: "tag", text: tag })),
    };
    return make("div", { class: `row${state.at === row.id ? " at" : ""}`, role: "row", "data-run": row.id, style: top, on: { click: () => { location.hash = pageOf(row); } } },
      make("span", { class: "cell c-choose", role: "cell" }, box),
      ...COLUMNS.map(({ name, isNumber }) => make("span", { class: `cell c-${name}${isNumber ? " number" : ""}`, role: "cell" }, ...cells[name])));
  }

  function render() {
    const height = rowHeight();
    body.style.height = `${shown.length * height}px`;
    if (!shown.length) {
      const text = rows.size ? "No run matches the filter." : "There is no run in the data folder yet. Start one with slm-lab run, and it appears here.";
      drawn = new Map();
      body.replaceChildren(make("p", { class: "muted nothing", text }));
      return;
    }
    if (!drawn.size) body.replaceChildren();
    const first = Math.max(Math.floor(scroller.scrollTop / height) - SPARE, 0);
    const last = Math.min(Math.ceil((scroller.scrollTop + (scroller.clientHeight || 900)) / height) + SPARE, shown.length);
    const before = drawn;
    drawn = new Map();
    for (const [i, row] of shown.slice(first, last).entries()) {
      const key = "group" in row ? `group ${row.group}` : row.id;
      const look = `${first + i} ${height} ${state.at === row.id} ${state.chosen.has(row.id)}`;
      const old = before.get(key);
      // a row that stays as it was is not built again
      const isSame = old && old.row === row && old.look === look && minute() === old.minute;
      drawn.set(key, isSame ? old : { row, look, minute: minute(), element: buildRow(row, first + i) });
    }
    const elements = [...drawn.values()].map(({ element: one }) => one);
    for (const { element: one } of before.values()) if (!elements.includes(one)) one.remove();
    // in the order in which they are read, each moved only if it has to be
    let next = body.firstChild;
    for (const one of elements) {
      if (one === next) next = next.nextSibling;
      else body.insertBefore(one, next);
    }
  }

  function take(event) {
    for (const row of event.rows) rows.set(row.id, row);
    for (const id of event.gone) rows.delete(id);
  }

  // many events, one drawing
  function schedule() {
    if (isWaiting) return;
    isWaiting = true;
    setTimeout(() => { isWaiting = false; arrange(); }, 150);
  }

  function move(step) {
    const places = shown.flatMap((row, index) => ("group" in row ? [] : [index]));
    const now = places.findIndex((index) => shown[index].id === state.at);
    const next = places[Math.min(Math.max(now + step, 0), places.length - 1)];
    if (next === undefined) return;
    state.at = shown[next].id;
    const [top, height] = [next * rowHeight(), rowHeight()];
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    if (top + 2 * height > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + 2 * height - scroller.clientHeight;
    render();
  }

  filter.addEventListener("input", () => { state.filter = filter.value; arrange(); });
  groups.addEventListener("change", () => { state.group = groups.value; arrange(); });
  scroller.addEventListener("scroll", () => requestAnimationFrame(render));
  const clock = setInterval(() => { if (!document.hidden) render(); }, 10_000);

  return {
    element,
    onShow: arrange,
    onResize: render,
    close: () => clearInterval(clock),
    onConnect: async () => {
      const heard = [];
      late = heard;
      const known = (await get("/api/runs")).rows;
      // some may have gone while nothing was heard
      rows.clear();
      for (const row of known) rows.set(row.id, row);
      heard.forEach(take);
      if (late === heard) late = null;
      schedule();
    },
    onEvent: (event) => {
      if (event.type !== "rows") return;
      if (late) late.push(event);
      take(event);
      schedule();
    },
    onKey: (event) => {
      if (event.key === "j" || event.key === "ArrowDown") move(1);
      else if (event.key === "k" || event.key === "ArrowUp") move(-1);
      else if (event.key === "Enter" && rows.has(state.at)) location.hash = pageOf(rows.get(state.at));
      else if (event.key === "x" && rows.has(state.at) && rows.get(state.at).kind !== "experiment") choose(state.at);
      else if (event.key === "c") openComparison();
      else if (event.key === "/") filter.focus();
      else return;
      event.preventDefault();
    },
  };
}
