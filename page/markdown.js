/*
 * markdown.js - Markdown as elements. Text of the model only ever becomes text of elements that are
 * made here; HTML in it is shown as it was written. Links lead to http, https and mailto alone.
 *
 * A text that grows is drawn without flicker: blocks whose source did not change stay as they are.
 */
"use strict";

const SCHEMES = ["http:", "https:", "mailto:"];

function safeLink(address) {
  try {
    const url = new URL(address);
    return SCHEMES.includes(url.protocol) ? url.href : null;
  } catch { return null; }
}

/* ---- within a line ---- */

const CODE = /(`+)(.+?)\1(?!`)/sy, LINK = /!?\[([^\[\]]*)\]\(\s*<?([^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:\s+["'][^"')]*["'])?\s*\)/y;
const BARE = /https?:\/\/[^\s<>"'`*]*[^\s<>"'`*.,:;!?)\]]/y, MARKS = /(\*\*\*|\*\*|\*|___|__|_|~~)/y;
const ESCAPED = /\\([\\`*_{}\[\]()#+\-.!~|>])/y;
const TAGS = {"*": ["em"], "_": ["em"], "**": ["strong"], "__": ["strong"], "***": ["strong", "em"],
  "___": ["strong", "em"], "~~": ["s"]};

function link(text, address) {
  const safe = safeLink(address);
  if (safe === null) return document.createTextNode(text);
  const a = element("a", text || address);
  a.href = safe;
  a.rel = "noopener noreferrer nofollow";
  a.target = "_blank";
  return a;
}

/* Where a mark of emphasis that opens at `from` closes; -1: nowhere. */
function closing(text, mark, from) {
  const inWord = mark[0] === "_";
  for (let i = text.indexOf(mark, from); i >= 0; i = text.indexOf(mark, i + 1)) {
    const after = text[i + mark.length] || " ";
    if (i === from || /\s/.test(text[i - 1]) || after === mark[0] || text[i - 1] === "\\") continue;
    if (!inWord || !/[\p{L}\p{N}]/u.test(after)) return i;
  }
  return -1;
}

function at(pattern, text, i) {
  pattern.lastIndex = i;
  return pattern.exec(text);
}

function inline(parent, text, deep = 0) {
  let plain = "";
  const flush = () => { if (plain) parent.append(plain); plain = ""; };
  for (let i = 0; i < text.length;) {
    const c = text[i];
    let m;
    if (c === "\\" && (m = at(ESCAPED, text, i))) { plain += m[1]; i += 2; continue; }
    if (c === "`" && (m = at(CODE, text, i))) {
      flush();
      parent.append(element("code", m[2].replace(/^ (.*) $/s, "$1")));
    } else if ((c === "[" || c === "!") && (m = at(LINK, text, i))) {
      flush();
      parent.append(link(m[1], m[2]));
    } else if (c === "h" && (m = at(BARE, text, i))) {
      flush();
      parent.append(link(m[0], m[0]));
    } else if ("*_~".includes(c) && deep < 8 && (m = at(MARKS, text, i))) {
      const mark = m[1], from = i + mark.length, end = closing(text, mark, from);
      const inside = mark[0] === "_" && i > 0 && /[\p{L}\p{N}]/u.test(text[i - 1]);
      if (end < 0 || inside || /\s/.test(text[from] || " ")) { plain += mark; i = from; continue; }
      flush();
      const outer = element(TAGS[mark][0]), inner = TAGS[mark][1] ? element(TAGS[mark][1]) : outer;
      if (inner !== outer) outer.append(inner);
      inline(inner, text.slice(from, end), deep + 1);
      parent.append(outer);
      i = end + mark.length;
      continue;
    } else { plain += c; i++; continue; }
    i += m[0].length;
  }
  flush();
  return parent;
}

/* ---- blocks ---- */

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/, HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/, QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/, TABLE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/* The lines of a text as blocks: [kind, lines]. */
function split(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n"), blocks = [];
  const begins = i => FENCE.test(lines[i]) || HEADING.test(lines[i]) || RULE.test(lines[i]) || QUOTE.test(lines[i]) || ITEM.test(lines[i]);
  for (let i = 0; i < lines.length;) {
    const from = i, line = lines[i];
    const fence = FENCE.exec(line);
    let kind;
    if (line.trim() === "") { i++; continue; }
    if (fence) {
      kind = "code";
      for (i++; i < lines.length && !(lines[i].trim().startsWith(fence[1]) && /^[`~]+$/.test(lines[i].trim())); i++);
      i++;
    } else if (HEADING.test(line)) { kind = "heading"; i++; }
    else if (RULE.test(line)) { kind = "rule"; i++; }
    else if (QUOTE.test(line)) {
      kind = "quote";
      for (i++; i < lines.length && lines[i].trim() !== ""; i++);
    } else if (ITEM.test(line)) {
      kind = "list";
      const ordered = /\d/.test(ITEM.exec(line)[2]);
      let fenced = false;
      for (i++; i < lines.length; i++) {
        if (FENCE.test(lines[i].trim())) fenced = !fenced;
        if (fenced || /^\s+\S/.test(lines[i])) continue;
        const item = ITEM.exec(lines[i]), next = lines[i + 1] || "";
        if (item && /\d/.test(item[2]) === ordered) continue;
        if (lines[i].trim() === "" && (/^\s+\S/.test(next) || ITEM.test(next) && /\d/.test(ITEM.exec(next)[2]) === ordered)) continue;
        break;
      }
    } else if (line.includes("|") && i + 1 < lines.length && lines[i + 1].includes("-") && TABLE.test(lines[i + 1])) {
      kind = "table";
      for (i += 2; i < lines.length && lines[i].includes("|"); i++);
    } else {
      kind = "text";
      for (i++; i < lines.length && lines[i].trim() !== "" && !begins(i); i++);
    }
    blocks.push([kind, lines.slice(from, i)]);
  }
  return blocks;
}

function codeBlock(lines) {
  const fence = FENCE.exec(lines[0]), last = lines[lines.length - 1].trim();
  const closed = lines.length > 1 && last.startsWith(fence[1]) && /^[`~]+$/.test(last);
  const text = lines.slice(1, closed ? -1 : undefined).join("\n"), box = element("div", undefined, "code");
  const bar = element("div"), copy = element("button", "Copy"), pre = element("pre");
  copy.type = "button";
  copy.setAttribute("aria-label", "Copy the code");
  copy.onclick = () => copyText(text, copy);
  bar.append(element("span", fence[2].trim() || "text"), copy);
  pre.tabIndex = 0;
  pre.append(element("code", text));
  box.append(bar, pre);
  return box;
}

function listBlock(lines, deep) {
  const first = ITEM.exec(lines[0]), ordered = /\d/.test(first[2]), list = element(ordered ? "ol" : "ul");
  const indent = first[1].length, items = [];
  if (ordered && parseInt(first[2]) !== 1) list.start = parseInt(first[2]);
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent + 1) items.push([item[3]]);
    else items[items.length - 1].push(line);
  }
  for (const [head, ...rest] of items) {
    const li = element("li"), task = /^\[([ xX])\]\s+(.*)$/.exec(head);
    if (task) {
      const box = element("input");
      box.type = "checkbox";
      box.disabled = true;
      box.checked = task[1] !== " ";
      box.setAttribute("aria-label", box.checked ? "done" : "to do");
      li.className = "task";
      li.append(box, " ");
    }
    inline(li, task ? task[2] : head);
    const left = Math.min(...rest.filter(l => l.trim() !== "").map(l => /^\s*/.exec(l)[0].length));
    const inner = rest.map(l => l.slice(Number.isFinite(left) ? left : 0)).join("\n");
    if (inner.trim() !== "" && deep < 8) li.append(...split(inner).map(b => blockElement(b, deep + 1)));
    list.append(li);
  }
  return list;
}

function tableBlock(lines) {
  const cells = line => line.trim().replace(/^\|/, "").replace(/\|$/, "").split(/(?<!\\)\|/).map(c => c.trim());
  const box = element("div", undefined, "table"), table = element("table"), body = element("tbody");
  const head = cells(lines[0]), row = (line, name) => {
    const tr = element("tr"), parts = cells(line);
    head.forEach((_, i) => tr.append(inline(element(name), parts[i] || "")));
    return tr;
  };
  const thead = element("thead");
  thead.append(row(lines[0], "th"));
  body.append(...lines.slice(2).map(line => row(line, "td")));
  table.append(thead, body);
  box.append(table);
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "Table");
  return box;
}

function blockElement([kind, lines], deep = 0) {
  if (kind === "code") return codeBlock(lines);
  if (kind === "heading") {
    const m = HEADING.exec(lines[0]);
    return inline(element(m[1].length <= 2 ? "h3" : "h4"), m[2]);
  }
  if (kind === "rule") return element("hr");
  if (kind === "list") return listBlock(lines, deep);
  if (kind === "table") return tableBlock(lines);
  if (kind === "quote") {
    const quote = element("blockquote"), inner = lines.map(l => l.replace(QUOTE, "")).join("\n");
    if (deep < 8) quote.append(...split(inner).map(b => blockElement(b, deep + 1)));
    else quote.textContent = inner;
    return quote;
  }
  return inline(element("p"), lines.map(l => l.replace(/ {2,}$/, "")).join("\n"));
}

/* Draws a text into an element, of which nobody else changes the children. */
function drawMarkdown(box, text) {
  const blocks = split(text), had = box.sources || [], sources = blocks.map(b => b[0] + "\n" + b[1].join("\n"));
  let same = 0;
  while (same < had.length && same < sources.length && had[same] === sources[same]) same++;
  while (box.children.length > same) box.lastChild.remove();
  box.append(...blocks.slice(same).map(b => blockElement(b)));
  box.sources = sources;
  box.classList.add("md");
}

async function copyText(text, button) {
  const was = button.textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
  catch { button.textContent = oldCopy(text) ? "Copied" : "Not allowed"; }
  setTimeout(() => { button.textContent = was; }, 1500);
}

/* Where the clipboard is for secure pages only: a server in one's network without TLS. */
function oldCopy(text) {
  const box = element("textarea", text);
  const focus = document.activeElement;
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  if (focus) focus.focus();
  return done;
}
