import { draw, make } from "./dom.js";
import { exact, short, ticks } from "./number.js";

// every session's score as a dot, the interval as a bar, the mean as a stroke: a row for each run
export function strip(runs, isSingle) {
  const figure = make("figure", { class: "chart strip" });
  let width = 900;
  const measure = () => { width = Math.max(figure.clientWidth || 900, 200); };
  const render = () => {
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
    runs.forEach(({ name, score, color, index }, row) => {
      const y = row * gap + (isSingle ? 18 : 30);
      if (!isSingle) draw("text", { class: "tick", x: 24, y: y - 14 }, svg).textContent = name;
      if (score.low !== null && score.high !== null) {
        const bar = draw("rect", { x: toX(score.low), y: y - 5, width: Math.max(toX(score.high) - toX(score.low), 1), height: 10, opacity: 0.18 }, svg);
        bar.style.fill = color;
      }
      for (const [session, value] of score.values) {
        if (value === null) continue;
        const dot = draw("circle", { cx: toX(value), cy: y, r: 4.5, opacity: 0.85, "data-score": `${index}/${session}` }, svg);
        dot.style.fill = color;
        draw("title", {}, dot).textContent = `session ${session}: ${exact(value)}`;
      }
      if (score.mean !== null) {
        draw("line", { x1: toX(score.mean), x2: toX(score.mean), y1: y - 9, y2: y + 9, "stroke-width": 2.5 }, svg).style.stroke = color;
      }
    });
    figure.replaceChildren(svg);
  };
  return { element: figure, measure, render };
}
