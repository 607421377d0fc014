/*
 * chat.js - the conversation: what is asked, how the answer comes in, and what may be done with each
 * message. The server keeps the conversation under its name; the texts are the browser's.
 */
"use strict";

let asking = null; // an AbortController while an answer comes

/* ---- the budget ---- */

const SHARES = [5, 10, 15, 20, 25, 30, 40, 50, 75], ENTRIES = [64, 128, 256, 512, 1024, 2048, 4096, 8192];
let stops = [];    // of the slider: {text: what is sent, null: nothing; says}

function budgetStops(rules) {
  const full = {text: "none", says: "all, the full cache"};
  if (!rules) return [{text: null, says: "all, the full cache"}];
  const share = rules.budget_unit === "share", own = share ? 100 * rules.budget : rules.budget;
  const says = n => rules.budget_unit === "bytes" ? bytes(n) : share ? `${+n.toFixed(2)} % of the text` : `${number(n)} entries`;
  const list = rules.budget_unit === "bytes" ? [] : share ? SHARES : ENTRIES.filter(n => n >= own / 8 && n <= own * 8);
  const all = [...new Set([...list, own])].sort((a, b) => a - b);
  return [...all.map(n => ({text: n === own ? null : share ? n + "%" : "" + n, says: says(n)})), full];
}

function drawBudget() {
  stops = budgetStops(S.rules);
  const wanted = readStored("pith-budget", null), i = stops.findIndex(s => s.text === wanted);
  const slider = $("budget");
  slider.max = stops.length - 1;
  slider.value = i >= 0 ? i : stops.findIndex(s => s.text === null);
  slider.disabled = stops.length < 2;
  $("both").disabled = stops.length < 2;
  $("both").title = stops.length < 2 ? "This server keeps the full cache. Start it with --keep to compare." : "The same question to the full cache, too";
  sayBudget();
}

const chosenBudget = () => stops[+$("budget").value] || {text: null, says: ""};

function sayBudget() {
  const says = chosenBudget().says;
  $("budget-says").textContent = says;
  $("budget").setAttribute("aria-valuetext", says);
}

$("budget").oninput = () => { sayBudget(); writeStored("pith-budget", chosenBudget().text); };

/* ---- messages on the page ---- */

const button = (name, act) => {
  const b = element("button", name);
  b.type = "button";
  b.onclick = () => act(b);
  return b;
};

function addSay(m) {
  const say = element("div", undefined, "say " + m.role), what = element("div", undefined, "what");
  const acts = element("div", undefined, "acts");
  say.append(element("div", m.role === "user" ? "You" : S.model.name || "Model", "who"), what, acts);
  const empty = $("talk").querySelector(".empty");
  if (empty) empty.remove();
  acts.append(button("Copy", b => copyText(m.content, b)));
  if (m.role === "user") acts.append(button("Edit", () => edit(m, say)));
  else acts.append(button("Again", () => again(m)));
  $("talk").append(say);
  drawSay(m, say);
  if (m.role === "user") say.children[1].scrollTop = 1e6; // questions end long texts
  return say;
}

function drawSay(m, say) {
  const what = say.children[1];
  if (m.role === "user") what.textContent = m.content;
  else drawMarkdown(what, m.content);
  if (m.thought) {
    let thought = say.querySelector(".thought");
    if (!thought) what.before(thought = element("div", "", "thought"));
    thought.textContent = m.thought;
  }
  drawDetails(m, say);
}

/* ---- what an answer cost ---- */

const WHY = {
  new: () => "Nothing in memory began like it.",
  differs: at => `From token ${at} on it differs from what is in memory.`,
  policy: at => `It differs from token ${at} on, and the policy, or the model's layers, allow no way back to there.`,
  short: at => `It differs from token ${at} on, which is too early for a copy of what is in memory.`,
  dropped: () => "This conversation had been dropped, since others needed its memory.",
  salt: () => "What is in memory belongs to another cache_salt.",
  off: () => "The request asked for nothing that was in memory.",
};

/* What the server says of an answer in `usage`, as sentences. docs/server.md names the fields. */
function sentencesOf({usage, timings, seconds: s}) {
  const p = usage.pith || {}, cached = p.cached_tokens || 0, read = p.read_tokens ?? usage.prompt_tokens - cached, list = [];
  const from = p.cache_from === "conversation" ? "were in memory from this conversation" : "were in memory, since an earlier prompt begins alike";
  list.push(cached > 0 && read === 0 ? `All ${number(cached)} tokens of the prompt ${from}.` : cached > 0 ? `${number(cached)} of the prompt's ${number(cached + read)} tokens ${from}; ${number(read)} were read.`
    : `All ${number(read)} tokens of the prompt were read.`);
  if (WHY[p.cache_why]) list[0] += " " + WHY[p.cache_why](number(p.cache_differs_at || 0));
  const rate = timings && timings.predicted_per_second > 0 ? `, ${timings.predicted_per_second.toFixed(1)} tokens/s` : "";
  list.push(`The answer has ${number(usage.completion_tokens)} tokens and took ${seconds(s)}${rate}.`);
  if (p.max_tokens) list.push(`It could have ${number(p.max_tokens)} tokens at most: there was no room for more.`);
  if (p.kv_bytes) {
    const own = p.kv_bytes + p.tier_bytes;
    list.push(`It ended with ${bytes(own)} of memory, where the full cache takes ${inUnit(p.full_bytes, own)}.`);
  }
  if (p.evicted_entries) list.push(`${number(p.evicted_entries)} entries were evicted so far and ${number(p.kept_entries)} are held` +
    (p.recalled_entries ? `; recall has ${number(p.recalled_entries)} back.` :
      p.recalled_tokens ? `; ${number(p.recalled_tokens)} tokens of their text were read again.` : "."));
  return list;
}

function drawDetails(m, say) {
  const acts = say.querySelector(".acts");
  if (!m.cost || !m.cost.usage || acts.querySelector("details")) return;
  const details = element("details"), list = element("ul");
  list.append(...sentencesOf(m.cost).map(text => element("li", text)));
  details.append(element("summary", "Details"), list);
  acts.append(details);
}

function atEnd(change) {
  const talk = $("talk"), end = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60;
  change();
  if (end) talk.scrollTop = talk.scrollHeight;
}

function drawTalk() {
  $("talk").replaceChildren();
  for (const m of chat.messages) addSay(m);
  if (chat.messages.length === 0) $("talk").append(element("p", "Ask something, and watch what the model keeps of it.", "empty"));
  $("talk").scrollTop = $("talk").scrollHeight;
}

/* What follows a message goes, and the message comes anew. */
function cutAt(m) {
  const i = chat.messages.indexOf(m);
  if (asking || i < 0) return false;
  chat.messages.splice(i);
  drawTalk();
  return true;
}

function again(m) {
  const before = chat.messages[chat.messages.indexOf(m) - 1];
  if (!before || before.role !== "user" || !cutAt(m)) return;
  answer();
}

function edit(m, say) {
  if (asking || say.querySelector(".edit")) return;
  const box = element("form", undefined, "edit"), text = element("textarea"), row = element("div", undefined, "row");
  const save = element("button", "Send", "main small"), leave = button("Leave it", () => { drawTalk(); });
  leave.className = "small";
  save.type = "submit";
  text.value = m.content;
  text.setAttribute("aria-label", "The message");
  box.append(text, row);
  row.append(save, leave);
  box.onsubmit = e => {
    e.preventDefault();
    const words = text.value;
    if (words.trim() !== "" && cutAt(m)) ask(words);
  };
  text.onkeydown = e => { if (e.key === "Escape") { drawTalk(); $("talk").focus(); } };
  say.querySelector(".what").replaceChildren(box);
  say.querySelector(".acts").hidden = true;
  text.focus();
}

/* ---- asking ---- */

const headers = () => ({...(S.key ? {Authorization: "Bearer " + S.key} : {}), "X-Session-ID": session()});

function withSystem(messages) {
  const list = messages.map(({role, content}) => ({role, content})), system = $("system").value.trim();
  return system ? [{role: "system", content: system}, ...list] : list;
}

/* [path, body] that asks for an answer to the messages. */
function request(messages, budget) {
  const b = {stream: true, max_tokens: Math.max(1, +$("most").value || 512), temperature: Math.max(0, +$("heat").value || 0),
    stream_options: {include_usage: true}, return_progress: true};
  if (budget !== null) b.pith = {budget};
  if ($("mode").value === "chat") return ["v1/chat/completions", {...b, messages: withSystem(messages)}];
  return ["v1/completions", {...b, prompt: messages[messages.length - 1].content}];
}

// Calls take with each event's data, until it returns false.
async function readEvents(response, take) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    text += decoder.decode(value, {stream: true});
    const parts = text.split(/\r?\n\r?\n/);
    text = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter(l => l.startsWith("data:")).map(l => l.slice(5).trimStart()).join("\n");
      if (data !== "" && take(data) === false) return;
    }
  }
}

async function refused(response) {
  if (response.status === 401) askKey();
  try { return (await response.json()).error.message; } catch { return `The server said ${response.status}.`; }
}

/* Asks, and calls on(what came): text, thought, progress, usage and timings. Throws what went wrong. */
async function stream([path, body], signal, on) {
  const r = await fetch(path, {method: "POST", signal, body: JSON.stringify(body),
    headers: {"Content-Type": "application/json", ...headers()}});
  if (!r.ok) throw new Error(await refused(r));
  await readEvents(r, data => {
    if (data === "[DONE]") return false;
    const d = JSON.parse(data), choice = d.choices && d.choices[0], delta = choice && choice.delta || {};
    if (d.error) throw new Error(d.error.message);
    on({text: delta.content || choice && choice.text || "", thought: delta.reasoning_content || "",
      progress: d.prompt_progress, usage: d.usage, timings: d.timings});
  });
}

const seconds = s => s < 9.95 ? s.toFixed(1) + " s" : s < 90 ? Math.round(s) + " s" : `${Math.round(s / 60)} min`;

/* How far a prompt was read, in an element that goes with the first word. */
function drawReading(box, p) {
  const done = p.processed - p.cache, rate = p.time_ms > 0 ? done * 1000 / p.time_ms : 0;
  if (!box.firstChild) box.append(element("span"), element("progress"));
  const [says, bar] = box.children;
  bar.max = p.total;
  bar.value = p.processed;
  bar.setAttribute("aria-label", "The prompt is read");
  says.textContent = `Reading ${number(p.processed)} of ${number(p.total)} tokens` +
    (rate > 0 ? `, ${number(rate)} tokens/s, ${seconds((p.total - p.processed) / rate)} left` : "") +
    (p.cache > 0 ? `; ${number(p.cache)} were there` : "");
}

function speedOf(usage, timings, n, s) {
  const count = usage ? usage.completion_tokens : n;
  if (!(count > 0)) return "";
  const rate = timings && timings.predicted_per_second > 0 ? `, ${timings.predicted_per_second.toFixed(1)} tokens/s` : "";
  return `${number(count)} tokens in ${s.toFixed(1)} s${rate}`;
}

function busy(controller) {
  asking = controller;
  $("send").disabled = controller !== null;
  $("both").disabled = controller !== null || stops.length < 2;
  $("stop").disabled = controller === null;
}

/* The answer to what was said so far. */
async function answer() {
  const mine = chat, m = {role: "assistant", content: ""}, begin = performance.now(), last = {};
  mine.system = $("system").value.trim();
  const before = mine.messages.slice();
  mine.messages.push(m);
  keepChat();
  const say = addSay(m), reading = element("div", "Waiting for the model", "reading");
  say.querySelector(".acts").hidden = true;
  say.querySelector(".what").before(reading);
  $("talk").scrollTop = $("talk").scrollHeight;
  busy(new AbortController());
  if (watched !== session()) watch();
  let n = 0, due = false;
  const show = () => { due = false; atEnd(() => drawSay(m, say)); };
  try {
    await stream(request(before, chosenBudget().text), asking.signal, d => {
      if (d.progress && n === 0) { if (!reading.firstElementChild) reading.textContent = ""; drawReading(reading, d.progress); }
      if (d.usage) last.usage = d.usage;
      if (d.timings) last.timings = d.timings;
      if (d.thought) { reading.remove(); m.thought = (m.thought || "") + d.thought; }
      if (d.text) { reading.remove(); m.content += d.text; n++; }
      if ((d.text || d.thought) && !due) { due = true; requestAnimationFrame(show); }
    });
  } catch (e) {
    if (e.name !== "AbortError") say.append(element("div", e.message, "error"));
    else say.append(element("span", " (stopped)", "quiet"));
  }
  reading.remove();
  if (last.usage) m.cost = {...last, seconds: (performance.now() - begin) / 1000};
  show();
  say.querySelector(".acts").hidden = false;
  $("speed").textContent = speedOf(last.usage, last.timings, n, (performance.now() - begin) / 1000);
  if (m.content === "" && !m.thought) mine.messages.splice(mine.messages.indexOf(m), 1);
  if (mine === chat) keepChat();
  else if (mine.messages.length > 0) writeChats([mine, ...readChats().filter(c => c.id !== mine.id)]);
  busy(null);
}

function ask(text) {
  const m = {role: "user", content: text};
  chat.messages.push(m);
  addSay(m);
  return answer();
}

$("ask").onsubmit = e => {
  e.preventDefault();
  const text = $("words").value;
  if (asking !== null || text.trim() === "") return;
  $("words").value = "";
  ask(text);
};
$("words").onkeydown = e => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); $("ask").requestSubmit(); }
};
$("stop").onclick = () => { if (asking) asking.abort(); };
$("anew").onclick = () => { openChat(freshChat()); $("words").focus(); };
