"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const isSingle = data.runs.length === 1;
const [first] = data.runs;
// what is drawn again when the page gets another width
const drawers = [];
const MAX_TIP_ROWS = 14;

// Text is only ever set as text: nothing of the data is read as HTML.
function make(name, options, ...children) {
  const { text, on, style, ...attributes } = options || {};
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(key, value);
  }
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(style || {})) element.style[key] = value;
  for (const [key, value] of Object.entries(on || {})) element.addEventListener(key, value);
  element.append(...children.filter((child) => child));
  return element;
}

function draw(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (parent) parent.append(element);
  return element;
}

// --- numbers

function trim(text) {
  return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
}

function short(value) {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit && size < 1e15) return trim((value / unit).toPrecision(4)) + letter;
  }
  if (value === 0) return "0";
  return size < 1e-3 || size >= 1e15 ? value.toExponential(2).replace(/\.?0+e/, "e") : trim(value.toPrecision(4));
}

function exact(value) {
  return Math.abs(value) >= 1e4 && Math.abs(value) < 1e15
    ? value.toLocaleString("en", { maximumFractionDigits: 1 })
    : trim(String(Number(value.toPrecision(5))));
}

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999) || raw;
  const result = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) result.push(i * step);
  return result;
}

// --- curves

const key = (curve) => (curve.session === null ? `${curve.run}/mean` : `${curve.run}/${curve.session}`);

// The colour is that of the algorithm; sessions of a lone run differ by dashes, unless they are too many for that.
function look(run, session) {
  const { color, dash } = data.runs[run];
  if (session === null) return { color, dash: isSingle ? "" : dash, width: 2.4, opacity: 1 };
  const places = sessionPlaces[run];
  // a lone session stands for its run
  if (!isSingle) return places.length < 2 ? { color, dash, width: 2.4, opacity: 1 } : { color, dash, width: 0.9, opacity: 0.55 };
  const own = places.length <= data.dashes.length ? data.dashes[places.indexOf(session)] || "" : "";
  return { color, dash: own, width: places.length < 2 ? 1.8 : 1.1, opacity: places.length < 2 ? 1 : 0.7 };
}

function swatch({ color, dash, opacity, isRing }) {
  if (isRing) return make("span", { class: "ring", style: { borderColor: color } });
  if (!dash) return make("span", { class: "swatch", style: { background: color, opacity: opacity || 1 } });
  const svg = draw("svg", { class: "dashes", viewBox: "0 0 20 6" });
  draw("line", { x1: 0, x2: 20, y1: 3, y2: 3, "stroke-width": 2.5, "stroke-dasharray": dash }, svg).style.stroke = color;
  return svg;
}

function label(run, session) {
  const text = session === null ? "mean" : session === "evaluation" ? "evaluation" : `session ${session}`;
  return isSingle ? text : `${data.runs[run].name}: ${text}`;
}

// every session that has a curve anywhere, by run
const sessionPlaces = data.runs.map(() => []);
for (const env of data.envs) {
  for (const chart of env.charts) {
    for (const curve of [...chart.raw, ...(chart.ma || [])]) {
      if (curve.session !== null && !sessionPlaces[curve.run].includes(curve.session)) {
        sessionPlaces[curve.run].push(curve.session);
      }
    }
  }
}
sessionPlaces.forEach((places) => places.sort((one, other) => one - other));

class Chart {
  constructor(chart, state) {
    this.chart = chart;
    this.state = state;
    this.tip = make("div", { class: "tip", hidden: "" });
    this.figure = make("figure", { class: "chart", "data-chart": chart.name },
      make("figcaption", { text: chart.title }), this.tip);
    this.evals = (chart.evals || []).map((curve) => ({ ...curve, session: "evaluation" }));
  }

  isSmooth() {
    return this.state.isSmooth && this.chart.ma && this.chart.ma.length > 0;
  }

  visible() {
    const curves = this.isSmooth() ? this.chart.ma : this.chart.raw;
    return [...curves, ...this.evals].filter((curve) => !this.state.hidden.has(key(curve)));
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
      draw("text", { class: "tick", x: middle, y: height - 4, "text-anchor": "middle" }, svg).textContent = "frames (env steps)";
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
      band.style.fill = look(curve.run, null).color;
    }
    // means last, so that they lie above
    const layer = ({ session }) => (session === "evaluation" ? 2 : session === null ? 1 : 0);
    const ordered = [...curves].sort((one, other) => layer(one) - layer(other));
    for (const curve of ordered) {
      const { color, dash, width: stroke, opacity } = look(curve.run, curve.session);
      const scale = this.chart.is_small ? 0.65 : 1;
      if (curve.session === "evaluation") {
        for (const [i, x] of curve.x.entries()) {
          const dot = draw("circle", { class: "evaluation", "data-curve": key(curve), cx: toX(x), cy: toY(curve.y[i]), r: 3.2, "stroke-width": 1.6 }, inner);
          dot.style.stroke = color;
        }
        continue;
      }
      if (curve.x.length === 1) {
        const dot = draw("circle", { "data-curve": key(curve), cx: toX(curve.x[0]), cy: toY(curve.y[0]), r: 3 }, inner);
        dot.style.fill = color;
        continue;
      }
      const path = draw("path", { class: "curve", "data-curve": key(curve), d: "M" + curve.x.map((x, i) => point(x, curve.y[i])).join("L"), "stroke-width": stroke * scale }, inner);
      path.style.stroke = color;
      path.style.opacity = opacity;
      if (dash) path.setAttribute("stroke-dasharray", dash);
    }
    this.listen(svg, { curves: ordered, toX, toY, left, right, margin, width, height, base });
    const old = this.figure.querySelector("svg");
    if (old) old.replaceWith(svg); else this.figure.insertBefore(svg, this.tip);
    this.tip.hidden = true;
  }

  listen(svg, view) {
    const marks = draw("g", {}, svg);
    let at = view.right;
    const clear = () => { marks.replaceChildren(); this.tip.hidden = true; };
    const show = (x) => {
      at = x;
      this.point(marks, view, x);
    };
    const onPointer = (event) => {
      const box = svg.getBoundingClientRect();
      const pixel = (event.clientX - box.left) * view.width / box.width;
      const share = (pixel - view.margin.left) / (view.width - view.margin.left - view.margin.right);
      show(view.left + Math.min(Math.max(share, 0), 1) * (view.right - view.left));
    };
    svg.addEventListener("pointermove", onPointer);
    svg.addEventListener("pointerdown", onPointer);
    svg.addEventListener("pointerleave", clear);
    svg.addEventListener("blur", clear);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -0.01, ArrowRight: 0.01 }[event.key];
      if (event.key === "Escape") clear();
      if (!step || !view.curves.length) return;
      event.preventDefault();
      show(Math.min(Math.max(at + step * (view.right - view.left), view.left), view.right));
    });
  }

  point(marks, view, x) {
    marks.replaceChildren();
    if (!view.curves.length) return;
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
      const { color, dash } = look(curve.run, curve.session);
      const y = Math.min(Math.max(view.toY(curve.y[i]), view.margin.top), view.base);
      draw("circle", { cx: view.toX(curve.x[i]), cy: y, r: 3.2 }, marks).style.fill = color;
      const text = exact(curve.y[i]) + (this.hasBand(curve) ? ` [${short(curve.low[i])}, ${short(curve.high[i])}]` : "");
      rows.push(make("div", {}, swatch({ color, dash }),
        make("span", { text: label(curve.run, curve.session) }), make("b", { text })));
    }
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

// --- scores and searches

// every session's score as a dot, the interval as a bar, the mean as a stroke: a row for each run
function strip(indices) {
  const figure = make("figure", { class: "chart strip" });
  let width = 900;
  const measure = () => { width = Math.max(figure.clientWidth || 900, 200); };
  const render = () => {
    const runs = indices.map((index) => data.runs[index]);
    const numbers = runs.flatMap(({ score }) => [...score.values.map((pair) => pair[1]), score.low, score.high]).filter((value) => value !== null);
    if (!numbers.length) return;
    const gap = isSingle ? 38 : 46;
    const height = gap * runs.length + 26;
    let [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    if (low === high) { const room = Math.abs(low) * 0.01 || 1; low -= room; high += room; }
    const toX = (value) => 24 + (value - low) / (high - low) * (width - 48);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Score of every session with the 95 % interval of the mean" });
    for (const value of ticks(low, high, Math.max(2, Math.floor(width / 120)))) {
      draw("line", { class: "gridline", x1: toX(value), x2: toX(value), y1: 4, y2: height - 20 }, svg);
      draw("text", { class: "tick", x: toX(value), y: height - 6, "text-anchor": "middle" }, svg).textContent = short(value);
    }
    runs.forEach(({ name, score }, row) => {
      const y = row * gap + (isSingle ? 18 : 30);
      const { color } = data.runs[indices[row]];
      if (!isSingle) draw("text", { class: "tick", x: 24, y: y - 14 }, svg).textContent = name;
      if (score.low !== null && score.high !== null) {
        const bar = draw("rect", { x: toX(score.low), y: y - 5, width: Math.max(toX(score.high) - toX(score.low), 1), height: 10, opacity: 0.18 }, svg);
        bar.style.fill = color;
      }
      for (const [session, value] of score.values) {
        if (value === null) continue;
        const dot = draw("circle", { cx: toX(value), cy: y, r: 4.5, opacity: 0.85, "data-score": `${indices[row]}/${session}` }, svg);
        dot.style.fill = color;
        draw("title", {}, dot).textContent = `session ${session}: ${exact(value)}`;
      }
      if (score.mean !== null) {
        draw("line", { x1: toX(score.mean), x2: toX(score.mean), y1: y - 9, y2: y + 9, "stroke-width": 2.5 }, svg).style.stroke = color;
      }
    });
    figure.replaceChildren(svg);
  };
  drawers.push({ measure, render });
  return figure;
}

const trialColor = ({ is_best, is_done }) => (is_best && first ? first.color : is_done ? "var(--ink)" : "var(--muted)");
// the best last, so that it lies above
const inLayers = (trials) => [...trials].sort((one, other) => one.is_best - other.is_best || one.is_done - other.is_done);

// the score of every trial against each searched key
function scatter({ axes, lines }) {
  const score = axes[axes.length - 1];
  const panels = axes.slice(0, -1).map(({ name, ticks: marks }, i) => {
    const figure = make("figure", { class: "chart", "data-chart": `score against ${name}` });
    let width = 270;
    const measure = () => { width = Math.max(figure.clientWidth || 270, 200); };
    const render = () => {
      const [height, left, right, top, bottom] = [190, 48, 22, 10, 24];
      const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Score against ${name}` });
      const toX = (place) => left + place * (width - left - right);
      const toY = (place) => height - bottom - place * (height - top - bottom);
      for (const [place, text] of score.ticks) {
        draw("line", { class: "gridline", x1: left, x2: width - right, y1: toY(place), y2: toY(place) }, svg);
        draw("text", { class: "tick", x: left - 6, y: toY(place), dy: "0.32em", "text-anchor": "end" }, svg).textContent = short(Number(text));
      }
      // labels that would touch each other are left out
      const step = marks.length * 75 > width ? 2 : 1;
      for (const [place, text] of marks.filter((_, mark) => mark % step === 0)) {
        draw("text", { class: "tick", x: toX(place), y: height - 8, "text-anchor": "middle" }, svg).textContent = text;
      }
      for (const line of inLayers(lines)) {
        const dot = draw("circle", { class: "trial", "data-trial": line.trial, cx: toX(line.places[i]), cy: toY(line.places[axes.length - 1]), r: line.is_best ? 6 : 4, "stroke-width": 1.4 }, svg);
        dot.style.stroke = trialColor(line);
        dot.style.fill = line.is_done ? trialColor(line) : "none";
        draw("title", {}, dot).textContent = line.text;
      }
      figure.replaceChildren(make("figcaption", { text: name }), svg);
    };
    drawers.push({ measure, render });
    return figure;
  });
  return make("div", { class: "grid" }, ...panels);
}

// a line per trial across the searched keys to its score
function parallel({ axes, lines }) {
  const figure = make("figure", { class: "chart", "data-chart": "parallel" });
  const scroll = make("div", { class: "scroll" }, figure);
  let width = 900;
  const measure = () => { width = Math.max(scroll.clientWidth || 900, 130 * axes.length); };
  const render = () => {
    const height = 320;
    figure.style.width = `${width}px`;
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Values and score of every trial" });
    const toX = (i) => 20 + i / Math.max(axes.length - 1, 1) * (width - 110);
    const toY = (place) => 12 + (1 - place) * (height - 50);
    for (const line of inLayers(lines)) {
      const path = draw("path", { class: "curve trial", "data-trial": line.trial, d: "M" + line.places.map((place, i) => `${toX(i).toFixed(1)},${toY(place).toFixed(1)}`).join("L"), "stroke-width": line.is_best ? 3 : 1.3 }, svg);
      path.style.stroke = trialColor(line);
      if (!line.is_done) path.setAttribute("stroke-dasharray", "3 3");
      draw("title", {}, path).textContent = line.text;
    }
    axes.forEach(({ name, ticks: marks }, i) => {
      draw("line", { class: "lane", x1: toX(i), x2: toX(i), y1: toY(1), y2: toY(0) }, svg);
      const last = i === axes.length - 1;
      draw("text", { class: "tick", x: toX(i), y: height - 14, "text-anchor": i === 0 ? "start" : "middle" }, svg).textContent = name;
      for (const [place, text] of marks) draw("text", { class: "tick halo", x: toX(i) + 5, y: toY(place), dy: "0.32em" }, svg).textContent = last ? short(Number(text)) : text;
    });
    figure.replaceChildren(svg);
  };
  drawers.push({ measure, render });
  return scroll;
}
