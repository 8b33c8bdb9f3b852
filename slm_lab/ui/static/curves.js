import { Chart, Looks } from "./chart.js";
import { make } from "./dom.js";
import { legend } from "./parts.js";

// The curves of runs on a page that stays open: drawn where they are in sight, and again when rows are added.

// A page is drawn again at most once in a second, and less often if that takes more than a share of the server's time.
const SHORTEST = 1000;
const LONGEST = 8000;
const SHARE = 1 / 60;

export class Curves {
  // `load(wanted)` fetches the charts again, with the curves of the named ones, `below(name)` builds what stands under a chart
  constructor(data, { load, onPick = null, below = () => null, hideSessions = false }) {
    this.load = load;
    this.onPick = onPick;
    this.below = below;
    this.hidden = new Set();
    this.isSmooth = false;
    this.hideSessions = hideSessions;
    this.element = make("div", { class: "curves" });
    this.observer = new IntersectionObserver((entries) => this.onSight(entries), { rootMargin: "200px" });
    this.next = 0;
    this.timer = null;
    this.build(data);
  }

  // everything from scratch: when a session, a column or a run is new
  build(data) {
    this.data = data;
    this.looks = new Looks(data);
    if (this.hideSessions) {
      // of several runs the means are compared; sessions are a click away
      this.looks.places.forEach((places, run) => places.length > 1 && places.forEach((session) => this.hidden.add(`${run}/${session}`)));
      this.hideSessions = false;
    }
    this.observer.disconnect();
    this.charts = [];
    this.states = [];
    const isMany = data.envs.length > 1;
    this.element.replaceChildren(...data.envs.flatMap((env) => [isMany ? make("h3", { text: env.name }) : null, this.buildEnv(env)]).filter(Boolean));
    this.signature = this.sign(data);
  }

  sign(data) {
    return JSON.stringify([this.looksOf(data), data.envs.map((env) => [env.name, env.charts.map(({ name }) => name), env.constants !== ""])]);
  }

  looksOf(data) {
    return new Looks(data).places;
  }

  buildEnv(env) {
    const state = { hidden: this.hidden, isSmooth: this.isSmooth, charts: [], cursor: null };
    const redraw = () => {
      this.isSmooth = state.isSmooth;
      this.draw(state.charts);
    };
    const indices = this.data.runs.map((_, i) => i).filter((i) => this.data.runs[i].env === env.name);
    const wrap = (chart) => {
      const drawn = new Chart(chart, state, this.looks, this.onPick);
      this.charts.push([drawn, env.name]);
      drawn.figure.drawn = drawn;
      this.observer.observe(drawn.figure);
      return make("div", { class: chart.is_small ? "small-chart" : "large-chart" }, drawn.figure, this.below(chart.name));
    };
    const large = env.charts.filter((chart) => !chart.is_small).map(wrap);
    const small = env.charts.filter((chart) => chart.is_small).map(wrap);
    const constants = make("p", { class: "muted small constants", text: env.constants || "" });
    return make("div", {}, legend(env, indices, state, this.looks, redraw), ...large, small.length ? make("div", { class: "grid" }, ...small) : null, constants);
  }

  onSight(entries) {
    for (const { target, isIntersecting } of entries) {
      target.drawn.isInSight = isIntersecting;
      if (isIntersecting && target.drawn.chart.is_left_out) this.refresh();
      else if (isIntersecting && target.drawn.isOld !== false) this.draw([target.drawn]);
    }
  }

  draw(charts) {
    const todo = charts.filter((chart) => chart.isInSight && !chart.chart.is_left_out);
    charts.forEach((chart) => { chart.isOld = !chart.isInSight; });
    // all widths first: reading one after drawing would lay out the page again for each
    todo.forEach((chart) => chart.measure());
    todo.forEach((chart) => chart.render());
  }

  redraw() {
    this.draw(this.charts.map(([chart]) => chart));
  }

  // --- new rows

  refresh() {
    if (this.timer !== null) return;
    this.timer = setTimeout(() => this.fetch(), Math.max(this.next - Date.now(), 0));
  }

  async fetch() {
    if (document.hidden) {
      // the tab is in the background
      document.addEventListener("visibilitychange", () => { this.timer = null; this.refresh(); }, { once: true });
      return;
    }
    let cost = 0;
    try {
      const inSight = this.charts.filter(([chart]) => chart.isInSight && chart.chart.is_small).map(([chart]) => chart.chart.name);
      // an empty name, since an empty list would mean all
      const data = await this.load([...inSight, ""]);
      if (this.isClosed) return;
      cost = data.cost * 1000;
      if (this.sign(data) !== this.signature) this.build(data);
      else this.update(data);
    } finally {
      this.next = Date.now() + Math.min(Math.max(cost / SHARE, SHORTEST), LONGEST);
      this.timer = null;
    }
  }

  update(data) {
    for (const [chart, name] of this.charts) {
      const env = data.envs.find((one) => one.name === name);
      chart.update(env.charts.find((one) => one.name === chart.chart.name));
    }
    this.redraw();
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.observer.disconnect();
  }
}
