/*
 * store.js - chats in the browser's storage: the last 40, as far as there is room. A tab has a name
 * of its own, and so has each chat in it: the server keeps the conversation of that name.
 */
"use strict";

const CHATS = 40, CHATS_BYTES = 3000000;

const randomName = () => [...crypto.getRandomValues(new Uint8Array(8))].map(n => n.toString(16).padStart(2, "0")).join("");

function readStored(key, absent) {
  try { return JSON.parse(localStorage.getItem(key)) ?? absent; } catch { return absent; }
}

function writeStored(key, value) {
  try { localStorage.setItem(key, JSON.stringify(value)); return true; } catch { return false; }
}

/* ---- the tab ---- */

function tabValue(key, make) {
  let value = sessionStorage.getItem(key);
  if (value === null) sessionStorage.setItem(key, value = make());
  return value;
}

/* A tab that another was copied from is another: only a reload keeps the name. */
const arrived = performance.getEntriesByType("navigation")[0];
if (arrived && arrived.type === "navigate") sessionStorage.removeItem("pith-tab");
const tab = tabValue("pith-tab", randomName);
let beside = ""; // added to the name while two answers are compared
const session = () => `page-${tab}-${chat.id}${beside}`;

/* ---- chats ---- */

const freshChat = () => ({id: randomName(), title: "", when: Date.now(), system: "", messages: []});
const isChat = c => c && typeof c.id === "string" && Array.isArray(c.messages)
  && c.messages.every(m => m && typeof m.role === "string" && typeof m.content === "string");
const readChats = () => { const all = readStored("pith-chats", []); return Array.isArray(all) ? all.filter(isChat) : []; };

function writeChats(all) {
  all = all.slice(0, CHATS);
  while (all.length > 1 && JSON.stringify(all).length > CHATS_BYTES) all.pop();
  while (!writeStored("pith-chats", all) && all.length > 0) all.pop();
  drawShelf();
}

function keepChat() {
  if (chat.messages.length === 0) return;
  const first = chat.messages.find(m => m.role === "user");
  chat.title = (first ? first.content : "").replace(/\s+/g, " ").trim().slice(0, 60) || "Chat";
  chat.when = Date.now();
  writeChats([chat, ...readChats().filter(c => c.id !== chat.id)]);
  $("title").textContent = chat.title;
}

function dropChat(id) {
  writeChats(readChats().filter(c => c.id !== id));
  if (id === chat.id) openChat(freshChat());
}

function openChat(next) {
  if (asking) asking.abort();
  chat = next;
  sessionStorage.setItem("pith-chat", chat.id);
  $("title").textContent = chat.title || "Chat";
  $("system").value = chat.system || "";
  drawTalk();
  drawShelf();
  watch();
}

let chat = readChats().find(c => c.id === sessionStorage.getItem("pith-chat")) || freshChat();
sessionStorage.setItem("pith-chat", chat.id);

/* ---- the shelf ---- */

function drawShelf() {
  const all = readChats();
  $("history").replaceChildren(...all.map(c => {
    const item = element("li"), open = element("button", c.title || "Chat", "open"), drop = element("button", "Delete", "small");
    open.type = drop.type = "button";
    open.setAttribute("aria-current", c.id === chat.id);
    open.title = new Date(c.when).toLocaleString();
    open.onclick = () => { if (c.id !== chat.id) openChat(c); showShelf(false); };
    drop.setAttribute("aria-label", `Delete the chat ${c.title}`);
    drop.onclick = () => dropChat(c.id);
    item.append(open, drop);
    return item;
  }));
  if (all.length === 0) $("history").append(element("li", "No chat yet.", "quiet"));
  $("save-text").disabled = $("save-json").disabled = chat.messages.length === 0;
}

function showShelf(on) {
  $("shelf").hidden = !on;
  $("chats").setAttribute("aria-expanded", on);
}

$("chats").onclick = () => showShelf($("shelf").hidden);
$("shelf").onkeydown = e => { if (e.key === "Escape") { showShelf(false); $("chats").focus(); } };
addEventListener("storage", e => { if (e.key === "pith-chats") drawShelf(); });

/* ---- a chat as a file ---- */

function chatAsText(c) {
  const parts = [`# ${c.title}`];
  if (c.system) parts.push(`**System:** ${c.system}`);
  for (const m of c.messages) parts.push(`## ${m.role === "user" ? "You" : "Model"}`, m.content);
  return parts.join("\n\n") + "\n";
}

function chatAsJson(c) {
  const system = c.system ? [{role: "system", content: c.system}] : [];
  return JSON.stringify({model: S.model.name, title: c.title,
    messages: [...system, ...c.messages.map(({role, content}) => ({role, content}))]}, null, 2) + "\n";
}

function saveFile(name, kind, text) {
  const a = element("a");
  a.href = URL.createObjectURL(new Blob([text], {type: kind}));
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}

const fileName = end => (chat.title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 40) || "chat") + end;
$("save-text").onclick = () => saveFile(fileName(".md"), "text/markdown", chatAsText(chat));
$("save-json").onclick = () => saveFile(fileName(".json"), "application/json", chatAsJson(chat));
