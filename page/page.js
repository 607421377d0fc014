/*
 * page.js - the connection to the server: the stream of documents, the key, and the start.
 */
"use strict";

let watching = null, wait = 1000;
let watched = ""; // the name of the conversation that is

function say(word, look) {
  $("state").className = "state " + look;
  $("state").lastChild.textContent = word;
}

function askKey() {
  say("a key is needed", "bad");
  if (!$("door").open) $("door").showModal();
}

$("door-form").onsubmit = () => {
  S.key = $("key").value.trim();
  sessionStorage.setItem("pith-key", S.key);
  watch();
};

async function watch() {
  if (watching) watching.abort();
  const mine = watching = new AbortController();
  watched = session();
  try {
    const r = await fetch("kv/events", {headers: headers(), signal: mine.signal});
    if (r.status === 401) return askKey();
    if (!r.ok) throw new Error();
    say("live", "live");
    wait = 1000;
    await readEvents(r, data => read(JSON.parse(data)));
  } catch (e) {
    if (mine.signal.aborted) return;
    if (e instanceof SyntaxError || e instanceof TypeError && e.message !== "network error") console.error(e);
  }
  if (mine.signal.aborted) return;
  say("no answer, trying again", "bad");
  setTimeout(() => { if (watching === mine && !document.hidden) watch(); }, wait);
  wait = Math.min(10000, wait * 2);
}

// Nobody looks: the server need not gather anything.
let leave = 0;
document.onvisibilitychange = () => {
  clearTimeout(leave);
  if (document.hidden) leave = setTimeout(() => { watching.abort(); say("paused", ""); }, 5000);
  else if (watching.signal.aborted) watch();
};
matchMedia("(prefers-color-scheme: dark)").onchange = () => redraw("lanes");
addEventListener("resize", () => redraw("lanes"));
for (let k = 0; k <= LEVELS; k++) $("scale").append(element("i", undefined, "k" + k));

openChat(chat);
