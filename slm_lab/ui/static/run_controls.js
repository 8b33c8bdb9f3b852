import { make } from "./dom.js";
import { get, post } from "./server.js";

// Stop, resume and extend a run; only for a page that may act.

export function buildControls(id, data, lab) {
  const element = make("div", { class: "controls" });
  if (!lab.may_act) return { element, onStatus: () => {} };
  const message = make("p", { class: "muted small", role: "status" });
  const stop = make("button", { type: "button", class: "danger", text: "Stop" });
  const resume = make("button", { type: "button", text: "Resume" });
  const frames = make("input", { type: "number", min: 1, step: 1, "aria-label": "Frames", value: data.max_frame || "" });
  const sessions = make("input", { type: "number", min: 1, step: 1, "aria-label": "Sessions", value: data.runs[0].sessions.rows.length });
  const extend = make("button", { type: "button", text: "Extend" });
  let number = null;

  async function attempt(text, action) {
    message.textContent = text;
    try {
      message.textContent = await action();
    } catch (error) {
      message.textContent = error.message;
    }
  }

  async function findJob() {
    const { jobs } = await get("/api/act/jobs");
    return jobs.find((job) => job.run === id && ["running", "stopping"].includes(job.state)) || null;
  }

  stop.addEventListener("click", () => attempt("stopping…", async () => {
    await post("/api/act/stop", { number });
    return "asked to save and stop";
  }));
  resume.addEventListener("click", () => attempt("resuming…", async () => {
    await post("/api/act/resume", { run: id });
    return "resumed";
  }));
  extend.addEventListener("click", () => attempt("extending…", async () => {
    const changes = { run: id };
    if (frames.value && Number(frames.value) !== data.max_frame) changes.max_frame = Number(frames.value);
    if (sessions.value && Number(sessions.value) !== data.runs[0].sessions.rows.length) changes.max_session = Number(sessions.value);
    if (Object.keys(changes).length === 1) return "give more frames or more sessions";
    await post("/api/act/resume", changes);
    return "extended and resumed";
  }));

  async function onStatus(status) {
    const isRunning = status === "running";
    resume.hidden = isRunning || status === "done";
    extend.disabled = isRunning;
    const job = isRunning ? await findJob().catch(() => null) : null;
    number = job && job.number;
    stop.hidden = number === null;
    if (isRunning && !job) message.textContent = "This page has not started it, so it cannot stop it.";
    else if (message.textContent.startsWith("This page")) message.textContent = "";
  }

  stop.hidden = true;
  element.append(make("h2", { text: "Control" }), make("div", { class: "buttons" }, stop, resume),
    make("div", { class: "extend" }, make("label", {}, "frames", frames), make("label", {}, "sessions", sessions), extend), message);
  return { element, onStatus };
}
