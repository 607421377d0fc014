/*
 * draw.js - draws what view.js holds: the memory, the text, the lanes, rates, requests, the log, and
 * the replay. Each part is drawn when it is dirty, once a frame.
 */
"use strict";

function draw() {
  const parts = new Set(dirty);
  dirty.clear();
  if (parts.has("name")) drawName();
  if (parts.has("new")) { drawGrid(); T.n = 0; $("tokens").textContent = ""; T.level = []; }
  if (parts.has("new") || parts.has("round") || parts.has("tokens")) drawTokens(!parts.has("new"));
  if (parts.has("new") || parts.has("round") || parts.has("lanes")) drawLanes();
  if (parts.has("new") || parts.has("round") || parts.has("token")) drawToken();
  if (parts.has("memory")) drawMemory();
  if (parts.has("requests")) drawRequests();
  if (parts.has("rates")) drawRates();
  if (parts.has("log")) drawLog();
  if (parts.has("replay")) drawReplay();
}

function drawName() {
  const p = S.policies || {}, words = [];
  for (const verb of ["keep", "read", "recall", "share"]) if (p[verb]) words.push(`--${verb} ${p[verb]}`);
  $("model").textContent = S.model.name;
  $("policy").textContent = words.join("  ") || "the full cache";
  drawBudget();
  document.title = S.model.name ? `Pith: ${S.model.name}` : "Pith";
}

/* ---- memory ---- */

/* The request that is followed, if it is in memory. */
const ownRequest = () => S.f === null || !S.f.there ? undefined
  : S.requests.find(r => r.id === S.f.id && r.answer === S.f.answer && r.entries !== undefined);

/* What the conversation takes, by what it is for. */
function ownParts(r) {
  const entry = S.memory.page / S.memory.page_len, lanes = S.f.went.length || 1;
  const guests = r.guest_bytes, held = r.held - guests, rules = S.rules || {};
  const first = Math.max(rules.prefix || 0, rules.sinks || 0, rules.pin_prompt ? S.f.nPrompt : 0);
  const pinned = Math.min(held, first * lanes * entry, r.entries * entry);
  const live = Math.max(0, Math.min(held - pinned, r.entries * entry - pinned));
  return [
    ["c-pinned", "pinned", "always stay", pinned], ["c-live", "live", "kept", live],
    ["c-guest", "guest", "brought back by recall", guests], ["c-tier", "tier", "set aside by recall", r.tier],
    ["c-rest", "rest", "rest of pages", Math.max(0, held - pinned - live)],
    ["c-free", "saved", "not needed", Math.max(0, r.full - r.held - r.tier)],
  ];
}

const inUnit = (n, of) => bytes(n).split(" ")[1] === bytes(of).split(" ")[1] ? bytes(n).split(" ")[0] : bytes(n);

function drawHeadline() {
  const r = ownRequest(), line = $("headline"), lead = $("lead"), evicts = S.rules !== null && S.rules !== undefined;
  $("own").hidden = $("legend").hidden = r === undefined;
  if (r === undefined) {
    line.textContent = S.f === null || S.f.n === 0 ? "Nothing is held yet" : "This text is no longer in memory";
    lead.textContent = S.f === null || S.f.n === 0 ? "Ask something, and watch what the model keeps of it."
      : "What is shown was held at last. The next message is read from the start.";
    return;
  }
  const total = r.held + r.tier, ratio = r.full / Math.max(1, total);
  line.replaceChildren(bytes(total));
  lead.replaceChildren(`${number(r.n_token)} tokens; ${percent(r.entries, r.entries + r.evicted)} of the `, word("entry", "entries"),
    " are held" + (r.guests > 0 ? `, and ${number(r.guests)} ` : ""), r.guests > 0 ? word("guest", "guests") : "", ".");
  if (ratio >= 1.05) line.append(" where the ", word("full", "full cache"), ` takes ${inUnit(r.full, total)}: ${ratio.toFixed(1)} times less`);
  else if (r.evicted > 0) line.append(" where the ", word("full", "full cache"), ` takes ${inUnit(r.full, total)}`);
  else line.append(" of KV memory, and everything is held");
  if (r.evicted === 0) lead.replaceChildren(`${number(r.n_token)} tokens, which all `, word("lane", "lanes"), " hold. " +
    (evicts ? "The first round comes when they outgrow their budget." : "This server keeps the full cache: start it with --keep to spend less."));
  else if (r.remembered > 0) lead.append(" Beside it, policies ", word("remembered", "remember"), ` ${bytes(r.remembered)}.`);
}

function drawBar(box, parts, whole) {
  parts.forEach(([look, , , n], i) => {
    if (!box.children[i]) box.append(element("div", undefined, look));
    box.children[i].style.width = (whole > 0 ? 100 * n / whole : 0) + "%";
  });
}

function drawOwn() {
  const r = ownRequest();
  if (r === undefined) return;
  const parts = ownParts(r), whole = Math.max(r.full, r.held + r.tier), list = $("legend");
  drawBar($("own"), parts, whole);
  $("own").setAttribute("aria-label", `${number(r.held + r.tier)} bytes, and the full cache ${number(r.full)}`);
  parts.forEach(([look, key, name, n], i) => {
    let item = list.children[i];
    if (!item) {
      item = element("li");
      item.append(element("i", undefined, look), word(key, name), element("b"));
      list.append(item);
    }
    item.hidden = n < 1;
    item.lastChild.textContent = bytes(Math.round(n));
  });
}

/* The parts of the account, as docs/memory.md names them: look, word, name, bytes. */
const PARTS = [
  ["c-live", "lanes", "lanes"], ["c-guest", "guests", "brought back by recall"], ["c-rest", "idle", "pages to use again"],
  ["c-tier", "tier", "set aside by recall"],  ["c-tier", "stored", "recall's text", "text"], ["c-other", "states", "recurrent states"], ["c-other", "tables", "tables"],
  ["c-other", "marks", "marks"], ["c-other", "remembered", "remembered queries", "policy"],
  ["c-other", "drafter", "drafting model", "draft_model"], ["c-other", "work", "work buffers"], ["c-other", "swapped", "put aside", "aside"],
].map(([look, key, name, part]) => [look, key, name, m => m.parts[part || key]]);
const KEYS = [
  ...PARTS, ["c-free", "page", "free", m => m.whole - m.total],
  ["", "pinned", "pinned, of lanes", m => m.pinned], ["", "prefixes", "cached prefixes, of lanes", m => m.prefixes],
  ["c-shared line", "shared", "shared, of pages", m => m.shared], ["tick", "peak", "most pages", m => m.peak],
  ["", "tier", "recall's file, on disk", m => m.tier_file],
];

/* The account of the step that is shown: of a past one only its pages are known. */
function shownMemory() {
  const m = {...S.memory, parts: {...S.memory.parts}}, past = S.at;
  if (past !== null) {
    const change = past[7] - m.used;
    m.used = past[7];
    m.parts.lanes = Math.max(0, m.parts.lanes + change);
    m.parts.idle = Math.max(0, m.parts.idle - change);
    m.pinned = Math.min(m.pinned, m.parts.lanes);
    m.total = PARTS.reduce((sum, part) => sum + part[3](m), 0);
  }
  m.whole = Math.max(m.total, m.budget || m.total + m.reserved - m.used - m.parts.idle);
  return m;
}

function drawMemory() {
  const m = shownMemory(), share = n => (m.whole > 0 ? 100 * n / m.whole : 0) + "%";
  drawHeadline();
  drawOwn();
  $("used").textContent = `The whole server: ${bytes(m.total)} of ${bytes(m.whole)}, ${percent(m.total, m.whole)}`;
  $("pages").textContent = `${number(m.used / m.page)} of ${number(m.reserved / m.page)} pages of ${number(m.page)} B are in use.`;
  drawBar($("bar"), PARTS.map(([look, key, name, value]) => [look, key, name, value(m)]), m.whole);
  $("b-shared").style.width = share(m.shared);
  $("thin").style.width = share(m.total);
  $("peak").style.left = `calc(${share(m.peak)} - 1px)`;
  $("bar").setAttribute("aria-label", `${number(m.total)} of ${number(m.whole)} bytes taken`);
  const list = $("keys");
  KEYS.forEach(([look, key, name, value], i) => {
    let item = list.children[i];
    if (!item) {
      item = element("li");
      const label = element("span");
      label.append(word(key, name));
      item.append(element("i", undefined, look), label, element("b"));
      list.append(item);
    }
    const n = value(m);
    item.hidden = n === 0 && key !== "lanes";
    item.lastChild.textContent = number(n) + " B";
    item.lastChild.title = bytes(n);
  });
}

/* ---- the text ---- */

const T = {n: 0, first: 0, level: [], round: 0};

function drawTokens(flashes) {
  const box = $("tokens"), n = shownTokens(), f = S.f, lanes = f === null ? 1 : f.went.length;
  const end = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  const first = Math.max(0, n - SHOWN);
  if (first !== T.first || n < T.n) { box.textContent = ""; T.n = T.first = first; T.level = []; }
  const held = countHeld(), had = T.level.length > 0;
  let flashed = 0;
  const more = document.createDocumentFragment();
  for (let p = first; p < n; p++) {
    const h = held[p], level = h === 0 ? 0 : h === lanes ? LEVELS : 1 + Math.floor(h * (LEVELS - 1) / lanes);
    if (p >= T.n) {
      const b = element("b", f.text[p] === "" ? "\u200b" : f.text[p]);
      b.className = "k" + level + (p === f.nPrompt && p > 0 ? " first" : "");
      more.append(b);
    } else if (T.level[p - first] !== level) {
      const b = box.children[p - first], went = level < T.level[p - first];
      b.className = "k" + level + (p === f.nPrompt ? " first" : "");
      if (flashes && went && S.at === null && had && flashed++ < FLASHED) b.classList.add("went");
    }
    T.level[p - first] = level;
  }
  box.append(more);
  T.n = n;
  T.first = first;
  if (n === 0) box.textContent = f !== null && f.why ? f.why : "";
  if (end && S.at === null) box.scrollTop = box.scrollHeight;
  markToken();
  let sum = 0;
  for (const h of held) sum += h;
  $("held").textContent = n === 0 ? "" : `${number(sum)} of ${number(n * lanes)} entries held, ${percent(sum, n * lanes)}`;
}

function markToken() {
  const old = $("tokens").querySelector(".at"), now = $("tokens").children[S.token - T.first];
  if (old && old !== now) old.classList.remove("at");
  if (now && S.token >= 0) now.classList.add("at");
}

function roundName(r) {
  if (r === 0) return "before anybody watched";
  const e = S.events.find(e => e.epoch === S.f.epoch && e.round <= r && r <= e.round_last);
  return e ? `round ${r}, at ${number(e.at)} tokens, step ${number(e.step)}` : `round ${r}`;
}

function drawToken() {
  const box = $("token"), f = S.f, p = S.token;
  if (f === null || p < 0 || p >= shownTokens()) return;
  const round = shownRound(), heads = S.model.n_head_kv, gone = new Map();
  let has = 0;
  const grid = element("div", undefined, "holds");
  for (let h = 0; h < heads; h++) {
    const row = element("span");
    for (let l = 0; l < S.model.n_layer; l++) {
      const went = f.went[l * heads + h], cell = element("i");
      if (holds(went, p, round)) { cell.className = "has"; has++; }
      else gone.set(went[p], (gone.get(went[p]) || []).concat(`${l}/${h}`));
      cell.title = `layer ${l}, head ${h}: ${holds(went, p, round) ? "held" : "went " + roundName(went[p])}`;
      row.append(cell);
    }
    row.append(element("span", `\u00a0head ${h}`));
    grid.append(row);
  }
  const line = element("p");
  line.append(`Token ${number(p)} `, element("code", JSON.stringify(f.text[p])),
    ` is held by ${has} of ${f.went.length} lanes.`);
  const list = element("ul", undefined, "rounds");
  for (const [r, lanes] of [...gone].sort((a, b) => a[0] - b[0]))
    list.append(element("li", `${roundName(r)}: ${lanes.length === f.went.length ? "every lane"
      : "layer/head " + lanes.slice(0, 10).join(", ") + (lanes.length > 10 ? ` and ${lanes.length - 10} more` : "")}`));
  box.replaceChildren(line, grid, list);
}

function chooseToken(p, scroll) {
  const n = shownTokens();
  if (n === 0) return;
  S.token = Math.max(T.first, Math.min(n - 1, p));
  markToken();
  const b = $("tokens").children[S.token - T.first];
  if (scroll && b) b.scrollIntoView({block: "nearest"});
  redraw("token", "lanes");
}

/* ---- lanes ---- */

function drawGrid() {
  const grid = $("grid"), {n_layer: layers, n_head_kv: heads} = S.model;
  grid.replaceChildren();
  grid.style.gridTemplateColumns = `auto repeat(${layers}, minmax(11px, 1fr))`;
  grid.append(element("span", "layer", "side"));
  for (let l = 0; l < layers; l++) grid.append(element("span", layers > 30 && l % 2 ? "" : l));
  for (let h = 0; h < heads; h++) {
    grid.append(element("span", "head " + h, "side"));
    for (let l = 0; l < layers; l++) {
      const cell = element("button"), i = l * heads + h;
      cell.type = "button";
      cell.dataset.lane = i;
      cell.tabIndex = i === S.lane ? 0 : -1;
      grid.append(cell);
    }
  }
}

function chooseLane(i, focus) {
  const n = S.model.n_layer * S.model.n_head_kv;
  if (i < 0 || i >= n) return;
  S.lane = i;
  for (const cell of $("grid").querySelectorAll("button")) cell.tabIndex = +cell.dataset.lane === i ? 0 : -1;
  if (focus) $("grid").querySelector(`[data-lane="${i}"]`).focus();
  redraw("lanes");
}

// All of it, and over it the chosen token and lane.
function paint(canvas, lanes, rowHeight, chosen) {
  const f = S.f, n = shownTokens(), round = shownRound(), total = Math.max(1, f === null ? 1 : f.n);
  paintRows(canvas, lanes.map(went => ({shown: n, holds: p => holds(went, p, round)})), total, lanes.length * rowHeight);
  const c = canvas.getContext("2d");
  c.fillStyle = c.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
  if (S.token >= 0 && S.token < n) c.fillRect(Math.round((S.token + .5) * canvas.width / total), 0,
    Math.max(1, devicePixelRatio), canvas.height);
  if (chosen >= 0) {
    c.lineWidth = 2 * devicePixelRatio;
    c.strokeRect(0, chosen * rowHeight * devicePixelRatio, canvas.width, rowHeight * devicePixelRatio);
  }
}

function drawLanes() {
  const f = S.f, n = shownTokens(), round = shownRound(), heads = S.model.n_head_kv;
  if (f === null || f.went.length === 0) return;
  const kept = f.went.map(went => {
    let held = 0;
    for (let p = 0; p < n; p++) held += went[p] === HELD || went[p] > round;
    return held;
  });
  for (const cell of $("grid").querySelectorAll("button")) {
    const i = +cell.dataset.lane, name = `layer ${Math.floor(i / heads)}, head ${i % heads}`;
    cell.style.setProperty("--f", n > 0 ? kept[i] / n : 0);
    cell.setAttribute("aria-pressed", i === S.lane);
    cell.setAttribute("aria-label", `${name}: ${kept[i]} of ${n} positions kept`);
    cell.title = `${name}: ${number(kept[i])} of ${number(n)} kept`;
  }
  const lanes = f.went.length, row = lanes <= 16 ? 9 : lanes <= 64 ? 5 : lanes <= 160 ? 3 : 2;
  paint($("map"), f.went, row, S.lane);
  paint($("strip"), [f.went[S.lane]], 30, -1);
  $("lane").textContent = `Layer ${Math.floor(S.lane / heads)}, head ${S.lane % heads}: ` +
    `${number(kept[S.lane])} of ${number(n)} positions kept, ${percent(kept[S.lane], n)}`;
  $("last").textContent = number(Math.max(0, f.n - 1));
}

/* ---- rates, requests, log ---- */

const RATES = [
  ["generated", "tokens/s", "generated_tokens"], ["prompts read", "tokens/s", "prompt_tokens"],
  ["evicted", "entries/s", "evicted"], ["recalled", "entries/s", "recalled"],
];

function ratesOf(key) {
  const out = [];
  for (let i = 1; i < S.samples.length; i++) {
    const from = S.samples[Math.max(0, i - 5)], to = S.samples[i];
    out.push(to.time > from.time ? Math.max(0, (to[key] - from[key]) / (to.time - from.time)) : 0);
  }
  return out;
}

function spark(values) {
  const most = Math.max(1e-9, ...values);
  return values.map((v, i) => `${i ? "L" : "M"}${(i * 100 / (SAMPLES - 2)).toFixed(1)} ${(25 - 23 * v / most).toFixed(1)}`).join("");
}

function graph() {
  return svg("svg", {viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": true}, svg("path"));
}

function drawRates() {
  const tiles = $("tiles"), t = S.totals;
  RATES.forEach(([name, unit, key], i) => {
    let tile = tiles.children[i];
    if (!tile) {
      tile = element("div");
      tile.append(element("div", name, "name"), element("div", "", "value"));
      tile.append(graph());
      tiles.append(tile);
    }
    const values = ratesOf(key), last = values.length > 0 ? values[values.length - 1] : 0;
    tile.children[1].textContent = number(last) + " ";
    tile.children[1].append(element("span", unit, "quiet"));
    tile.querySelector("path").setAttribute("d", spark(values));
  });
  let read = 0, stored = 0;
  for (const r of S.requests) { read += r.read || 0; stored += r.stored || 0; }
  const part = S.policies && S.policies.read && stored > 0 ? `, ${percent(read, stored)} of stored entries read` : "";
  $("counts").textContent = `${number(t.steps)} steps, ${number(t.cached_tokens)} prompt tokens from cache${part}`;
}

function post(path) {
  return fetch(path, {method: "POST", headers: headers()}).then(r => {
    if (r.status === 401) askKey();
    return r.ok;
  }, () => false);
}

function makeRow() {
  const row = element("tr");
  for (let i = 0; i < 9; i++) row.append(element("td", undefined, i >= 2 && i <= 7 ? "n" : ""));
  const follow = element("button", "Follow", "small"), cancel = element("button", "Cancel", "small");
  follow.onclick = () => post(`kv/follow?id=${row.dataset.id}&answer=${row.dataset.answer}`);
  cancel.onclick = () => {
    cancel.disabled = true;
    cancel.textContent = "Cancelling";
    post(`kv/cancel?id=${row.dataset.id}`).then(ok => {
      if (ok) return;
      cancel.disabled = false;
      cancel.textContent = "Cancel";
    });
  };
  row.lastChild.append(follow, " ", cancel);
  return row;
}

const rows = new Map();

function drawRequests() {
  const seen = new Set(), body = $("rows");
  S.requests.forEach((r, i) => {
    const key = `${r.state === "parked" ? "slot" + r.slot : r.id}.${r.answer}`;
    if (!rows.has(key)) rows.set(key, makeRow());
    const row = rows.get(key), cell = row.children, here = S.f !== null && S.f.there && S.f.id === r.id && S.f.answer === r.answer;
    const words = [`${r.id}${r.answer ? "." + r.answer : ""}${r.slot >= 0 ? " · slot " + r.slot : ""}`,
      r.state, r.state === "reading" ? `${number(r.n_done)} / ${number(r.n_prompt)}` : number(r.n_prompt),
      number(r.n_cached), number(r.n_generated), r.entries === undefined ? "–" : number(r.entries),
      r.evicted === undefined ? "–" : number(r.evicted), bytes(r.held)];
    words.forEach((word, k) => { if (cell[k].textContent !== word) cell[k].textContent = word; });
    cell[7].title = number(r.held) + " B, and " + number(r.aside) + " B set aside";
    row.className = here ? "followed" : "";
    const [follow, cancel] = row.lastChild.querySelectorAll("button");
    row.dataset.id = r.id; // a slot's row is now of one request, then of another
    row.dataset.answer = r.answer;
    follow.setAttribute("aria-label", `Follow request ${r.id}`);
    cancel.setAttribute("aria-label", `Cancel request ${r.id}`);
    follow.hidden = r.entries === undefined || here;
    cancel.hidden = r.state === "parked";
    if (body.children[i] !== row) body.insertBefore(row, body.children[i] || null);
    seen.add(key);
  });
  for (const [key, row] of rows) if (!seen.has(key)) { row.remove(); rows.delete(key); }
  const t = S.totals;
  $("queue").textContent = `${t.running} running, ${t.waiting} waiting, ${number(t.done)} done` +
    (t.cancelled ? `, ${number(t.cancelled)} cancelled` : "") + (t.failed ? `, ${number(t.failed)} failed` : "");
}

function tell(e) {
  const who = `request ${e.id}${e.answer ? "." + e.answer : ""} at ${number(e.at)} tokens`;
  const where = e.from === undefined ? "" : `, positions ${number(e.from)} to ${number(e.to)}, ${e.lanes} lanes`;
  const freed = e.bytes > 0 ? `, ${bytes(e.bytes)} came free` : "";
  const name = e.round > 0 && e.kind === "round" ? `Round ${e.round}` : {round: "Round",
    overwrite: "Overwritten", recall: "Recall", share: "Shared"}[e.kind];
  const what = {round: "entries went", overwrite: "entries went", recall: "entries are back", share: "pages are shared"}[e.kind];
  return [name, `${who}: ${number(e.n)} ${what}${where}${freed}.`, e.why + "."];
}

function drawLog() {
  const list = $("log");
  if (S.events.length === 0) return;
  list.replaceChildren(...S.events.slice().reverse().map(e => {
    const item = element("li"), [name, what, why] = tell(e);
    item.append(element("b", name + " "), what + " ", element("span", why[0].toUpperCase() + why.slice(1), "why"));
    return item;
  }));
}

/* ---- replay ---- */

let playing = 0;

function drawReplay() {
  const range = $("frame"), last = Math.max(0, S.frames.length - 1);
  if (S.at !== null && !S.frames.includes(S.at)) S.at = S.frames[0] || null;
  range.max = last;
  range.value = S.at === null ? last : S.frames.indexOf(S.at);
  range.disabled = $("play").disabled = S.frames.length < 2;
  $("live").disabled = S.at === null;
  $("replay").classList.toggle("past", S.at !== null);
  $("play").textContent = playing ? "Pause" : "Replay";
  const f = S.at || S.frames[last];
  const words = f ? `step ${number(f[1])}, ${number(f[4])} tokens, ${f[5]} ${f[5] === 1 ? "round" : "rounds"}` : "no step yet";
  $("when").textContent = (S.at === null ? "live: " : "then: ") + words;
  range.setAttribute("aria-valuetext", words);
}

function show(frame) {
  S.at = frame;
  redraw("replay", "tokens", "lanes", "token", "memory");
}

function pause() {
  clearInterval(playing);
  playing = 0;
  redraw("replay");
}

function play() {
  if (playing) return pause();
  let i = S.at === null ? 0 : S.frames.indexOf(S.at);
  playing = setInterval(() => {
    if (i >= S.frames.length - 1) { pause(); return show(null); }
    show(S.frames[i++]);
  }, 80);
}

$("frame").oninput = e => {
  pause();
  const i = +e.target.value;
  show(i >= S.frames.length - 1 ? null : S.frames[i]);
};
$("play").onclick = play;
$("live").onclick = () => { pause(); show(null); };

/* ---- choosing ---- */

$("tokens").onclick = e => {
  if (e.target.parentNode === $("tokens")) chooseToken(T.first + [...$("tokens").children].indexOf(e.target), false);
};
$("tokens").onkeydown = e => {
  const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10}[e.key];
  const from = S.token < 0 ? T.first - 1 : S.token;
  if (by !== undefined) chooseToken(S.token < 0 ? T.first : from + by, true);
  else if (e.key === "Home") chooseToken(T.first, true);
  else if (e.key === "End") chooseToken(shownTokens() - 1, true);
  else return;
  e.preventDefault();
};
$("grid").onclick = e => { if (e.target.dataset.lane) chooseLane(+e.target.dataset.lane, true); };
$("grid").onkeydown = e => {
  const heads = S.model.n_head_kv, by = {ArrowRight: heads, ArrowLeft: -heads, ArrowDown: 1, ArrowUp: -1}[e.key];
  if (by === undefined) return;
  chooseLane(S.lane + by, true);
  e.preventDefault();
};
$("map").onclick = e => {
  if (S.f === null) return;
  chooseLane(Math.floor(e.offsetY * S.f.went.length / $("map").clientHeight), false);
  chooseToken(Math.floor(e.offsetX * S.f.n / $("map").clientWidth), true);
};
$("strip").onclick = e => { if (S.f !== null) chooseToken(Math.floor(e.offsetX * S.f.n / $("strip").clientWidth), true); };

