/*
 * compare.js - the same question to the budget and to the full cache, one after the other so that
 * neither takes the other's time. Both read the whole prompt and draw by the same seed.
 */
"use strict";

const DIFF_WORDS = 1500;

/* ---- words that differ ---- */

const wordsOf = text => text.match(/\S+/g) || [];

/* Which words of a and of b are in no longest common sequence. */
function differing(a, b) {
  const n = a.length, m = b.length, table = Array.from({length: n + 1}, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; i--) for (let k = m - 1; k >= 0; k--)
    table[i][k] = a[i] === b[k] ? table[i + 1][k + 1] + 1 : Math.max(table[i + 1][k], table[i][k + 1]);
  const inA = new Array(n).fill(true), inB = new Array(m).fill(true);
  for (let i = 0, k = 0; i < n && k < m;) {
    if (a[i] === b[k]) { inA[i++] = false; inB[k++] = false; }
    else if (table[i + 1][k] >= table[i][k + 1]) i++;
    else k++;
  }
  return [inA, inB];
}

/* The texts that a reader sees of an answer, in order; names of buttons are none. */
function textsOf(box) {
  const walk = document.createTreeWalker(box, NodeFilter.SHOW_TEXT), texts = [];
  while (walk.nextNode()) if (!walk.currentNode.parentNode.closest("button")) texts.push(walk.currentNode);
  return texts;
}

function markWords(texts, differs) {
  let i = 0;
  for (const text of texts) text.replaceWith(...text.data.split(/(\s+)/).filter(p => p !== "").map(part =>
    /\S/.test(part) && differs[i++] ? element("mark", part) : part));
}

/* ---- the two sides ---- */

const FACTS = [["memory", "Memory"], ["first", "First word after"], ["rate", "Tokens/s"], ["total", "Together"]];

function makeSide(name, says, full) {
  const box = element("div", undefined, "one" + (full ? " full" : "")), head = element("h3", name);
  const answer = element("div", undefined, "answer"), end = element("div"), facts = element("div", undefined, "facts");
  const bar = element("div", undefined, "bar"), fill = element("div", undefined, full ? "c-pinned" : "c-live");
  head.append(element("small", says));
  bar.setAttribute("aria-hidden", "true");
  bar.append(fill);
  answer.tabIndex = 0;
  answer.setAttribute("role", "group");
  answer.setAttribute("aria-label", `Answer of ${name.toLowerCase()}`);
  const value = {};
  for (const [key, title] of FACTS) {
    const pair = element("div");
    value[key] = element("b", "–");
    pair.append(element("span", title), value[key]);
    facts.append(pair);
  }
  end.append(bar, facts);
  box.append(head, answer, end);
  $("sides").append(box);
  return {answer, value, fill, text: "", bytes: 0, name};
}

function showBytes(sides) {
  const most = Math.max(1, ...sides.map(s => s.bytes));
  for (const s of sides) {
    s.fill.style.width = 100 * s.bytes / most + "%";
    if (s.bytes > 0) s.value.memory.textContent = bytes(s.bytes);
  }
}

async function runSide(side, sides, messages, budget, seed, signal) {
  const [path, body] = request(messages, budget), begin = performance.now(), took = () => (performance.now() - begin) / 1000;
  const reading = element("div", "Waiting for the model", "reading");
  let n = 0;
  side.answer.replaceChildren(reading);
  await stream([path, {...body, seed, cache_prompt: false}], signal, d => {
    const own = ownRequest();
    if (d.progress && n === 0) { if (!reading.firstElementChild) reading.textContent = ""; drawReading(reading, d.progress); }
    if (d.text) {
      if (n++ === 0) { side.value.first.textContent = seconds(took()); reading.remove(); }
      side.text += d.text;
      drawMarkdown(side.answer, side.text);
    }
    if (d.usage && d.usage.pith && d.usage.pith.kv_bytes) {
      side.bytes = d.usage.pith.kv_bytes + d.usage.pith.tier_bytes;
      side.exact = true;
    } else if (own && n > 0 && !side.exact) side.bytes = own.held + own.tier;
    if (d.timings) side.value.rate.textContent = d.timings.predicted_per_second.toFixed(1);
    side.value.total.textContent = seconds(took());
    showBytes(sides);
  });
}

function judge([few, full]) {
  const texts = [few, full].map(s => textsOf(s.answer)), [a, b] = texts.map(list => list.flatMap(t => wordsOf(t.data)));
  const ratio = full.bytes / Math.max(1, few.bytes);
  const memory = few.bytes > 0 && full.bytes > 0 ? ratio >= 1.05 ? `, in ${ratio.toFixed(1)} times less memory`
    : ratio > 1 / 1.05 ? ", in as much memory" : `, in ${(1 / ratio).toFixed(1)} times more memory` : "";
  if (a.length > DIFF_WORDS || b.length > DIFF_WORDS) { $("verdict").textContent = `The answers are too long to compare word by word${memory}.`; return; }
  const [inA, inB] = differing(a, b), n = Math.max(inA.filter(Boolean).length, inB.filter(Boolean).length);
  markWords(texts[0], inA);
  markWords(texts[1], inB);
  $("verdict").textContent = n === 0 ? `The same answer word for word${memory}.`
    : `${number(n)} of ${number(Math.max(a.length, b.length))} words ${n === 1 ? "differs" : "differ"}${memory}.`;
}

async function compare(text) {
  const messages = [...chat.messages, {role: "user", content: text}], seed = crypto.getRandomValues(new Uint32Array(1))[0];
  const chosen = chosenBudget(), few = chosen.text === "none" ? stops.find(s => s.text === null) : chosen;
  $("compare").hidden = false;
  $("compare-asked").textContent = text;
  $("compare-asked").scrollTop = 1e6; // questions end long texts
  $("verdict").textContent = "First the budget, then the full cache.";
  $("sides").replaceChildren();
  const sides = [makeSide("Budget", few.says, false), makeSide("Full cache", "all of the text", true)];
  $("compare").scrollIntoView({block: "nearest"});
  busy(new AbortController());
  $("compare-stop").disabled = false;
  beside = "-beside"; // the panels follow the two, and then the chat again
  watch();
  try {
    for (const [i, budget] of [few.text, "none"].entries()) {
      sides[i].running = true;
      await runSide(sides[i], sides, messages, budget, seed, asking.signal);
      sides[i].running = false;
    }
    judge(sides);
  } catch (e) {
    const side = sides.find(s => s.running) || sides[1];
    $("verdict").textContent = e.name === "AbortError" ? "Stopped." : "One of the two could not be answered.";
    if (e.name !== "AbortError") side.answer.replaceChildren(element("span", e.message, "error"));
  }
  $("compare-stop").disabled = true;
  busy(null);
  beside = "";
  if (chat.messages.length > 0) watch();
}

$("both").onclick = () => {
  const text = $("words").value;
  if (asking !== null) return;
  if (text.trim() === "") { $("words").focus(); return; }
  compare(text);
};
$("compare-stop").onclick = () => { if (asking) asking.abort(); };
$("compare-close").onclick = () => {
  if (asking && !$("compare-stop").disabled) asking.abort();
  $("compare").hidden = true;
  $("words").focus();
};
