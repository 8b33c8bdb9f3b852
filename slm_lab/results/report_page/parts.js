import { swatch } from "./chart.js";
import { make } from "./dom.js";

// Parts of a page: tables, boxes, bars and the legend of curves.

const MAX_OPEN_ROWS = 30;
const isNumber = (text) => /^[-+–]?[\d.,]*(e[-+]?\d+)?$/.test(text);

export function table({ head, rows }) {
  const numeric = head.map((_, i) => rows.length > 0 && rows.every((row) => isNumber(row[i])));
  const type = (i, row) => (numeric[i] ? "number" : !row ? undefined : row[i].length > 45 ? "long" : "short");
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((text, i) => make("th", { text, class: type(i) })))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((text, i) => make("td", { text, class: type(i, row) })))))));
}

export function problemBox(lines) {
  if (!lines.length) return null;
  return make("div", { class: "problems" }, make("strong", { text: "Found while reading" }),
    make("ul", {}, ...lines.map((text) => make("li", { text }))));
}

export function facts({ facts: numbers }) {
  return make("div", { class: "facts" }, ...numbers.map(([name, value, note]) =>
    make("div", { class: "fact" }, make("span", { text: name }), make("b", { text: value }), make("span", { text: note }))));
}

// the text with the keys of the spec in it as code
function withKeys(text, keys) {
  const parts = [];
  let from = 0;
  while (from < text.length) {
    const places = keys.map((name) => [text.indexOf(name, from), name]).filter(([place]) => place >= 0);
    // of keys that begin at one place the longest is meant
    places.sort((one, other) => one[0] - other[0] || other[1].length - one[1].length);
    const [place, name] = places[0] || [text.length, ""];
    parts.push(text.slice(from, place), name ? make("code", { text: name }) : "");
    from = place + name.length;
  }
  return parts;
}

export function doctor({ symptoms, conclusion }) {
  const boxes = symptoms.map(({ level, title, seen, meaning, advice, keys }) => make("div", { class: `symptom ${level}`, "data-symptom": title },
    make("strong", { text: title }), level === "info" ? make("span", { class: "muted", text: " (good to know)" }) : null,
    make("dl", {}, ...[["Seen", [seen]], ["Means", [meaning]], ["Try", withKeys(advice, keys)]].flatMap(([name, parts]) =>
      [make("dt", { text: name }), make("dd", {}, ...parts)]))));
  return make("div", {}, ...boxes, conclusion ? make("p", { text: conclusion }) : null);
}

// phases are no algorithms: their colours only tell them apart here
export function bars({ names, rows }, colors) {
  const paint = (i) => colors[(i + 2) % colors.length];
  const box = make("div", { class: "bars" });
  for (const row of rows) {
    const parts = row.shares.map((share, i) => make("span", {
      title: `${names[i]} ${(share * 100).toFixed(1)} %`, style: { width: `${share * 100}%`, background: paint(i) },
    }));
    box.append(make("span", { text: row.label }), make("span", { class: "muted", text: row.time }), make("div", { class: "bar" }, ...parts));
  }
  const order = names.map((name, i) => [name, rows[0].shares[i], paint(i)]).sort((one, other) => other[1] - one[1]);
  const keys = order.map(([name, share, color]) => make("span", {}, swatch({ color }), `${name} ${(share * 100).toFixed(1)} %`));
  return make("div", {}, box, make("div", { class: "keys" }, ...keys));
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // a page from a file may not use the clipboard; the old way still works there
    const area = make("textarea", { style: { position: "fixed", opacity: "0" } });
    area.value = text;
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}

export function copyButton(text, what) {
  const button = make("button", { type: "button", class: "copy", text: "Copy", "aria-label": `Copy ${what}` });
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text)) ? "Copied" : "Not allowed";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

export function commands({ commands: lines }) {
  return lines.length && make("div", {}, ...lines.map(([name, line]) => make("div", { class: "command" },
    make("span", { text: name }), make("code", { text: line }), copyButton(line, `the command: ${name}`))));
}

export function videos(run) {
  const last = run.videos[run.videos.length - 1];
  const player = make("video", { controls: "", preload: "metadata", src: last.link });
  const caption = make("p", { class: "muted small", text: last.label });
  const links = run.videos.map(({ label: text, link }) => make("a", {
    href: link, text,
    on: { click: (event) => { event.preventDefault(); player.src = link; caption.textContent = text; player.play().catch(() => {}); } },
  }));
  return make("div", {}, player, caption, run.videos.length > 1 ? make("div", { class: "links" }, ...links) : null);
}

export function legend(env, indices, state, looks, redraw) {
  const box = make("div", { class: "legend" });
  const buttons = [];
  const refresh = () => buttons.forEach(([button, isOn]) => button.setAttribute("aria-pressed", isOn()));
  const add = (row, text, isOn, onClick, style, name) => {
    const button = make("button", { type: "button", "data-toggle": name, class: style ? undefined : "plain", on: { click: () => { onClick(); refresh(); redraw(); } } },
      style ? swatch(style) : null, text);
    buttons.push([button, isOn]);
    row.append(button);
  };
  const flip = (name) => { if (!state.hidden.delete(name)) state.hidden.add(name); };
  for (const index of indices) {
    const row = make("div", {}, looks.isSingle ? null : make("strong", { text: looks.runs[index].name }));
    const sessions = looks.places[index];
    const hasBands = env.charts.some((chart) => chart.raw.some((curve) => curve.run === index && curve.low));
    if (env.charts.some((chart) => (chart.evals || []).some((curve) => curve.run === index))) {
      const name = `${index}/evaluation`;
      add(row, "evaluations, deterministic policy", () => !state.hidden.has(name), () => flip(name), { color: looks.runs[index].color, isRing: true }, name);
    }
    if (sessions.length > 1) {
      add(row, "mean", () => !state.hidden.has(`${index}/mean`), () => flip(`${index}/mean`), looks.look(index, null), `${index}/mean`);
      if (hasBands) add(row, "95 % interval of the mean", () => !state.hidden.has(`${index}/band`), () => flip(`${index}/band`), { ...looks.look(index, null), opacity: 0.3 }, `${index}/band`);
    }
    for (const session of sessions) {
      const name = `${index}/${session}`;
      add(row, `session ${session}`, () => !state.hidden.has(name), () => flip(name), looks.look(index, session), name);
    }
    if (sessions.length > 1) {
      const all = sessions.map((session) => `${index}/${session}`);
      const isOn = () => all.every((name) => !state.hidden.has(name));
      add(row, "all sessions", isOn, () => {
        const hide = isOn();
        all.forEach((name) => (hide ? state.hidden.add(name) : state.hidden.delete(name)));
      }, null, `${index}/all`);
    }
    box.append(row);
  }
  if (env.charts.some((chart) => chart.ma && chart.ma.length)) {
    const row = make("div", {});
    add(row, "total_reward_ma: mean of the last 100 rows", () => state.isSmooth, () => { state.isSmooth = !state.isSmooth; }, null, "smooth");
    box.append(row);
  }
  refresh();
  return box;
}

// how much of the ranking each key explains by itself
export function importance(shares) {
  const box = make("div", { class: "bars" });
  for (const [path, share] of shares) {
    box.append(make("span", { text: path }), make("span", { class: "muted", text: `${Math.round(share * 100)} %` }),
      make("div", { class: "bar" }, make("span", { style: { width: `${share * 100}%`, background: "var(--ink)" } })));
  }
  return box;
}

export function section(title, ...children) {
  const parts = children.filter((child) => child);
  return parts.length ? make("section", {}, make("h2", { text: title }), ...parts) : null;
}

export function specDiff(diff) {
  if (!diff.rows.length) return make("p", { text: "Nowhere." });
  return make("details", { open: diff.rows.length > MAX_OPEN_ROWS ? undefined : "" },
    make("summary", { text: `${diff.rows.length} keys` }), table(diff));
}

export function spec(run) {
  if (!run.spec) return null;
  return make("details", {}, make("summary", { text: `Spec of ${run.name}, with its defaults filled in` }),
    copyButton(run.spec, "the spec"), make("pre", { text: run.spec }));
}
