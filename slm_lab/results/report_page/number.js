// Numbers for people.

function trim(text) {
  return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
}

export function short(value) {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit && size < 1e15) return trim((value / unit).toPrecision(4)) + letter;
  }
  if (value === 0) return "0";
  return size < 1e-3 || size >= 1e15 ? value.toExponential(2).replace(/\.?0+e/, "e") : trim(value.toPrecision(4));
}

export function exact(value) {
  return Math.abs(value) >= 1e4 && Math.abs(value) < 1e15
    ? value.toLocaleString("en", { maximumFractionDigits: 1 })
    : String(Number(value.toPrecision(5)));
}

export function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999) || raw;
  const result = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) result.push(i * step);
  return result;
}
