const page = document.getElementById("page");
const MAX_OPEN_ROWS = 30;

// --- parts of the page

const isNumber = (text) => /^[-+–]?[\d.,]*(e[-+]?\d+)?$/.test(text);

function table({ head, rows }) {
  const numeric = head.map((_, i) => rows.length > 0 && rows.every((row) => isNumber(row[i])));
  const type = (i, row) => (numeric[i] ? "number" : !row ? undefined : row[i].length > 45 ? "long" : "short");
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((text, i) => make("th", { text, class: type(i) })))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((text, i) => make("td", { text, class: type(i, row) })))))));
}

function problemBox(lines) {
  if (!lines.length) return null;
  return make("div", { class: "problems" }, make("strong", { text: "Found while reading" }),
    make("ul", {}, ...lines.map((text) => make("li", { text }))));
}

function facts({ facts: numbers }) {
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

function doctor({ symptoms, conclusion }) {
  const boxes = symptoms.map(({ level, title, seen, meaning, advice, keys }) => make("div", { class: `symptom ${level}`, "data-symptom": title },
    make("strong", { text: title }), level === "info" ? make("span", { class: "muted", text: " (good to know)" }) : null,
    make("dl", {}, ...[["Seen", [seen]], ["Means", [meaning]], ["Try", withKeys(advice, keys)]].flatMap(([name, parts]) =>
      [make("dt", { text: name }), make("dd", {}, ...parts)]))));
  return make("div", {}, ...boxes, conclusion ? make("p", { text: conclusion }) : null);
}

// phases are no algorithms: their colours only tell them apart here
const paint = (i) => data.colors[(i + 2) % data.colors.length];

function bars({ names, rows }) {
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

async function copy(text) {
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

function copyButton(text, what) {
  const button = make("button", { type: "button", class: "copy", text: "Copy", "aria-label": `Copy ${what}` });
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text)) ? "Copied" : "Not allowed";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

function commands({ commands: lines }) {
  return lines.length && make("div", {}, ...lines.map(([name, line]) => make("div", { class: "command" },
    make("span", { text: name }), make("code", { text: line }), copyButton(line, `the command: ${name}`))));
}

function videos(run) {
  const last = run.videos[run.videos.length - 1];
  const player = make("video", { controls: "", preload: "metadata", src: last.link });
  const caption = make("p", { class: "muted small", text: last.label });
  const links = run.videos.map(({ label: text, link }) => make("a", {
    href: link, text,
    on: { click: (event) => { event.preventDefault(); player.src = link; caption.textContent = text; player.play().catch(() => {}); } },
  }));
  return make("div", {}, player, caption, run.videos.length > 1 ? make("div", { class: "links" }, ...links) : null);
}

function legend(env, indices, state, redraw) {
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
    const row = make("div", {}, isSingle ? null : make("strong", { text: data.runs[index].name }));
    const sessions = sessionPlaces[index];
    const hasBands = env.charts.some((chart) => chart.raw.some((curve) => curve.run === index && curve.low));
    if (env.charts.some((chart) => (chart.evals || []).some((curve) => curve.run === index))) {
      const name = `${index}/evaluation`;
      add(row, "evaluations, deterministic policy", () => !state.hidden.has(name), () => flip(name), { color: data.runs[index].color, isRing: true }, name);
    }
    if (sessions.length > 1) {
      add(row, "mean", () => !state.hidden.has(`${index}/mean`), () => flip(`${index}/mean`), look(index, null), `${index}/mean`);
      if (hasBands) add(row, "95 % interval of the mean", () => !state.hidden.has(`${index}/band`), () => flip(`${index}/band`), { ...look(index, null), opacity: 0.3 }, `${index}/band`);
    }
    for (const session of sessions) {
      const name = `${index}/${session}`;
      add(row, `session ${session}`, () => !state.hidden.has(name), () => flip(name), look(index, session), name);
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

function envCharts(env) {
  const indices = data.runs.map((_, i) => i).filter((i) => data.runs[i].env === env.name);
  // of several runs the means are compared; sessions are a click away
  const hidden = new Set(isSingle ? [] : indices.flatMap((i) => (sessionPlaces[i].length > 1 ? sessionPlaces[i].map((session) => `${i}/${session}`) : [])));
  const state = { hidden, isSmooth: false };
  const charts = env.charts.map((chart) => new Chart(chart, state));
  const redraw = () => charts.forEach((chart) => chart.render());
  drawers.push({ measure: () => charts.forEach((chart) => chart.measure()), render: redraw });
  const large = charts.filter((chart) => !chart.chart.is_small).map((chart) => chart.figure);
  const small = charts.filter((chart) => chart.chart.is_small).map((chart) => chart.figure);
  return [
    data.has_legend ? legend(env, indices, state, redraw) : null, ...large,
    small.length ? make("h3", { text: "Metrics of the algorithm" }) : null,
    small.length ? make("div", { class: "grid" }, ...small) : null,
    env.constants ? make("p", { class: "muted small constants", text: env.constants }) : null,
  ];
}

// how much of the ranking each key explains by itself
function importance(shares) {
  const box = make("div", { class: "bars" });
  for (const [path, share] of shares) {
    box.append(make("span", { text: path }), make("span", { class: "muted", text: `${Math.round(share * 100)} %` }),
      make("div", { class: "bar" }, make("span", { style: { width: `${share * 100}%`, background: "var(--ink)" } })));
  }
  return box;
}

function search() {
  const { search: found } = data;
  if (!found) return [];
  const isBest = found.best !== null && first;
  return [
    facts(found),
    section("Next", commands(found)),
    section("Trials", table(found.trials), make("p", { class: "muted small", text: found.note })),
    found.importance.length ? section("What mattered", importance(found.importance),
      make("p", { class: "muted small", text: "The share of the ranking of trials that each key explains by itself. With few trials it is a hint." })) : null,
    found.parallel ? section("Values and score", scatter(found.parallel),
      make("p", { class: "muted small", text: "Every dot is a trial: large the best, filled those that are done, hollow those that were stopped early. A pointer names it." }),
      parallel(found.parallel),
      make("p", { class: "muted small", text: "Every line is a trial: bold the best, solid those that are done, dashed those that were stopped early." })) : null,
    isBest ? make("h1", { class: "part", text: `Best trial: ${found.best}` }) : null,
  ];
}

function section(title, ...children) {
  const parts = children.filter((child) => child);
  return parts.length ? make("section", {}, make("h2", { text: title }), ...parts) : null;
}

function specDiff(diff) {
  if (!diff.rows.length) return make("p", { text: "Nowhere." });
  return make("details", { open: diff.rows.length > MAX_OPEN_ROWS ? undefined : "" },
    make("summary", { text: `${diff.rows.length} keys` }), table(diff));
}

function spec(run) {
  if (!run.spec) return null;
  return make("details", {}, make("summary", { text: `Spec of ${run.name}, with its defaults filled in` }),
    copyButton(run.spec, "the spec"), make("pre", { text: run.spec }));
}

// --- the page

const own = (title, build) => section(title, ...data.runs.flatMap((run) => {
  const content = build(run);
  return content ? [isSingle ? null : make("h3", { text: run.name }), content] : [];
}));
const heading = (env) => (data.envs.length > 1 ? `Learning curves on ${env.name}` : "Learning curves");

// a graph alone is its charts; a report has all there is to say about its runs
const buildGraph = () => data.envs.flatMap(envCharts);
const buildReport = () => [
  problemBox([...data.problems, ...data.runs.flatMap((run) => run.problems.map((text) => (isSingle ? text : `${run.name}: ${text}`)))]),
  ...search(),
  isSingle ? facts(first) : null,
  ...(isSingle && first.score.values.length > 1 ? [strip([0]), make("p", { class: "muted small",
    text: `Every dot is a session, the stroke their mean${first.score.low === null ? "" : ", the bar its 95 % interval"}.` })] : []),
  data.comparison ? section("Comparison",
    ...data.envs.map((env) => strip(data.runs.map((_, i) => i).filter((i) => data.runs[i].env === env.name))),
    make("p", { class: "muted small", text: `Every dot is a session, the stroke their mean, the bar its 95 % interval. The score is the ${data.comparison.score}. Each run is compared with the first one in its env.` }),
    table(data.comparison),
    make("ul", { class: "verdicts" }, ...data.comparison.verdicts.map((text) => make("li", { text })))) : null,
  data.comparison && data.comparison.aggregates ? section("Over all envs",
    make("p", { class: "muted small", text: "Interquartile mean of normalised scores, and the probability of a better score than the first algorithm, both with 95 % intervals." }),
    table(data.comparison.aggregates),
    make("ul", { class: "verdicts" }, ...data.comparison.aggregates.notes.map((text) => make("li", { text })))) : null,
  ...data.envs.map((env) => section(heading(env), ...envCharts(env))),
  own("Doctor", (run) => doctor(run.doctor)),
  own("Sessions", (run) => table(run.sessions)),
  own("Metrics", (run) => run.metrics && table(run.metrics)),
  own("Time", (run) => run.phases && bars(run.phases)),
  own("Video", (run) => run.videos.length && videos(run)),
  own("Commands", commands),
  data.spec_diff ? section("Where the specs differ", specDiff(data.spec_diff)) : null,
  section("Spec", ...data.runs.map(spec)),
  own("Machine and versions", (run) => run.machine.length && table({ head: ["what", "value"], rows: run.machine })),
];
const subtitle = data.search ? `search ${data.search.name}` : isSingle ? first.name : `${data.runs.length} runs side by side`;
const header = make("header", {}, make("h1", { text: data.title }), make("p", { class: "muted", text: subtitle }));
page.append(header, ...(data.is_graph ? buildGraph() : buildReport()).filter((part) => part));
// all widths first: reading one after drawing would lay out the page again for each
const drawAll = () => {
  drawers.forEach(({ measure }) => measure());
  drawers.forEach(({ render }) => render());
};
drawAll();
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  drawAll();
});
