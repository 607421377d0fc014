/*
 * view.js - what the server says of the KV memory: documents are read into S, which draw.js draws.
 * docs/page.md describes them; src/serve/view/view_json.c writes them.
 */
"use strict";

const HELD = 65535;      // a note of a position: not gone
const LEVELS = 8;        // of colour
const SHOWN = 12000;     // tokens that are drawn, the last ones
const FLASHED = 3000;    // tokens that flash at a time
const FRAMES = 200, EVENTS = 200, SAMPLES = 60;

/* ---- state ---- */

const S = {
  model: {name: "", n_layer: 0, n_head_kv: 0}, rules: null, memory: null, totals: null,
  requests: [], events: [], frames: [], samples: [],
  f: null,        // the followed sequence
  at: null,       // the frame that is shown; null: live
  lane: 0, token: -1, key: sessionStorage.getItem("pith-key") || "",
};
const dirty = new Set();

function redraw(...parts) {
  if (dirty.size === 0) requestAnimationFrame(draw);
  for (const part of parts) dirty.add(part);
}

function bytes(n) {
  if (n < 1024) return n + " B";
  let unit = -1;
  do { n /= 1024; unit++; } while (n >= 1024 && unit < 3);
  return n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0) + " " + ["KiB", "MiB", "GiB", "TiB"][unit];
}

/* ---- documents ---- */

// "12 3:7 40": 12 held, 3 that went at round 7, 40 held.
function readLane(text, cap) {
  const went = new Uint16Array(cap).fill(HELD);
  let p = 0;
  for (const run of text === "" ? [] : text.split(" ")) {
    const [n, round] = run.split(":");
    if (round !== undefined) went.fill(+round, p, p + +n);
    p += +n;
  }
  return went;
}

function readFollowed(d) {
  if (d === null) return null;
  const cap = Math.max(1024, d.n_token * 2);
  return {epoch: d.epoch, id: d.id, answer: d.answer, there: d.there, n: d.n_token,
    nPrompt: d.n_prompt, round: d.round, text: d.text.slice(), cap: cap, why: d.why,
    went: d.lanes.map(lane => readLane(lane, cap))};
}

function growTo(f, n) {
  if (n <= f.cap) return;
  f.cap = 2 * n;
  f.went = f.went.map(old => {
    const went = new Uint16Array(f.cap).fill(HELD);
    went.set(old);
    return went;
  });
}

// Places are absolute, so that reading something twice changes nothing.
function updateFollowed(d) {
  const f = S.f;
  if (d === null) return;
  if (d.lanes || f === null || f.epoch !== d.epoch) {
    if (!d.lanes) return;
    S.f = readFollowed(d);
    S.token = -1;
    redraw("new");
    return;
  }
  growTo(f, d.n_token);
  for (let i = 0; i < d.text.length; i++) f.text[d.text_from + i] = d.text[i];
  for (const i in d.whole) { f.went[i] = readLane(d.whole[i], f.cap); redraw("round"); }
  for (const i in d.gone) {
    for (const run of d.gone[i] === "" ? [] : d.gone[i].split(" ")) {
      const [place, round] = run.split(":"), [from, n] = place.split("+");
      f.went[i].fill(+round, +from, +from + +n);
    }
    redraw("round");
  }
  Object.assign(f, {n: d.n_token, nPrompt: d.n_prompt, round: d.round, id: d.id, answer: d.answer,
    there: d.there});
}

function merge(list, more, most) {
  for (const item of more) {
    const number = Array.isArray(item) ? item[0] : item.number;
    const same = list.findIndex(old => (Array.isArray(old) ? old[0] : old.number) === number);
    if (same >= 0) list[same] = item; else list.push(item);
  }
  list.splice(0, Math.max(0, list.length - most));
}

function read(d) {
  if (d.type === "snapshot") {
    S.model = d.model; S.rules = d.rules; S.policies = d.policies;
    S.events = []; S.frames = []; S.samples = [];
    S.f = readFollowed(d.followed);
    redraw("new", "name");
  } else updateFollowed(d.followed);
  const steps = d.frames.length > 0;
  S.memory = d.memory; S.totals = d.totals; S.requests = d.requests;
  merge(S.events, d.events, EVENTS);
  merge(S.frames, d.frames, FRAMES);
  S.samples.push({time: d.time, ...d.totals});
  S.samples.splice(0, Math.max(0, S.samples.length - SAMPLES));
  redraw("memory", "requests", "rates", "replay");
  if (d.events.length > 0 || d.type === "snapshot") redraw("log");
  if (S.at === null && (steps || d.followed)) redraw("tokens", "lanes");
}

/* ---- what is held, now or in a frame ---- */

const shownTokens = () => S.f === null ? 0 : S.at === null ? S.f.n
  : S.at[3] === S.f.epoch ? Math.min(S.at[4], S.f.n) : 0;
const shownRound = () => S.at === null ? HELD : S.at[5];
const holds = (went, p, round) => went[p] === HELD || went[p] > round;

function countHeld() {
  const n = shownTokens(), round = shownRound(), held = new Uint16Array(n);
  if (S.f !== null) for (const went of S.f.went)
    for (let p = 0; p < n; p++) held[p] += went[p] === HELD || went[p] > round;
  return held;
}

