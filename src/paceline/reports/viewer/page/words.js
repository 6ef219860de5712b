"use strict";
// Elements and numbers as the page writes them. Text of a run goes into text nodes and nowhere else.

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("aria-")) made.setAttribute(key, String(value)); // where absent is not the same as false
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

function shown(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "none";
  const text = Math.abs(value) >= 1e-3 || value === 0 ? value.toFixed(digits) : value.toPrecision(2);
  return text.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "").replace("-", "\u2212");
}

// for what may differ in its last digits: all that a float32 has
function exact(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "none";
  return Number(value.toPrecision(7)).toString().replace("-", "\u2212");
}

// the end of a scale of colours: two figures say enough
function rounded(value) {
  return Number(value.toPrecision(2)).toString().replace("-", "\u2212");
}

function counted(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

function rewardClass(columns, row) {
  const value = columns.reward[row];
  if (Number.isNaN(value)) return "unknown";
  return value >= columns.highest - 0.1 * (columns.highest - columns.lowest) ? "right" : value <= columns.lowest ? "wrong" : "middle";
}
