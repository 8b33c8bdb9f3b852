import { openAct } from "./act.js";
import { openCompare } from "./compare.js";
import { make } from "./dom.js";
import { openExperiment } from "./experiment.js";
import { openRun } from "./run.js";
import { openRuns } from "./runs.js";
import { openSearch } from "./search.js";
import { Events, getLab } from "./server.js";

// The frame around all pages: addresses, the bar at the top, keys, light and dark.

const PAGES = { "": openRuns, run: openRun, compare: openCompare, search: openSearch, experiment: openExperiment, act: openAct };
const KEYS = [
  ["j, k", "next, previous run"], ["Enter", "open it"], ["x", "choose it to compare"], ["c", "compare what is chosen"],
  ["/", "filter"], ["g", "all runs"], ["t", "light or dark"], ["?", "these keys"], ["Esc", "close, clear"],
  ["←, →", "move the cursor of a chart"],
];
const main = document.getElementById("main");
let page = null;
let visit = 0;

// --- light and dark

const isDark = () => document.documentElement.dataset.theme === "dark"
  || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);

function toggleTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
}

if (["light", "dark"].includes(localStorage.getItem("theme"))) document.documentElement.dataset.theme = localStorage.getItem("theme");

// --- the bar

const liveDot = make("span", { class: "live", title: "not connected" });
const help = make("dialog", { class: "help" }, make("h2", { text: "Keys" }),
  make("dl", {}, ...KEYS.flatMap(([keys, meaning]) => [make("dt", {}, make("kbd", { text: keys })), make("dd", { text: meaning })])),
  make("button", { type: "button", text: "Close", on: { click: () => help.close() } }));

function buildBar({ version, may_act: mayAct, has_control: hasControl }) {
  const button = (text, name, click) => make("button", { type: "button", class: "quiet", text, title: name, "aria-label": name, on: { click } });
  document.getElementById("bar").append(...[
    make("a", { class: "brand", href: "#/", title: `version ${version}` }, make("img", { src: "/static/icon.svg", alt: "", width: 20, height: 20 }), "SLM-Lab"),
    make("nav", {}, make("a", { href: "#/", text: "Runs" }), mayAct ? make("a", { href: "#/act", text: "Start a run" }) : null),
    hasControl && !mayAct ? make("span", { class: "muted small wide", text: "to start and stop runs, open the link that the command has printed" }) : null,
    make("span", { class: "gap" }), liveDot,
    button("◐", "light or dark (t)", toggleTheme), button("?", "keys (?)", () => help.showModal()),
  ].filter(Boolean));
  document.body.append(help);
}

// --- pages

const events = new Events(
  (event) => {
    // from here on nothing is missed; what came before is asked for
    if (event.type === "hello" && page && page.onConnect) page.onConnect();
    else if (page && page.onEvent) page.onEvent(event);
  },
  (isOpen) => {
    liveDot.classList.toggle("on", isOpen);
    liveDot.title = isOpen ? "live" : "not connected";
  },
);

async function openPage() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const build = PAGES[name] || openRuns;
  const mine = ++visit;
  if (page && page.close) page.close();
  page = null;
  let ids = [];
  try {
    ids = rest.map(decodeURIComponent);
  } catch {
    // an address that somebody has typed
  }
  document.querySelectorAll("#bar nav a").forEach((link) => link.classList.toggle("here", link.hash === (location.hash || "#/")));
  try {
    const built = await build(ids, await getLab());
    // a later visit has been faster
    if (mine !== visit) {
      if (built.close) built.close();
      return;
    }
    page = built;
    main.replaceChildren(built.element);
    document.title = built.title ? `${built.title} · SLM-Lab` : "SLM-Lab";
    events.watch(built.watched || []);
    if (built.onShow) built.onShow();
    window.scrollTo(0, 0);
  } catch (error) {
    if (mine !== visit) return;
    main.replaceChildren(make("div", { class: "page" }, make("h1", { text: "Not here" }), make("p", { class: "problems", text: error.message }), make("a", { href: "#/", text: "All runs" })));
    if (!(error.name === "Error" || error instanceof TypeError)) return;
    console.error(error);
  }
}

// --- keys

const isTyping = ({ target }) => target.matches("input, textarea, select, [contenteditable]");

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && isTyping(event)) event.target.blur();
  if (isTyping(event) || help.open) return;
  if (event.key === "t") toggleTheme();
  else if (event.key === "?") help.showModal();
  else if (event.key === "g") location.hash = "#/";
  else if (page && page.onKey) page.onKey(event);
});

let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (page && page.onResize) page.onResize(window.innerWidth !== width);
  width = window.innerWidth;
});
window.addEventListener("hashchange", openPage);
buildBar(await getLab());
openPage();
