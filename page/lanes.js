/*
 * lanes.js - what the live page and the sheet draw with alike: elements, figures, colours, and which
 * positions lanes hold.
 */
"use strict";

const $ = id => document.getElementById(id);

function element(name, text, className) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

// The name of what SVG is, which is no address that is asked.
function svg(name, attributes = {}, ...children) {
  const e = document.createElementNS("http:" + "//www.w3.org/2000/svg", name);
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  e.append(...children);
  return e;
}

const number = n => Math.round(n).toLocaleString("en");
const percent = (a, b) => b > 0 ? (100 * a / b).toFixed(a === b ? 0 : 1) + "\u00a0%" : "0\u00a0%";

/* The value of a colour of look.css where an element stands, as red, green, blue. */
function colour(name, at = document.documentElement) {
  const c = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  c.fillStyle = getComputedStyle(at).getPropertyValue(name).trim();
  c.fillRect(0, 0, 1, 1);
  return c.getImageData(0, 0, 1, 1).data;
}

// Rows of lanes, columns of positions; a column that is kept in part is in between the colours. A
// row has shown, how many of the total positions exist, and holds(position). It is drawn from
// row.from to row.to, shares of the height; without them rows are equally high.
function paintRows(canvas, rows, total, height, colours = ["--kept", "--gone", "--card"]) {
  const wide = Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));
  const width = Math.max(1, Math.min(total, wide)), c = canvas.getContext("2d");
  const [kept, gone, card] = colours.map(name => colour(name, canvas));
  const small = document.createElement("canvas");
  small.width = width;
  small.height = rows.length;
  const image = small.getContext("2d").createImageData(width, rows.length), out = image.data;
  rows.forEach((row, y) => {
    for (let x = 0; x < width; x++) {
      const from = Math.floor(x * total / width), to = Math.max(from + 1, Math.floor((x + 1) * total / width));
      let held = 0, seen = 0;
      for (let p = from; p < to && p < row.shown; p++) { seen++; held += row.holds(p); }
      const part = seen > 0 ? held / seen : 0, back = seen > 0 ? gone : card, at = 4 * (y * width + x);
      for (let k = 0; k < 3; k++) out[at + k] = back[k] + (kept[k] - back[k]) * (part > 0 ? .15 + .85 * part : 0);
      out[at + 3] = 255;
    }
  });
  small.getContext("2d").putImageData(image, 0, 0);
  canvas.width = wide;
  canvas.height = Math.max(1, Math.round(height * devicePixelRatio));
  canvas.style.height = height + "px";
  c.imageSmoothingEnabled = false;
  rows.forEach((row, y) => {
    const top = Math.round((row.from ?? y / rows.length) * canvas.height);
    const end = Math.round((row.to ?? (y + 1) / rows.length) * canvas.height);
    c.drawImage(small, 0, y, width, 1, 0, top, wide, end - top);
  });
}
