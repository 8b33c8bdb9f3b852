import { make } from "./dom.js";
import { ago, pageOf, pill } from "./format.js";
import { exact } from "./number.js";
import { get, post } from "./server.js";

// Start a shipped or an edited spec, which is checked as one types.

const CHECK_MS = 250;
const JOBS_MS = 1500;

export async function openAct(_, lab) {
  if (!lab.may_act) throw new Error("Runs can be started with slm-lab ui --control, by the link that it prints.");
  const { specs } = await get("/api/act/specs");
  const choice = make("input", { type: "search", list: "shipped", placeholder: "a shipped spec, such as ppo_cartpole", "aria-label": "Shipped spec" });
  const list = make("datalist", { id: "shipped" }, ...specs.map(({ name, algorithm, env }) => make("option", { value: name, text: `${algorithm} on ${env}` })));
  const text = make("textarea", { class: "editor", spellcheck: "false", "aria-label": "Spec", rows: 28, placeholder: "or write a spec here, as YAML" });
  const verdict = make("div", { class: "verdict", role: "status" });
  const buttons = Object.fromEntries(["train", "dev", "search"].map((mode) => [mode, make("button", { type: "button", disabled: "",
    class: mode === "train" ? "primary" : undefined, text: { train: "Train", dev: "One session", search: "Search" }[mode], on: { click: () => start(mode) } })]));
  const message = make("span", { class: "muted", role: "status" });
  const jobs = make("div", { class: "jobs" });
  let timer = null;
  let turn = 0;

  async function check() {
    const mine = ++turn;
    const found = text.value.trim() ? await post("/api/act/check", { text: text.value }).catch((error) => ({ is_valid: false, problems: [error.message], notes: [] })) : null;
    if (mine !== turn) return;
    Object.values(buttons).forEach((button) => { button.disabled = !found || !found.is_valid; });
    if (found && found.is_valid && !found.has_search) buttons.search.disabled = true;
    verdict.className = `verdict ${!found ? "" : found.is_valid ? "good" : "bad"}`;
    if (!found) return verdict.replaceChildren();
    const lines = found.is_valid
      ? [`${found.name} is valid: ${found.env}, ${exact(found.max_frame)} frames, ${found.sessions} session${found.sessions === 1 ? "" : "s"}`, ...found.notes]
      : found.problems;
    return verdict.replaceChildren(...lines.map((line) => make("div", { text: line })));
  }

  function schedule() {
    clearTimeout(timer);
    timer = setTimeout(check, CHECK_MS);
  }

  async function start(mode) {
    message.textContent = "starting…";
    try {
      await post("/api/act/start", { text: text.value, mode });
      message.textContent = "started";
    } catch (error) {
      message.textContent = error.message;
    }
    await showJobs();
  }

  async function stop(number) {
    await post("/api/act/stop", { number }).catch((error) => { message.textContent = error.message; });
    await showJobs();
  }

  const opened = new Set();

  async function showJobs() {
    const { jobs: found } = await get("/api/act/jobs");
    jobs.replaceChildren(...found.map((job) => {
      const output = make("details", { open: opened.has(job.number) ? "" : undefined }, make("summary", { text: "output" }), make("pre", { class: "log", text: job.output || "(nothing yet)" }));
      output.addEventListener("toggle", () => (output.open ? opened.add(job.number) : opened.delete(job.number)));
      return make("div", { class: "job", "data-job": job.number },
        make("div", { class: "job-title" }, pill(job.state), make("strong", { text: job.title }), make("span", { class: "muted small", text: `${ago(job.started)} ago` }),
          job.run ? make("a", { href: pageOf({ id: job.run, kind: job.kind }), text: "open" }) : null,
          job.state === "running" ? make("button", { type: "button", class: "danger", text: "Stop", on: { click: () => stop(job.number) } }) : null),
        make("code", { class: "small", text: job.command }), output);
    }));
    if (!found.length) jobs.replaceChildren(make("p", { class: "muted", text: "This page has not started anything yet." }));
  }

  choice.addEventListener("input", async () => {
    if (!specs.some(({ name }) => name === choice.value)) return;
    text.value = (await get("/api/act/spec", { name: choice.value })).text;
    check();
  });
  text.addEventListener("input", schedule);
  await showJobs();
  const clock = setInterval(() => { if (!document.hidden) showJobs().catch(() => {}); }, JOBS_MS);

  return {
    element: make("div", { class: "page act-page" }, make("h1", { text: "Start a run" }),
      make("div", { class: "columns" },
        make("div", { class: "left" }, make("div", { class: "buttons" }, choice, list), text, verdict, make("div", { class: "buttons" }, ...Object.values(buttons), message)),
        make("aside", {}, make("h2", { text: "Started here" }), jobs,
          make("p", { class: "muted small", text: "Runs are separate processes: they keep running when this page or the server is closed. Stop saves a checkpoint, from which Resume on the page of the run continues." })))),
    title: "Start a run",
    close: () => { clearInterval(clock); clearTimeout(timer); },
    onKey: (event) => { if (event.key === "Escape") location.hash = "#/"; },
  };
}
