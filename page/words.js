/*
 * words.js - Pith's own words, and those of the field that few know: they explain themselves on hover
 * and focus. One tip is shown at a time; Escape closes it.
 */
"use strict";

const WORDS = {
  lane: "The cache of one layer and one KV head. Each lane may keep other tokens.",
  entry: "The key and the value of one token in one lane: what the model looks back at.",
  evicted: "Entries that the keep policy dropped, since their lanes were full.",
  cached: "Tokens of the prompt that were in memory already, and were not read again.",
  round: "One eviction: each lane that has outgrown its budget is brought back to it.",
  budget: "How many entries a lane keeps: a number, or a share of all tokens.",
  slack: "How far a lane may outgrow its budget before a round runs. Rounds are rarer with more slack.",
  guest: "An evicted entry that recall brought back, because the last question looked for it.",
  tier: "Where recall keeps evicted entries, so that they can come back: in memory or in a file.",
  recall: "Brings evicted entries back when a question needs them.",
  pinned: "Entries that the policy never evicts: the first ones, and a pinned prompt.",
  live: "Entries that are held now and may be evicted later.",
  rest: "Room in pages that no entry fills yet. Memory is given out in pages.",
  page: "A block of entries of one layer. Lanes take memory page by page.",
  full: "The cache of a model without a policy: every token in every lane, for as long as the text is.",
  saved: "What the full cache of the same tokens would take more.",
  lanes: "Pages of the entries that all conversations hold, cached and parked ones included.",
  guests: "Pages of evicted entries that recall brought back.",
  stored: "What recall keeps of evicted text in memory.",
  states: "What recurrent layers remember of each text.",
  tables: "Lists of pages and tokens, and what finds evicted entries again.",
  marks: "Numbers beside entries, which some keep policies choose by.",
  remembered: "What policies remember of each text: last queries, counts, and the next token's odds.",
  drafter: "The lanes and buffers of the model that proposes tokens.",
  drafts: "Where tokens that may come next are looked up.",
  work: "Buffers of rounds and recalls, as long as the longest lane.",
  idle: "Pages that were in use before. The next tokens take them first.",
  prefixes: "Pages of earlier prompts. Requests that begin alike use them again.",
  swapped: "Pages of requests that wait in host memory for their turn.",
  shared: "Of the pages in use, those that several requests have together.",
  peak: "The most pages that were ever in use since the server started.",
};

let tipOf = null;

function showTip(word) {
  const tip = $("tip"), at = word.getBoundingClientRect();
  if (tipOf) tipOf.removeAttribute("aria-describedby");
  tipOf = word;
  tip.textContent = WORDS[word.dataset.word];
  tip.hidden = false;
  word.setAttribute("aria-describedby", "tip");
  const left = Math.max(8, Math.min(at.left, innerWidth - tip.offsetWidth - 8));
  const below = at.bottom + tip.offsetHeight + 12 < innerHeight;
  tip.style.left = left + scrollX + "px";
  tip.style.top = (below ? at.bottom + 6 : at.top - tip.offsetHeight - 6) + scrollY + "px";
}

function hideTip() {
  if (tipOf) tipOf.removeAttribute("aria-describedby");
  tipOf = null;
  $("tip").hidden = true;
}

/* A word that explains itself. */
function word(key, text) {
  const e = element("button", text === undefined ? key : text, "word");
  e.type = "button";
  e.dataset.word = key;
  return e;
}

for (const span of document.querySelectorAll("span[data-word]"))
  span.replaceWith(word(span.dataset.word, span.textContent));

const wordAt = target => target instanceof Element ? target.closest(".word") : null;
document.addEventListener("mouseover", e => {
  const at = wordAt(e.target);
  if (at) showTip(at);
  else if (tipOf && tipOf !== document.activeElement && !$("tip").contains(e.target)) hideTip();
});
document.addEventListener("focusin", e => { if (wordAt(e.target)) showTip(wordAt(e.target)); });
document.addEventListener("focusout", e => { if (wordAt(e.target)) hideTip(); });
document.addEventListener("click", e => { if (wordAt(e.target)) showTip(wordAt(e.target)); });
document.addEventListener("keydown", e => { if (e.key === "Escape" && tipOf) { hideTip(); e.stopPropagation(); } });
addEventListener("scroll", () => {
  if (tipOf && tipOf === document.activeElement) showTip(tipOf);
  else if (tipOf) hideTip();
}, true);
