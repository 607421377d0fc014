/*
 * charts.js - a task's figure against budgets and against what they cost, drawn as SVG.
 *
 * A policy has one colour and one shape in all charts. Lines are named at their ends as well, so no
 * chart is read by colour alone. Every mark leads to its row in the table and tells its figures.
 */
"use strict";

const WIDTH = 560, HEIGHT = 330, LEFT = 72, TOP = 14, BOTTOM = 282;
const LINE_RIGHT = 416; // the names of the lines stand to the right of it
const COST_RIGHT = 528;
const NAME_CHARS = 17, NAME_STEP = 14, NAMES = 18; // as many as there is height for
const CHAR_WIDTH = 7.6; // above the mean of bold sans serif of 12 pixels
const DODGE = 5;        // pixels between the error bars of two policies at one budget
const TICKS = 24;

const title = words => svg("title", {}, words);
const words = (x, y, look, text) => svg("text", {x: x.toFixed(1), y: y.toFixed(1), class: look}, text);
const path = (look, d) => svg("path", {class: look, d});
const at = (...xs) => xs.map(x => x.toFixed(1)).join(" ");

/* ---- figures; null is a dash ---- */

const DASH = "\u2013";
const isFigure = x => typeof x === "number" && Number.isFinite(x);
const trim = (x, digits) => String(+x.toFixed(digits));

function bytesFigure(n) {
  if (!isFigure(n)) return DASH;
  let unit = 0;
  for (; unit < 4 && Math.abs(n) >= 1024; unit++) n /= 1024;
  return n.toFixed(Number.isInteger(n) || unit === 0 || n >= 100 ? 0 : 1) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][unit];
}
const count = n => isFigure(n) && Math.abs(n) < 1e15 ? number(n) : DASH;
const plain = x => !isFigure(x) ? DASH : Math.abs(x) >= 1000 ? count(x)
  : x.toFixed(Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : 3);
const valueFigure = x => Math.abs(x) < 1000 ? trim(x, 6) : count(x);
const shareFigure = x => trim(100 * x, 2) + "%";
const short = (text, n) => [...text].length > n ? [...text].slice(0, n - 1).join("") + "\u2026" : text;

/* ---- scales ---- */

/* The least of 1, 2, 5 times a power of ten that is at least x. */
function roundStep(x) {
  const power = 10 ** Math.floor(Math.log10(x)), mantissa = x / power;
  return (mantissa <= 1 ? 1 : mantissa <= 2 ? 2 : mantissa <= 5 ? 5 : 10) * power;
}

/* Round ticks, and ends that are widened to them. */
function linearScale(low, high, begin, end) {
  const least = Math.abs(high) > 0 ? 1e-6 * Math.abs(high) : 1e-6;
  const step = roundStep(Math.max(high - low, least) / 5), ticks = [];
  low = Math.floor(low / step + 1e-9) * step;
  high = Math.max(Math.ceil(high / step - 1e-9) * step, low + step);
  for (let i = 0; low + i * step <= high + step / 2 && i < TICKS; i++) ticks.push(low + i * step);
  return {begin, end, ticks, at: x => begin + (x - low) / (high - low) * (end - begin)};
}

/* Over positive values: logarithmic where they span more than a factor of 4, with a margin on either
   side. Ticks are round in powers of ten, or of two and of 1024 for bytes. */
function positiveScale(low, high, begin, end, binary) {
  const logarithmic = high > 4 * low, within = [];
  low = Math.max(low, 1e-30 * high);
  const margin = logarithmic ? (high / low) ** .08 : high > low ? .12 * (high - low) : .3 * high;
  [low, high] = logarithmic ? [low / margin, high * margin] : [Math.max(low - margin, .5 * low), high + margin];
  if (logarithmic && binary)
    for (let x = 2 ** Math.ceil(Math.log2(low)); x <= high; x *= 2) within.push(x);
  else if (logarithmic)
    for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10)
      within.push(...[power, 2 * power, 5 * power].filter(x => x >= low && x <= high));
  if (within.length < 2) {
    const unit = binary ? 1024 ** Math.floor(Math.log2(high) / 10) : 1;
    within.splice(0, 2, ...linearScale(low / unit, high / unit, 0, 1).ticks.map(x => x * unit)
      .filter(x => x >= low && x <= high));
  }
  const part = x => logarithmic ? Math.log(x / low) / Math.log(high / low) : (x - low) / (high - low);
  return {begin, end, ticks: within.slice(0, TICKS), at: x => begin + part(x) * (end - begin)};
}

function axes(chart, x, y, figure, xName, yName) {
  let last = -Infinity;
  for (const tick of x.ticks) {
    chart.append(path("grid", `M${at(x.at(tick), y.begin)}V${at(y.end)}`));
    if (x.at(tick) - last < 46) continue;
    last = x.at(tick);
    chart.append(words(last, y.begin + 17, "mid", figure(tick)));
  }
  for (const tick of y.ticks) chart.append(path("grid", `M${at(x.begin, y.at(tick))}H${at(x.end)}`),
    words(x.begin - 7, y.at(tick) + 4, "end", valueFigure(tick)));
  chart.append(path("axis", `M${at(x.begin, y.begin)}H${at(x.end)}`),
    words((x.begin + x.end) / 2, y.begin + 36, "name mid", xName),
    svg("g", {transform: `translate(13 ${at((y.begin + y.end) / 2)}) rotate(-90)`}, words(0, 0, "name mid", yName)));
}

/* ---- marks ---- */

/* Outlines around (0, 0) with about the area of a circle of radius 4.5. Seven is prime to the eight
   colours: 56 policies look different. */
const MARKS = ["M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z", "M-4 -4h8v8h-8z", "M0 -5.4L5 3.6H-5z",
  "M0 -5.6L5.6 0L0 5.6L-5.6 0z", "M0 5.4L5 -3.6H-5z",
  "M-1.7 -5.2h3.4v3.5h3.5v3.4h-3.5v3.5h-3.4v-3.5h-3.5v-3.4h3.5z",
  "M0 -6L1.8 -1.9L5.7 -1.9L2.6 1L3.7 5L0 2.8L-3.7 5L-2.6 1L-5.7 -1.9L-1.8 -1.9z"];
const colourOf = slot => slot < 0 ? "cf" : "c" + slot % 8;

/* The elements of one policy are a group, which its button hides. */
const series = (policy, ...children) =>
  svg("g", {class: "series " + colourOf(DATA.policies[policy].slot), "data-policy": policy}, ...children);
const mark = (policy, x, y) => svg("path", {class: "mark", transform: `translate(${at(x, y)})`,
  d: MARKS[Math.max(DATA.policies[policy].slot, 0) % MARKS.length]});
function badge(policy) {
  return svg("svg", {viewBox: "-8 -8 16 16", width: 16, height: 16, "aria-hidden": true}, series(policy, mark(policy, 0, 0)));
}

const nameOf = p => DATA.policies[p.policy].name + (p.budget ? " at " + p.budget.text : "");

/* A link to the point's row, with its figures for who points at it. */
function link(p, metric, shape) {
  const range = isFigure(p.low) ? ` (95%: ${plain(p.low)} to ${plain(p.high)})` : "";
  return svg("a", {href: "#r" + (p.first + 1)}, title(`${nameOf(p)}: ${metric.name} ${plain(p.value)}${range}, KV peak ${
    bytesFigure(p.kv_bytes)}, ${plain(p.tokens_per_s)} tokens/s, ${count(p.evicted)} entries evicted`), shape);
}

/* Shares are drawn from 0 to 1, whatever the points span; other figures as they are. */
function valueScale(group) {
  if (group.metric.share) return linearScale(0, 1, BOTTOM, TOP);
  const all = group.points.flatMap(p => [p.value, p.low, p.high]).filter(isFigure);
  return linearScale(Math.min(...all), Math.max(...all), BOTTOM, TOP);
}

/* Points that are one line: those of a policy with one kind of budget, budgets ascending. */
function linesOf(points) {
  const lines = [];
  for (const p of points) {
    const last = lines.at(-1);
    if (last && last[0].policy === p.policy && last[0].budget?.kind === p.budget?.kind) last.push(p);
    else lines.push([p]);
  }
  return lines;
}

const newChart = label => svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": label});

/* ---- against budget ---- */

const BUDGETS = {
  tokens: ["budget, tokens", count], share: ["budget, share of the tokens so far", shareFigure],
  bytes: ["budget, bytes", bytesFigure],
};

const shownAt = (group, kind) => group.points.filter(p => isFigure(p.value) && p.budget?.kind === kind && p.budget.value > 0);

/* The names beside the lines' ends, moved apart. */
function lineNames(chart, ends) {
  ends = ends.sort((a, b) => a.y - b.y).slice(0, NAMES);
  ends.forEach((e, i) => { e.at = i > 0 ? Math.max(e.y, ends[i - 1].at + NAME_STEP) : e.y; });
  for (let i = ends.length - 1; i >= 0; i--)
    ends[i].at = Math.min(ends[i].at, i === ends.length - 1 ? BOTTOM : ends[i + 1].at - NAME_STEP);
  for (const e of ends) {
    const name = DATA.policies[e.policy].name, text = words(LINE_RIGHT + 9, e.at + 4, "line-name", short(name, NAME_CHARS));
    text.append(title(name));
    chart.append(series(e.policy, path("leader", `M${at(e.x + 6, e.y)}L${at(LINE_RIGHT + 6, e.at)}`), text));
  }
}

function budgetChart(group, kind) {
  const [name, figure] = BUDGETS[kind], points = shownAt(group, kind), metric = group.metric, ends = [];
  const budgets = [...new Set(points.map(p => p.budget.value))].sort((a, b) => a - b);
  const x = positiveScale(budgets[0], budgets.at(-1), LEFT, LINE_RIGHT - 8, kind === "bytes"), y = valueScale(group);
  if (budgets.length <= 10) x.ticks = budgets;
  const chart = newChart(`${metric.name} of ${group.title} against ${name}, one line per policy`);
  axes(chart, x, y, figure, name, metric.name);
  for (const p of group.points.filter(p => p.budget === null && isFigure(p.value))) {
    const level = link(p, metric, path("line dashed", `M${at(x.begin, y.at(p.value))}H${at(x.end)}`));
    const band = isFigure(p.low) ? [path("band", `M${at(x.begin, y.at(p.high))}H${at(x.end)}V${at(y.at(p.low))}H${at(x.begin)}z`)] : [];
    chart.append(series(p.policy, ...band, level));
    ends.push({policy: p.policy, x: x.end - 6, y: y.at(p.value)});
  }
  const lines = linesOf(points);
  lines.forEach((line, i) => {
    const place = line.map(p => [x.at(p.budget.value) + DODGE * (i - (lines.length - 1) / 2), y.at(p.value)]);
    const bars = line.map((p, k) => [p, place[k][0]]).filter(([p]) => isFigure(p.low)).map(([p, px]) =>
      path("bar", `M${at(px - 3, y.at(p.high))}h6M${at(px, y.at(p.high))}V${at(y.at(p.low))}M${at(px - 3, y.at(p.low))}h6`));
    chart.append(series(line[0].policy, ...bars, path("line", "M" + place.map(xy => at(...xy)).join("L")),
      ...line.map((p, k) => link(p, metric, mark(p.policy, ...place[k])))));
    ends.push({policy: line[0].policy, x: place.at(-1)[0], y: place.at(-1)[1]});
  });
  lineNames(chart, ends);
  return chart;
}

/* ---- against cost ---- */

const COSTS = [
  ["memory", "KV memory, peak", "kv_bytes", bytesFigure], ["speed", "generated tokens/s", "tokens_per_s", valueFigure],
  ["the share that was read", "share of the cache that was read", "read_share", shareFigure],
];

const withCost = (group, key) => group.points.filter(p => isFigure(p.value) && p[key] > 0);

/* Two points at least; of the share that was read two that differ. */
function hasCost(group, key) {
  const costs = withCost(group, key).map(p => p[key]);
  return costs.length >= 2 && (key !== "read_share" || Math.min(...costs) < Math.max(...costs));
}

/* Labels beside marks, where there is room: boxes [x0, y0, x1, y1] are taken. */
function placeLabel(boxes, x, y, text) {
  const width = CHAR_WIDTH * [...text].length, height = 13, gap = 6.5;
  const places = [[x + gap, y - height / 2], [x - width / 2, y - gap - height], [x - width / 2, y + gap],
    [x - gap - width, y - height / 2], [x + gap, y - gap - height], [x + gap, y + gap]];
  const place = places.find(([x0, y0]) => x0 >= LEFT && x0 + width <= WIDTH && y0 >= 0 && y0 + height <= BOTTOM + 4 &&
    boxes.every(b => x0 >= b[2] || x0 + width <= b[0] || y0 >= b[3] || y0 + height <= b[1]));
  if (place) boxes.push([place[0], place[1], place[0] + width, place[1] + height]);
  return place && words(place[0], place[1] + height - 3, "mark-name", text);
}

/* Names first, marks over them: where there is little room a name loses a corner, not a mark. */
function costChart(group, [, name, key, figure]) {
  const points = withCost(group, key), costs = points.map(p => p[key]), metric = group.metric;
  const x = positiveScale(Math.min(...costs), Math.max(...costs), LEFT, COST_RIGHT, key === "kv_bytes"), y = valueScale(group);
  const chart = newChart(`${metric.name} of ${group.title} against ${name}, one mark per policy and budget`);
  const place = p => [x.at(p[key]), y.at(p.value)];
  const boxes = points.map(place).map(([px, py]) => [px - 5, py - 5, px + 5, py + 5]);
  axes(chart, x, y, figure, name, metric.name);
  for (const line of linesOf(points))
    chart.append(series(line[0].policy, path("line thin", "M" + line.map(p => at(...place(p))).join("L"))));
  for (const p of points) {
    const label = placeLabel(boxes, ...place(p), p.budget ? p.budget.text : DATA.policies[p.policy].name);
    if (label) chart.append(series(p.policy, label));
  }
  for (const p of points) chart.append(series(p.policy, link(p, metric, mark(p.policy, ...place(p)))));
  return chart;
}
