import { make } from "./dom.js";
import { short } from "./number.js";

// Times, scores and states for people.

export function ago(seconds) {
  const away = Math.max(Date.now() / 1000 - seconds, 0);
  for (const [unit, letter] of [[86400, "d"], [3600, "h"], [60, "m"]]) {
    if (away >= unit) return `${Math.floor(away / unit)}${letter}`;
  }
  return `${Math.floor(away)}s`;
}

export function duration(seconds) {
  const whole = Math.max(Math.round(seconds), 0);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  if (hours) return `${hours}h${String(minutes).padStart(2, "0")}m`;
  return minutes ? `${minutes}m${String(whole % 60).padStart(2, "0")}s` : `${whole}s`;
}

export const score = (value) => (value === null || value === undefined ? "–" : Math.abs(value) >= 1e5 ? short(value) : value.toFixed(Math.abs(value) >= 100 ? 1 : 2));

export function interval(low, high) {
  return low === null || low === undefined ? "" : `[${score(low)}, ${score(high)}]`;
}

export function bytes(size) {
  for (const [unit, name] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (size >= unit) return `${(size / unit).toFixed(1)} ${name}`;
  }
  return `${size} B`;
}

export const pill = (status) => make("span", { class: `pill ${status}`, text: status });

export function progressBar(share) {
  const percent = Math.round((share || 0) * 100);
  return make("span", { class: "progress", role: "progressbar", "aria-valuenow": percent, "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "progress" },
    make("span", { style: { width: `${percent}%` } }));
}

// where a row leads to: runs, searches and experiments have pages of their own
export const pageOf = ({ id, kind }) => `#/${kind}/${encodeURIComponent(id)}`;
