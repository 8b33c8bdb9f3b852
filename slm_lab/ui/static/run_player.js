import { make } from "./dom.js";
import { exact } from "./number.js";
import { post } from "./server.js";

// The agent at a moment of its training: a click on a curve asks for a video of the model kept nearest to it.

export class Player {
  constructor(id, data) {
    this.id = id;
    this.wanted = null;
    this.box = make("div", { class: "screen" });
    this.caption = make("p", { class: "muted small", role: "status" });
    this.best = make("button", { type: "button", text: "Replay the best agent", on: { click: () => this.ask({ session: null, frame: null }) } });
    this.links = make("div", { class: "links" });
    this.element = make("div", { class: "player" }, this.box, this.caption, this.best, this.links);
    this.update(data);
    this.say();
  }

  update({ moments, runs: [run] }) {
    this.moments = moments;
    this.links.replaceChildren(...run.videos.slice(-12).map(({ label, link }) =>
      make("button", { type: "button", class: "link", text: label, on: { click: () => this.play(link, label) } })));
    this.best.hidden = !Object.values(moments).some((session) => session.has_best);
  }

  say() {
    const count = Object.values(this.moments).reduce((sum, { kept }) => sum + kept.length, 0);
    const text = count ? `Click a curve to see the agent of that moment: ${count} models were kept.`
      : "A click on a curve shows the best agent. Train with meta.keep_checkpoints=FRAMES to see every moment.";
    this.caption.textContent = text;
    this.box.replaceChildren(make("span", { text: "▷" }));
  }

  // a point of a curve; of a mean the best session is meant
  show(curve, frame) {
    const session = typeof curve.session === "number" ? curve.session : null;
    this.ask({ session, frame: Math.max(Math.round(frame), 0) });
  }

  async ask(moment) {
    this.caption.textContent = "asking for the video…";
    this.element.scrollIntoView({ block: "nearest", behavior: "smooth" });
    try {
      const video = await post("/api/video", { run: this.id, ...moment });
      this.wanted = video.key;
      this.onVideo(video);
    } catch (error) {
      this.caption.textContent = error.message;
    }
  }

  onVideo(video) {
    if (video.key !== this.wanted) return;
    const what = `session ${video.session}, ${video.frame === null ? "its best model" : `frame ${exact(video.frame)}`}`;
    if (video.state === "done") this.play(video.link, what);
    else if (video.state === "failed") this.caption.textContent = `No video of ${what}: ${video.error}`;
    else {
      this.box.replaceChildren(make("span", { class: "spinner", "aria-hidden": "true" }));
      this.caption.textContent = `recording ${what}…`;
    }
  }

  play(link, text) {
    const player = make("video", { controls: "", autoplay: "", loop: "", muted: "", playsinline: "", src: link });
    player.muted = true;
    this.box.replaceChildren(player);
    this.caption.textContent = text;
  }
}
