/*
 * sheet.js - draws the JSON of the page: the results of `pith eval report`, or the map of
 * `pith run --map`. docs/page.md describes both.
 *
 * Texts come from files and models. They only become text of elements, never HTML. Figures come from
 * files, too: what is no number is a dash, and positions beyond the text are left out.
 */
"use strict";

const DATA = JSON.parse($("data").textContent);
const POSITIONS_MAX = 1 << 22, LANES_MAX = 4096, SIDE_MAX = 40;
const PARTS_MAX = 16, COLUMNS_MAX = 64; // of a block of scores, and of all blocks
const paintings = []; // canvases are painted for a width and in colours

const add = (parent, name, text, look) => parent.appendChild(element(name, text, look));
const isText = x => typeof x === "string" && x !== "";

/* ---- lanes ---- */

/* "0-3,120-255" as a byte per position; what is no range below n is left out. */
function readRanges(text, n) {
  const held = new Uint8Array(n);
  for (const range of text.split(",")) {
    const [, first, last = first] = /^(\d+)(?:-(\d+))?$/.exec(range) || [];
    if (+first <= +last && +last < n) held.fill(1, +first, +last + 1);
  }
  return held;
}

function lanesCanvas(parent, rows, total, height, look, label) {
  const canvas = add(parent, "canvas", undefined, look);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  paintings.push(() => paintRows(canvas, rows, total, height, [look ? "--c" : "--kept", "--gone", "--card"]));
  return canvas;
}

const columns = (box, n) => { box.style.gridTemplateColumns = `max-content repeat(${n}, minmax(0, 1fr))`; };

/* Rows of `kept` by lane, layer by layer: each row reaches from the look before it. */
function keptLanes(cell) {
  const rows = cell.rows.filter(r => typeof r.kept === "string" && r.tokens > 0 && r.tokens <= POSITIONS_MAX &&
    [r.layer, r.head].every(n => Number.isInteger(n) && n >= 0 && n < LANES_MAX));
  const most = key => rows.reduce((n, r) => Math.max(n, r[key]), 0);
  const [layers, heads, total] = [most("layer") + 1, most("head") + 1, most("tokens")];
  if (rows.length === 0 || layers * heads > LANES_MAX) return null;
  const lanes = Array.from({length: layers * heads}, () => ({before: 0, rows: [], entries: null}));
  for (const r of rows) {
    const lane = lanes[r.layer * heads + r.head], held = readRanges(r.kept, Math.ceil(total));
    if (r.tokens <= lane.before) continue;
    lane.rows.push({shown: r.tokens, from: lane.before / total, to: r.tokens / total, holds: p => held[p]});
    Object.assign(lane, {before: r.tokens, entries: r.entries});
  }
  return {layers, heads, total: Math.ceil(total), lanes};
}

function drawKept(parent, kept, slot, label) {
  const {layers, heads, total, lanes} = kept, height = layers <= 4 ? 116 : layers <= 8 ? 84 : 52;
  const box = add(parent, "div", undefined, "lanes"), few = heads <= 4;
  columns(box, heads);
  add(box, "span", "tokens read");
  for (let h = 0; h < heads; h++) add(box, "span", few ? "KV head " + h : h);
  for (let i = 0; i < lanes.length; i++) {
    if (i % heads === 0) add(box, "span", "layer " + i / heads, "side");
    const panel = add(box, "div", undefined, "panel");
    lanesCanvas(panel, lanes[i].rows, total, height, colourOf(slot), `${label}: layer ${Math.floor(i / heads)}, KV head ${i % heads}`);
    if (few) add(panel, "span", count(lanes[i].entries) + " kept");
  }
  add(box, "span", "position");
  for (let h = 0; h < heads; h++) {
    const ends = add(box, "div", undefined, "ends");
    if (few || h === 0) { add(ends, "span", "0"); add(ends, "span", count(total)); }
  }
}

/* ---- a map ---- */

/* A bar with its name, from one position to another; at the end of the row where it reaches there. */
function addSpan(row, look, first, last, name) {
  const bar = element("i", undefined, look), share = n => 100 * n / DATA.n_token + "%";
  Object.assign(bar.style, {left: share(first), width: share(last - first)});
  row.append(element("span", last > first ? name : ""), bar);
}

function addRow(box, side, middle, end) {
  box.append(element("span", side, "side"), middle, element("span", end));
  return middle;
}

function drawProfile(box, held) {
  const n = DATA.n_token, step = Math.ceil(n / 1000), all = new Uint32Array(n);
  let d = "M0 1";
  for (const lane of held) for (let p = 0; p < n; p++) all[p] += lane[p];
  for (let p = 0; p < n; p += step) {
    const part = all.subarray(p, p + step);
    d += `V${(1 - part.reduce((a, b) => a + b, 0) / part.length / held.length).toFixed(4)}H${Math.min(p + step, n)}`;
  }
  addRow(box, "share of lanes", svg("svg", {viewBox: `0 0 ${n} 1`, height: 46, preserveAspectRatio: "none", "aria-hidden": true},
    path("", d + "V1z")), "");
}

function drawMap(main) {
  const {n_token: n, n_layer: layers, n_head: heads, n_prompt: prompt, first, window} = DATA;
  const held = DATA.lanes.map(text => readRanges(text, n)), box = add(main, "div", undefined, "lanes");
  const height = Math.max(2, Math.min(34, Math.floor(620 / held.length)));
  box.style.gridTemplateColumns = "max-content minmax(0, 1fr) max-content";
  const texts = addRow(box, "", element("div", undefined, "span"), "kept");
  addSpan(texts, "prompt", 0, prompt, `prompt: ${count(prompt)} tokens`);
  addSpan(texts, "generated", prompt, n, `generated: ${count(n - prompt)} tokens`);
  if (first + window > 0) {
    const always = addRow(box, "", element("div", undefined, "span"), "");
    addSpan(always, "always", 0, first, `${DATA.first_name}: the first ${count(first)} always stay`);
    addSpan(always, "always", n - window, n, `window: the last ${count(window)} always stay`);
  }
  for (let l = 0; l < layers; l++) {
    const lanes = held.slice(l * heads, (l + 1) * heads), gap = height >= 6 ? 1 / (heads * height) : 0;
    const n_held = lanes.reduce((sum, lane) => sum + lane.reduce((a, b) => a + b, 0), 0), middle = element("div");
    const canvas = lanesCanvas(middle, lanes.map((lane, h) => ({shown: n, from: h / heads, to: (h + 1) / heads - gap, holds: p => lane[p]})),
      n, heads * height, "", `layer ${l}: ${percent(n_held, n * heads)} kept`);
    canvas.onmousemove = e => {
      const h = Math.min(heads - 1, Math.max(0, Math.floor(e.offsetY / height)));
      const p = Math.min(n - 1, Math.max(0, Math.floor(e.offsetX * n / canvas.clientWidth)));
      canvas.title = `layer ${l}, KV head ${h}, position ${count(p)}: ${lanes[h][p] ? "kept" : "evicted"}`;
    };
    addRow(box, "layer " + l, middle, percent(n_held, n * heads));
  }
  drawProfile(box, held);
  const ticks = addRow(box, "position", element("div", undefined, "ticks"), "");
  for (const tick of linearScale(0, n, 0, 1).ticks.filter(x => x <= n && Number.isInteger(x)))
    add(ticks, "span", count(tick)).style.left = 100 * tick / n + "%";
}

/* ---- scores ---- */

function scoreCell(row, score, name) {
  const shade = isFigure(score) ? Math.round(10 * Math.min(Math.max(score, 0), 1)) : -1;
  const look = shade < 0 ? "none soft" : `h${shade} ` + (shade <= 2 || shade >= 8 ? "on-dark" : "on-light");
  const cell = add(row, "td", shade < 0 ? DASH : score.toFixed(2), look);
  cell.title = name;
  return cell;
}

function addScale(parent) {
  const line = add(parent, "p", undefined, "scale");
  add(line, "span", "score 0");
  for (let i = 0; i <= 10; i++) add(line, "i", undefined, "h" + i);
  add(line, "span", "1");
}

/* The mean score of rows, each of n texts; null without rows. */
function meanOf(rows) {
  const n = rows.reduce((sum, r) => sum + r.n, 0);
  return {n, mean: n > 0 ? rows.reduce((sum, r) => sum + r.n * r.score, 0) / n : null};
}

const rowsOf = p => DATA.cells.slice(p.first, p.first + p.n_cell).flatMap(c => c.rows);

/* What the rows of all points differ in: a column for each value, in the order met. */
function partsOf(group, n_budget) {
  const rows = group.points.flatMap(rowsOf);
  for (const key of ["steps", "parts", "length", "task"]) {
    const parts = [...new Set(rows.map(r => r[key]))];
    const wide = Math.max(31, 6 + 7 * Math.max(...parts.map(part => [...String(part)].length)));
    if (rows.every(r => ["number", "string"].includes(typeof r[key]) && isFigure(r.score)) && parts.length >= 2 &&
        parts.length <= PARTS_MAX && parts.length * n_budget <= COLUMNS_MAX && parts.length * n_budget * wide <= 2200)
      return [key, parts];
  }
  return [null, [null]];
}

const ORDER = [undefined, "tokens", "share", "bytes"];
const sameBudget = (a, b) => a?.kind === b?.kind && a?.value === b?.value;

function drawMatrix(parent, group) {
  if (!group.metric?.share || !group.points.some(p => p.budget) || new Set(group.points.map(p => p.policy)).size < 2) return;
  const budgets = group.points.map(p => p.budget).filter((b, i, all) => all.findIndex(o => sameBudget(o, b)) === i)
    .sort((a, b) => ORDER.indexOf(a?.kind) - ORDER.indexOf(b?.kind) || a.value - b.value).slice(0, COLUMNS_MAX);
  const [key, parts] = partsOf(group, budgets.length);
  add(parent, "h3", "Every policy at every budget");
  addScale(parent);
  const figure = add(parent, "figure", undefined, "wide");
  add(figure, "figcaption", "Point at a cell for its policy and budget.");
  const table = add(figure, "table", undefined, "scores"), head = add(table, "thead");
  const names = add(head, "tr"), below = key && add(head, "tr");
  add(names, "th", "budget");
  if (key) add(below, "th", key);
  for (const b of budgets) {
    Object.assign(add(names, "th", b ? b.text : "none", "gap"), {colSpan: parts.length});
    if (key) parts.forEach((part, i) => add(below, "th", part, i ? "" : "gap"));
  }
  for (const policy of new Set(group.points.map(p => p.policy))) {
    const row = add(table, "tr"), name = add(row, "th", short(DATA.policies[policy].name, 34), "t series");
    row.className = "series";
    row.dataset.policy = policy;
    name.scope = "row";
    name.prepend(badge(policy));
    for (const b of budgets) {
      const p = group.points.find(p => p.policy === policy && sameBudget(p.budget, b));
      parts.forEach((part, i) => {
        const look = i ? "" : "gap";
        if (!p) return add(row, "td", "", look);
        const score = key ? meanOf(rowsOf(p).filter(r => r[key] === part)).mean : p.value;
        if (look) scoreCell(row, score, nameOf(p) + (key ? `, ${key} ${part}` : "")).classList.add(look);
        else scoreCell(row, score, nameOf(p) + (key ? `, ${key} ${part}` : ""));
      });
    }
  }
}

function drawGrid(parent, p, rows) {
  const values = key => [...new Set(rows.map(r => r[key]))].sort((a, b) => a - b).slice(0, SIDE_MAX);
  const lengths = values("length"), table = add(parent, "table", undefined, "scores");
  table.setAttribute("aria-label", "mean score by depth and length, " + nameOf(p));
  for (const depth of values("depth")) {
    const line = add(table, "tr");
    add(line, "th", trim(depth, 4)).scope = "row";
    for (const length of lengths) {
      const {n, mean} = meanOf(rows.filter(r => r.length === length && r.depth === depth));
      scoreCell(line, mean, `${count(length)} tokens, depth ${trim(depth, 4)}: ${plain(mean)} of ${n}`);
    }
  }
  const below = add(table, "tr");
  add(below, "th", "depth, tokens");
  for (const length of lengths) add(below, "th", length);
}

function drawGrids(parent, group) {
  let maps = null, policy = null;
  for (const p of group.points) {
    const rows = rowsOf(p).filter(r => isFigure(r.length) && isFigure(r.depth) && isFigure(r.score));
    if (rows.length === 0) continue;
    if (maps === null) {
      add(parent, "h3", "Score by depth and length");
      add(parent, "p", "Depth 0 is the beginning of the text, 1 its end.", "soft");
      addScale(parent);
    }
    if (p.policy !== policy) {
      add(parent, "h4", DATA.policies[p.policy].name);
      maps = add(parent, "div", undefined, "maps");
    }
    policy = p.policy;
    const figure = add(maps, "figure");
    figure.id = "m" + (p.first + 1);
    if (p.budget) add(figure, "figcaption", "budget " + p.budget.text);
    drawGrid(figure, p, rows);
    for (let i = 0; i < p.n_cell; i++) DATA.cells[p.first + i].map = figure.id;
  }
}

/* ---- one task ---- */

function addFigure(parent, bold, rest, look) {
  const figure = add(parent, "figure", undefined, look), caption = add(figure, "figcaption");
  caption.append(element("b", bold), rest);
  return figure;
}

function drawCharts(parent, group) {
  const charts = add(parent, "div", undefined, "charts"), metric = group.metric;
  for (const kind in BUDGETS) if (shownAt(group, kind).length > 0)
    addFigure(charts, metric.title + " against budget", ", " + metric.note).append(budgetChart(group, kind));
  for (const cost of COSTS) if (hasCost(group, cost[2]))
    addFigure(charts, metric.title + " against " + cost[0], ", marks named by budget").append(costChart(group, cost));
  if (charts.children.length === 0)
    add(parent, "p", "No two results here differ in budget or cost, so there is no chart; the table below has the figures.", "soft");
}

function drawAllKept(parent, index) {
  let charts = null;
  DATA.cells.forEach((cell, i) => {
    const kept = cell.group === index ? keptLanes(cell) : null;
    if (kept === null) return;
    if (charts === null) {
      add(parent, "h3", "Kept positions");
      add(parent, "p", "Each panel is one layer and KV head: position in the text to the right, tokens read so far downwards. " +
        "Coloured: still in the cache. Grey: read and evicted.", "soft");
      charts = add(parent, "div", undefined, "charts");
    }
    const policy = DATA.policies[cell.policy];
    const figure = addFigure(charts, short(policy.name, 60), cell.budget ? ", budget " + cell.budget.text : "", kept.heads > 4 ? "wide" : "");
    figure.id = cell.map = "m" + (i + 1);
    drawKept(figure, kept, policy.slot, nameOf(cell));
  });
}

function drawGroup(main, group, index) {
  const part = add(main, "section");
  add(part, "h2", group.title).id = "g" + (index + 1);
  add(part, "p", `task ${group.task}, model ${group.model || DASH}`, "soft");
  const settings = Object.entries(group.settings || {});
  if (settings.length > 0) {
    const fold = add(part, "details");
    add(fold, "summary", "what was asked");
    add(fold, "pre", settings.map(([key, value]) => `${key}: ${short(isText(value) ? value : JSON.stringify(value), 160)}`).join("\n"));
  }
  drawMatrix(part, group);
  if (group.metric) drawCharts(part, group);
  drawGrids(part, group);
  drawAllKept(part, index);
}

/* ---- the head and the table of a report ---- */

const distinct = list => [...new Set(list.filter(isText))];

function addFacts(parent) {
  const facts = add(parent, "dl"), runs = DATA.cells.map(c => c.run || {}), dates = distinct(runs.map(r => r.date)).sort();
  const machine = r => isText(r.cpu_level) ? `${r.cpu_level} kernels` + (r.threads >= 1 ? `, ${r.threads} thread${r.threads > 1 ? "s" : ""}` : "") : "";
  const engine = e => Object.entries(e || {}).map(([key, value]) => `${key} ${isText(value) ? value : JSON.stringify(value)}`).join(", ");
  const fact = (name, list) => facts.append(element("dt", name), element("dd", list.slice(0, 16).join("; ") + (list.length > 16 ? "; \u2026" : "") || DASH));
  fact("model", distinct(DATA.groups.map(g => g.model)));
  fact("machine", distinct(runs.map(machine)));
  fact("engine settings", distinct(DATA.cells.map(c => engine(c.engine))));
  fact("Pith version", distinct(runs.map(r => r.version)));
  fact("measured", dates.length > 1 ? [`${dates[0]} to ${dates.at(-1)}`] : dates);
  fact("files", distinct(DATA.cells.map(c => c.file)));
  fact("results", [String(DATA.cells.length)].concat(DATA.n_superseded > 0 ? `left out as repeated later: ${DATA.n_superseded}` : [],
    DATA.n_ignored > 0 ? `left out as no whole result: ${DATA.n_ignored}` : []));
}

/* A button of a policy hides what belongs to it, or shows it again. */
function addPolicies(parent) {
  const list = add(parent, "ul");
  list.setAttribute("aria-label", "policies");
  DATA.policies.forEach((policy, i) => {
    const button = add(add(list, "li"), "button");
    button.type = "button";
    button.append(badge(i), element("span", policy.name));
    if (policy.full) add(button, "span", "(the whole cache, dashed)", "soft");
    button.setAttribute("aria-pressed", true);
    button.onclick = () => {
      const off = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", !off);
      for (const e of document.querySelectorAll(`main .series[data-policy="${i}"]`)) e.classList.toggle("off", off);
    };
  });
}

const COLUMNS = [["items", c => count(c.n)], ["measure", c => DATA.groups[c.group].metric?.name || DASH], ["value", c => plain(c.value)],
  ["95%", c => plain(c.low) + (isFigure(c.low) ? " to " + plain(c.high) : "")], ["KV peak", c => bytesFigure(c.kv_bytes)],
  ["tokens/s", c => plain(c.tokens_per_s)], ["evicted", c => count(c.evicted)], ["rounds", c => count(c.rounds)],
  ["read", c => isFigure(c.read_share) ? +(100 * c.read_share).toPrecision(3) + "%" : DASH], ["prompt s", c => plain(c.prompt_s)],
  ["recall s", c => plain(c.recall_s)]];

function addLink(parent, target, text, look) {
  const a = element("a", text);
  a.href = "#" + target;
  (look === undefined ? parent : add(parent, "td", undefined, look)).append(a);
}

function drawTable(main) {
  const part = add(main, "section");
  add(part, "h2", "All results").id = "table";
  const table = add(add(part, "div", undefined, "table"), "table"), head = add(add(table, "thead"), "tr"), body = add(table, "tbody");
  for (const name of ["task", "policy", "budget", "seed", ...COLUMNS.map(c => c[0]), ""])
    add(head, "th", name, ["task", "policy"].includes(name) ? "t" : "");
  DATA.cells.forEach((cell, i) => {
    const row = add(body, "tr");
    row.id = "r" + (i + 1);
    addLink(row, "g" + (cell.group + 1), DATA.groups[cell.group].title, "t");
    add(row, "td", DATA.policies[cell.policy].name, "t policy");
    add(row, "td", cell.budget ? cell.budget.text : DASH);
    add(row, "td", cell.seed || DASH);
    for (const [name, figure] of COLUMNS) add(row, "td", figure(cell), name === "measure" || name === "95%" ? "soft" : "");
    if (cell.map) addLink(row, cell.map, "map", "");
    else add(row, "td");
  });
  add(part, "p", "KV peak: most bytes of KV memory in use at once. Evicted: entries dropped, summed over layers, heads and texts. " +
    "Rounds: times that the policy chose what to drop. Read: of the entries that lay in the cache when tokens were evaluated, those " +
    "that attention read. Prompt: seconds to read the prompt of an item. Recall: the part of them in which evicted entries were " +
    "remembered and those that come back were chosen.", "soft");
}

function drawReport(header, main) {
  add(header, "p", "Results of pith eval. Error bars and bands are 95% intervals; point at a mark for its figures, follow it to its " +
    "row. A dash is a figure that the results do not hold.", "soft");
  addFacts(header);
  addPolicies(header);
  const nav = add(header, "nav");
  nav.setAttribute("aria-label", "sections");
  DATA.groups.forEach((group, i) => addLink(nav, "g" + (i + 1), group.title));
  addLink(nav, "table", "table of all results");
  DATA.groups.forEach((group, i) => drawGroup(main, group, i));
  drawTable(main);
}

/* ---- the page ---- */

const header = add(document.body, "header"), main = add(document.body, "main");
const models = distinct((DATA.groups || [DATA]).map(g => g.model)), model = models.length === 1 ? models[0] : "Several models";
if (DATA.type === "report") {
  document.title = `${model}: Pith evaluation`;
  add(header, "h1", `${model}: what cache policies cost and keep`);
  drawReport(header, main);
} else {
  document.title = "What the KV cache holds" + (DATA.model ? ": " + DATA.model : "");
  add(header, "h1", document.title);
  add(header, "p", "--keep " + DATA.keep, "keep");
  for (const line of DATA.lines) add(header, "p", line);
  drawMap(main);
}
const paintAll = () => paintings.forEach(paint => paint());
for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).onchange = paintAll;
addEventListener("resize", paintAll);
paintAll();
