import { draw, make } from "./dom.js";
import { short } from "./number.js";

const trialColor = ({ is_best, is_done }, best) => (is_best && best ? best : is_done ? "var(--ink)" : "var(--muted)");
// the colour of a score, from 0 for the lowest to 1 for the highest
export const scaleColor = (share) => `color-mix(in oklab, var(--scale-high) ${Math.round(share * 100)}%, var(--scale-low))`;
// the best last, so that it lies above
const inLayers = (trials) => [...trials].sort((one, other) => one.is_best - other.is_best || one.is_done - other.is_done);

// the score of every trial against each searched key
export function scatter({ axes, lines }, bestColor) {
  const score = axes[axes.length - 1];
  const panels = axes.slice(0, -1).map(({ name, ticks: marks }, i) => {
    const figure = make("figure", { class: "chart", "data-chart": `score against ${name}` });
    let width = 270;
    const measure = () => { width = Math.max(figure.clientWidth || 270, 200); };
    const render = () => {
      const [height, left, right, top, bottom] = [190, 48, 22, 10, 24];
      const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Score against ${name}` });
      // dots at the ends stay clear of the labels beside them
      const toX = (place) => left + 8 + place * (width - left - right - 8);
      const toY = (place) => height - bottom - place * (height - top - bottom);
      for (const [place, text] of score.ticks) {
        draw("line", { class: "gridline", x1: left, x2: width - right, y1: toY(place), y2: toY(place) }, svg);
        draw("text", { class: "tick", x: left - 6, y: toY(place), dy: "0.32em", "text-anchor": "end" }, svg).textContent = short(Number(text));
      }
      // labels that would touch each other are left out
      const step = marks.length * 75 > width ? 2 : 1;
      for (const [place, text] of marks.filter((_, mark) => mark % step === 0)) {
        // the last label ends where the picture does
        const at = place > 0.9 ? { x: width - 2, "text-anchor": "end" } : { x: toX(place), "text-anchor": "middle" };
        draw("text", { class: "tick", y: height - 8, ...at }, svg).textContent = text;
      }
      for (const line of inLayers(lines)) {
        const dot = draw("circle", { class: "trial", "data-trial": line.trial, cx: toX(line.places[i]), cy: toY(line.places[axes.length - 1]), r: line.is_best ? 6 : 4, "stroke-width": 1.4 }, svg);
        dot.style.stroke = trialColor(line, bestColor);
        dot.style.fill = line.is_done ? trialColor(line, bestColor) : "none";
        draw("title", {}, dot).textContent = line.text;
      }
      figure.replaceChildren(make("figcaption", { text: name }), svg);
    };
    return { element: figure, measure, render };
  });
  return {
    element: make("div", { class: "grid" }, ...panels.map(({ element }) => element)),
    measure: () => panels.forEach(({ measure }) => measure()),
    render: () => panels.forEach(({ render }) => render()),
  };
}

// a line per trial across the searched keys to its score, whose colour it has
export function parallel({ axes, lines }) {
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
      path.style.stroke = scaleColor(line.places[axes.length - 1]);
      if (!line.is_done) path.setAttribute("stroke-dasharray", "3 3");
      draw("title", {}, path).textContent = line.text;
    }
    axes.forEach(({ name, ticks: marks }, i) => {
      draw("line", { class: "lane", x1: toX(i), x2: toX(i), y1: toY(1), y2: toY(0) }, svg);
      const last = i === axes.length - 1;
      draw("text", { class: "tick", x: toX(i), y: height - 14, "text-anchor": i === 0 ? "start" : "middle" }, svg).textContent = name;
      for (const [place, text] of marks) draw("text", { class: "tick halo", x: toX(i) + 5, y: toY(place), dy: "0.32em" }, svg).textContent = last ? short(Number(text)) : text;
    });
    // the colour bar, beside the axis of the score
    const steps = 24;
    for (let step = 0; step < steps; step++) {
      const bar = draw("rect", { class: "scale", x: toX(axes.length - 1) - 8, width: 8, y: toY((step + 1) / steps), height: toY(0) - toY(1 / steps) + 0.5 }, svg);
      bar.style.fill = scaleColor((step + 0.5) / steps);
    }
    figure.replaceChildren(svg);
  };
  return { element: scroll, measure, render };
}
