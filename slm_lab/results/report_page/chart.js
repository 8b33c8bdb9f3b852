import { draw, make } from "./dom.js";
import { exact, short, ticks } from "./number.js";

// Learning curves: a chart of several runs and sessions, in which values can be read.

const MAX_TIP_ROWS = 14;
export const curveKey = (curve) => (curve.session === null ? `${curve.run}/mean` : `${curve.run}/${curve.session}`);

// How curves look and what they are called. The colour is that of the algorithm; sessions of a lone run differ by
// dashes, unless they are too many for that.
export class Looks {
  constructor({ runs, dashes, envs }) {
    this.runs = runs;
    this.dashes = dashes;
    this.isSingle = runs.length === 1;
    // every session that has a curve anywhere, by run
    this.places = runs.map(() => []);
    for (const chart of envs.flatMap((env) => env.charts)) {
      for (const { run, session } of [...chart.raw, ...(chart.ma || [])]) {
        if (session !== null && !this.places[run].includes(session)) this.places[run].push(session);
      }
    }
    this.places.forEach((places) => places.sort((one, other) => one - other));
  }

  look(run, session) {
    const { color, dash, width = 2.4 } = this.runs[run];
    if (session === null) return { color, dash: this.isSingle ? "" : dash, width, opacity: 1 };
    const places = this.places[run];
    // a lone session stands for its run
    if (!this.isSingle) return places.length < 2 ? { color, dash, width: 2.4, opacity: 1 } : { color, dash, width: 0.9, opacity: 0.55 };
    const own = places.length <= this.dashes.length ? this.dashes[places.indexOf(session)] || "" : "";
    return { color, dash: own, width: places.length < 2 ? 1.8 : 1.1, opacity: places.length < 2 ? 1 : 0.7 };
  }

  label(run, session) {
    const text = session === null ? "mean" : session === "evaluation" ? "evaluation" : `session ${session}`;
    return this.isSingle ? text : `${this.runs[run].name}: ${text}`;
  }
}

export function swatch({ color, dash, opacity, isRing }) {
  if (isRing) return make("span", { class: "ring", style: { borderColor: color } });
  if (!dash) return make("span", { class: "swatch", style: { background: color, opacity: opacity || 1 } });
  const svg = draw("svg", { class: "dashes", viewBox: "0 0 20 6" });
  draw("line", { x1: 0, x2: 20, y1: 3, y2: 3, "stroke-width": 2.5, "stroke-dasharray": dash }, svg).style.stroke = color;
  return svg;
}

// `state` is shared by charts that are read together: `hidden` curves, `isSmooth`, and `charts`, whose cursors are linked.
// `onPick(curve, frame)` is called with the curve nearest to a click.
export class Chart {
  constructor(chart, state, looks, onPick = null) {
    this.state = state;
    this.looks = looks;
    this.onPick = onPick;
    this.pickAt = null;
    state.charts.push(this);
    this.tip = make("div", { class: "tip", hidden: "" });
    this.figure = make("figure", { class: "chart", "data-chart": chart.name },
      make("figcaption", { text: chart.title }), this.tip);
    // on the figure, which stays when a new row replaces the picture between press and release
    if (onPick) this.figure.addEventListener("click", (event) => this.pickAt && event.target.tagName !== "FIGCAPTION" && this.pickAt(event));
    this.update(chart);
  }

  update(chart) {
    this.chart = chart;
    this.evals = (chart.evals || []).map((curve) => ({ ...curve, session: "evaluation" }));
  }

  isSmooth() {
    return this.state.isSmooth && this.chart.ma && this.chart.ma.length > 0;
  }

  visible() {
    const curves = this.isSmooth() ? this.chart.ma : this.chart.raw;
    return [...curves, ...this.evals].filter((curve) => !this.state.hidden.has(curveKey(curve)));
  }

  hasBand(curve) {
    return curve.low && curve.session !== "evaluation" && !this.state.hidden.has(`${curve.run}/band`);
  }

  measure() {
    this.width = Math.max(Math.round(this.figure.clientWidth) || 900, 200);
  }

  render() {
    const width = this.width;
    const height = this.chart.is_small ? 160 : Math.max(240, Math.min(380, Math.round(width * 0.42)));
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": this.chart.title });
    const curves = this.visible();
    this.figure.querySelector("figcaption").textContent = this.isSmooth() ? this.chart.ma_title : this.chart.title;
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const curve of curves) {
      left = Math.min(left, curve.x[0]);
      right = Math.max(right, curve.x[curve.x.length - 1]);
      for (const y of curve.y) { low = Math.min(low, y); high = Math.max(high, y); }
      if (this.hasBand(curve)) {
        for (const y of curve.low) low = Math.min(low, y);
        for (const y of curve.high) high = Math.max(high, y);
      }
    }
    // a few extreme values, such as a spike at the start, do not flatten the rest
    const [floor, ceiling] = this.chart.limits || [-Infinity, Infinity];
    const [lowest, highest] = [low, high];
    [low, high] = [Math.max(low, floor), Math.min(high, ceiling)];
    if (!curves.length || high < low) [low, high] = [0, 1];
    if (!curves.length) [left, right] = [0, 1];
    if (right === left) { left -= 0.5; right += 0.5; }
    if (high - low <= Math.abs(high) * 1e-9) { const room = Math.abs(high) * 0.1 || 1; low -= room; high += room; }
    const room = (high - low) * 0.05;
    low -= room; high += room;

    const yTicks = ticks(low, high, this.chart.is_small ? 4 : 6);
    const margin = { left: 12 + 6.6 * Math.max(...yTicks.map((value) => short(value).length), 2), right: 14, top: 8, bottom: this.chart.is_small ? 22 : 40 };
    const toX = (x) => margin.left + (x - left) / (right - left) * (width - margin.left - margin.right);
    const toY = (y) => height - margin.bottom - (y - low) / (high - low) * (height - margin.top - margin.bottom);
    for (const value of yTicks) {
      const y = toY(value).toFixed(1);
      draw("line", { class: "gridline", x1: margin.left, x2: width - margin.right, y1: y, y2: y }, svg);
      draw("text", { class: "tick", x: margin.left - 6, y, dy: "0.32em", "text-anchor": "end" }, svg).textContent = short(value);
    }
    const base = height - margin.bottom;
    for (const value of ticks(left, right, Math.max(2, Math.floor(width / (this.chart.is_small ? 60 : 110))))) {
      const x = toX(value).toFixed(1);
      draw("line", { class: "axis", x1: x, x2: x, y1: base, y2: base + 4 }, svg);
      draw("text", { class: "tick", x, y: base + 16, "text-anchor": "middle" }, svg).textContent = short(value);
    }
    draw("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: base, y2: base }, svg);
    if (!this.chart.is_small) {
      const middle = (margin.left + width - margin.right) / 2;
      draw("text", { class: "tick", x: middle, y: height - 4, "text-anchor": "middle" }, svg).textContent = this.chart.x_title || "frames (env steps)";
    }
    if (!curves.length) {
      draw("text", { class: "tick", x: width / 2, y: height / 2, "text-anchor": "middle" }, svg).textContent = "all curves are hidden";
    }
    const box = { x: margin.left, y: margin.top, width: width - margin.left - margin.right, height: base - margin.top };
    // an inner picture cuts off what leaves it
    const inner = draw("svg", { ...box, viewBox: `${box.x} ${box.y} ${box.width} ${box.height}` }, svg);
    inner.style.overflow = this.chart.limits ? "hidden" : "visible";
    const clipped = [highest > ceiling ? `▲ to ${short(highest)}` : "", lowest < floor ? `▼ to ${short(lowest)}` : ""];
    clipped.forEach((text, i) => {
      if (text) draw("text", { class: "clipped", x: width - margin.right, y: i ? base - 4 : margin.top + 9, "text-anchor": "end" }, svg).textContent = text;
    });
    const point = (x, y) => `${toX(x).toFixed(1)},${toY(y).toFixed(1)}`;
    for (const curve of curves.filter((one) => this.hasBand(one))) {
      const up = curve.x.map((x, i) => point(x, curve.high[i]));
      const down = curve.x.map((x, i) => point(x, curve.low[i])).reverse();
      const band = draw("path", { class: "band", "data-curve": `${curve.run}/band`, d: `M${up.concat(down).join("L")}Z`, opacity: 0.16 }, inner);
      band.style.fill = this.looks.look(curve.run, null).color;
    }
    // means last, so that they lie above
    const layer = ({ session }) => (session === "evaluation" ? 2 : session === null ? 1 : 0);
    const ordered = [...curves].sort((one, other) => layer(one) - layer(other));
    for (const curve of ordered) {
      const { color, dash, width: stroke, opacity } = this.looks.look(curve.run, curve.session);
      const scale = this.chart.is_small ? 0.65 : 1;
      if (curve.session === "evaluation") {
        for (const [i, x] of curve.x.entries()) {
          const dot = draw("circle", { class: "evaluation", "data-curve": curveKey(curve), cx: toX(x), cy: toY(curve.y[i]), r: 3.2, "stroke-width": 1.6 }, inner);
          dot.style.stroke = color;
        }
        continue;
      }
      if (curve.x.length === 1) {
        const dot = draw("circle", { "data-curve": curveKey(curve), cx: toX(curve.x[0]), cy: toY(curve.y[0]), r: 3 }, inner);
        dot.style.fill = color;
        continue;
      }
      const path = draw("path", { class: "curve", "data-curve": curveKey(curve), d: "M" + curve.x.map((x, i) => point(x, curve.y[i])).join("L"), "stroke-width": stroke * scale }, inner);
      path.style.stroke = color;
      path.style.opacity = opacity;
      if (dash) path.setAttribute("stroke-dasharray", dash);
    }
    this.listen(svg, { curves: ordered, toX, toY, left, right, margin, width, height, base });
    const old = this.figure.querySelector("svg");
    if (old) old.replaceWith(svg); else this.figure.insertBefore(svg, this.tip);
    const { cursor } = this.state;
    if (cursor) this.point(cursor.x, cursor.chart === this); else this.clear();
  }

  clear() {
    this.marks.replaceChildren();
    this.tip.hidden = true;
  }

  listen(svg, view) {
    this.view = view;
    this.marks = draw("g", {}, svg);
    let at = view.right;
    const linked = () => this.state.charts.filter((chart) => chart.marks);
    const clear = () => {
      this.state.cursor = null;
      linked().forEach((chart) => chart.clear());
    };
    const show = (x) => {
      at = x;
      this.state.cursor = { x, chart: this };
      linked().forEach((chart) => chart.point(x, chart === this));
    };
    const locate = (event) => {
      const box = svg.getBoundingClientRect();
      return [(event.clientX - box.left) * view.width / box.width, (event.clientY - box.top) * view.height / box.height];
    };
    const onPointer = (event) => {
      const [pixel] = locate(event);
      const share = (pixel - view.margin.left) / (view.width - view.margin.left - view.margin.right);
      show(view.left + Math.min(Math.max(share, 0), 1) * (view.right - view.left));
    };
    svg.addEventListener("pointermove", onPointer);
    svg.addEventListener("pointerdown", onPointer);
    svg.addEventListener("pointerleave", clear);
    svg.addEventListener("blur", clear);
    const pick = (y) => {
      const known = view.curves.map((curve) => [curve, nearest(curve.x, at)]);
      const away = ([curve, i]) => Math.abs(view.toY(curve.y[i]) - y) + Math.abs(view.toX(curve.x[i]) - view.toX(at));
      known.sort((one, other) => away(one) - away(other));
      if (known.length) this.onPick(known[0][0], at);
    };
    if (this.onPick) {
      svg.classList.add("pickable");
      this.pickAt = (event) => { onPointer(event); pick(locate(event)[1]); };
    }
    svg.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.onPick) pick(view.base);
      const step = { ArrowLeft: -0.01, ArrowRight: 0.01 }[event.key];
      if (event.key === "Escape") clear();
      if (!step || !view.curves.length) return;
      event.preventDefault();
      show(Math.min(Math.max(at + step * (view.right - view.left), view.left), view.right));
    });
  }

  // the cursor at a frame; only the chart under the pointer says its values
  point(x, isActive) {
    const { marks, view } = this;
    this.clear();
    if (!view.curves.length || x < view.left || x > view.right) return;
    const found = view.curves.map((curve) => [curve, nearest(curve.x, x)]);
    // the frame that is read is the nearest one that any curve has
    const frame = found.map(([curve, i]) => curve.x[i]).reduce((best, one) => (Math.abs(one - x) < Math.abs(best - x) ? one : best));
    const pixel = view.toX(frame);
    draw("line", { class: "cross", x1: pixel, x2: pixel, y1: view.margin.top, y2: view.base }, marks);
    const rows = [];
    // a curve that has ended is not read
    const reach = (view.right - view.left) * 0.02;
    const place = ({ run, session }) => run * 1e6 + (session === "evaluation" ? -2 : session === null ? -1 : session);
    for (const [curve, i] of found.sort(([one], [other]) => place(one) - place(other))) {
      if (Math.abs(curve.x[i] - frame) > reach) continue;
      const { color, dash } = this.looks.look(curve.run, curve.session);
      const y = Math.min(Math.max(view.toY(curve.y[i]), view.margin.top), view.base);
      draw("circle", { cx: view.toX(curve.x[i]), cy: y, r: 3.2 }, marks).style.fill = color;
      const text = exact(curve.y[i]) + (this.hasBand(curve) ? ` [${short(curve.low[i])}, ${short(curve.high[i])}]` : "");
      if (isActive) rows.push(make("div", {}, swatch({ color, dash }),
        make("span", { text: this.looks.label(curve.run, curve.session) }), make("b", { text })));
    }
    if (!isActive) return;
    const more = rows.length - MAX_TIP_ROWS;
    this.tip.replaceChildren(make("div", { text: `frame ${exact(Math.round(frame))}` }), ...rows.slice(0, MAX_TIP_ROWS),
      more > 0 ? make("div", { text: `and ${more} more` }) : "");
    this.tip.hidden = false;
    const svg = marks.ownerSVGElement;
    const scale = svg.clientWidth / view.width || 1;
    const isRight = pixel > view.width / 2;
    this.tip.style.top = `${svg.offsetTop || this.figure.querySelector("figcaption").offsetHeight + 20}px`;
    this.tip.style.left = isRight ? "auto" : `${pixel * scale + 12}px`;
    this.tip.style.right = isRight ? `${(view.width - pixel) * scale + 12}px` : "auto";
  }
}

function nearest(values, x) {
  let [low, high] = [0, values.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(values[low] - x) <= Math.abs(values[high] - x) ? low : high;
}
