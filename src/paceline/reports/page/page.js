"use strict";
// Values under the pointer, zoom over steps in all charts at once, and the theme. The page is complete without it.
const KEYS = { ArrowLeft: -1, ArrowRight: 1 };
const charts = [...document.querySelectorAll("figure[data-chart]")].map((figure) => ({
  figure,
  data: JSON.parse(figure.dataset.chart),
  box: null, // what names the values at the cursor
  drawings: [...figure.querySelectorAll(".plot > svg")].map((svg) => {
    const [left, right, first, last, bottom, top, low, high] = JSON.parse(svg.dataset.frame);
    const axes = svg.querySelector(".axes"), frame = { left, right, first, last, bottom, top, low, high };
    return { svg, frame, axes, whole: axes.innerHTML, seen: { ...frame }, data: svg.querySelector(".data") };
  }),
})).filter((chart) => chart.drawings.length);
const tools = document.querySelector(".tools"), reset = document.getElementById("reset");
const steps = [...new Set(charts.flatMap((chart) => chart.data.steps))].sort((a, b) => a - b);
let shown = null; // [first, last] step; null: all
let cursor = null; // a step

const short = (value) => Number(value.toPrecision(6)).toString().replace("-", "\u2212");
const text = (chart, value) => (chart.data.share ? short(100 * value) + " %" : short(value));
const pixel = (seen, step) => seen.left + (step - seen.first) / (seen.last - seen.first) * (seen.right - seen.left);
const nearest = (list, step) => list.reduce((best, s, i) => (Math.abs(s - step) < Math.abs(list[best] - step) ? i : best), 0);

const element = (name) => document.createElementNS(charts[0].drawings[0].svg.namespaceURI, name);

function niceTicks(low, high, most) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * (1 - 1e-9));
  const from = Math.floor(low / step + 1e-9), to = Math.ceil(high / step - 1e-9);
  return Array.from({ length: to - from + 1 }, (_, i) => (from + i) * step);
}

// The values' axis where only these steps are shown: null keeps the one of all steps.
function extent(chart) {
  const { data } = chart;
  if (data.fixed) return null;
  const values = data.lines.flatMap((line) => [line.values, line.low || [], line.high || []])
    .flatMap((list) => list.filter((v, i) => v !== null && data.steps[i] >= shown[0] && data.steps[i] <= shown[1]));
  if (!values.length) return null;
  let low = Math.min(...values), high = Math.max(...values);
  if (data.zero) { low = Math.min(low, 0); high = Math.max(high, 0); }
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high), 1e-300)) return null;
  return niceTicks(low, high, 4);
}

function axesOf(chart, drawing, ticks) {
  const { seen, frame } = drawing, rows = [];
  const say = (kind, x, y, words) => `<text class="${kind}" x="${x}" y="${y}">${words}</text>`;
  for (const tick of ticks) {
    const y = seen.bottom + (tick - seen.low) / (seen.high - seen.low) * (seen.top - seen.bottom);
    rows.push(`<path class="grid" d="M${seen.left} ${y}H${seen.right}"/>`, say("end", seen.left - 7, y + 3.8, text(chart, tick)));
  }
  const most = Math.max(2, Math.floor((frame.right - frame.left) / 75));
  const columns = niceTicks(seen.first, seen.last, most).filter((s) => s === Math.round(s) && s >= seen.first && s <= seen.last);
  for (const step of columns) rows.push(say("mid", pixel(seen, step), seen.bottom + 18, step.toLocaleString("en-US")));
  return rows.join("") + say("end", seen.left - 14, seen.bottom + 18, "step");
}

function keptRows(drawing) { // the rows of all steps, where the values' axis stays
  const kept = element("g");
  kept.innerHTML = drawing.whole;
  for (const label of kept.querySelectorAll(".mid")) label.remove();
  return kept.innerHTML.replace(/<text class="end"[^>]*>step<\/text>/, "");
}

function render(chart) {
  const ticks = shown && extent(chart);
  for (const drawing of chart.drawings) {
    const { frame } = drawing, seen = { ...frame };
    if (shown) [seen.first, seen.last] = shown;
    if (ticks) [seen.low, seen.high] = [ticks[0], ticks[ticks.length - 1]];
    drawing.seen = seen;
    const kx = (frame.last - frame.first) / (seen.last - seen.first), x = frame.left - kx * pixel(frame, seen.first);
    const ky = ticks ? (frame.high - frame.low) / (seen.high - seen.low) : 1;
    const low = ticks ? frame.bottom + (seen.low - frame.low) / (frame.high - frame.low) * (frame.top - frame.bottom) : 0;
    drawing.data.setAttribute("transform", `matrix(${kx} 0 0 ${ky} ${x} ${ticks ? frame.bottom - ky * low : 0})`);
    drawing.axes.innerHTML = shown ? (ticks ? "" : keptRows(drawing)) + axesOf(chart, drawing, ticks || []) : drawing.whole;
  }
}

function zoom(first, last) {
  const low = steps[0], high = steps[steps.length - 1], least = Math.min(high - low, 2 * Math.max(1, steps[1] - steps[0]));
  const width = Math.max(last - first, least);
  const from = Math.max(low, Math.min((first + last - width) / 2, high - width));
  shown = width >= high - low ? null : [from, from + width];
  charts.forEach(render);
  const of = high.toLocaleString("en-US");
  document.getElementById("range").textContent = shown
    ? `steps ${Math.ceil(shown[0]).toLocaleString("en-US")} to ${Math.floor(shown[1]).toLocaleString("en-US")} of ${of}` : `all steps, to ${of}`;
  reset.disabled = !shown;
  tools.classList.toggle("zoomed", !!shown);
  if (cursor !== null) point(cursor, null);
}

function words(chart, at) {
  const { steps, first, lines } = chart.data, count = (s) => s.toLocaleString("en-US");
  const head = first && first[at] !== steps[at] ? `steps ${count(first[at])} to ${count(steps[at])}` : `step ${count(steps[at])}`;
  return [head, ...lines.filter((line) => line.values[at] !== null).map((line) => {
    const spread = line.low && line.low[at] !== null ? ` (${text(chart, line.low[at])} to ${text(chart, line.high[at])})` : "";
    return `${line.name} ${text(chart, line.values[at])}${spread}`;
  })].join("\n");
}

// The cursor in all charts; the values only in the one that is looked at.
function point(step, active) {
  cursor = step;
  for (const chart of charts) {
    const at = step === null ? 0 : nearest(chart.data.steps, step), place = chart.data.steps[at];
    for (const { svg, seen } of chart.drawings) {
      const x = pixel(seen, place), cross = svg.querySelector(".cross");
      cross.setAttribute("x1", x);
      cross.setAttribute("x2", x);
      cross.style.visibility = step !== null && x >= seen.left - 1 && x <= seen.right + 1 ? "visible" : "hidden";
    }
    if (chart !== active) { if (chart.box) chart.box.hidden = true; continue; }
    if (!chart.box) {
      chart.box = document.createElement("div");
      chart.box.className = "readout";
      chart.box.setAttribute("role", "status");
      chart.figure.append(chart.box);
    }
    chart.box.hidden = false;
    chart.box.textContent = words(chart, at);
    const drawing = chart.drawings.find(({ svg }) => svg.getBoundingClientRect().width) || chart.drawings[0];
    const inner = drawing.svg.getBoundingClientRect(), outer = chart.figure.getBoundingClientRect();
    const left = inner.left - outer.left + pixel(drawing.seen, place) * inner.width / drawing.svg.viewBox.baseVal.width;
    const flip = left + chart.box.offsetWidth + 16 > outer.width;
    chart.box.style.left = (flip ? Math.max(4, left - chart.box.offsetWidth - 10) : left + 10) + "px";
    chart.box.style.top = inner.top - outer.top + 8 + "px";
  }
}

function stepAt(drawing, event) {
  const box = drawing.svg.getBoundingClientRect(), { seen } = drawing;
  const x = (event.clientX - box.left) * drawing.svg.viewBox.baseVal.width / box.width;
  return seen.first + (x - seen.left) / (seen.right - seen.left) * (seen.last - seen.first);
}

function press(chart, key) {
  const list = chart.data.steps, inside = list.filter((s) => !shown || (s >= shown[0] && s <= shown[1]));
  const range = shown || [steps[0], steps[steps.length - 1]], middle = cursor === null ? (range[0] + range[1]) / 2 : cursor;
  if (key in KEYS) {
    const from = cursor === null ? (KEYS[key] > 0 ? -1 : inside.length) : nearest(inside, cursor);
    if (inside.length) point(inside[Math.max(0, Math.min(inside.length - 1, from + KEYS[key]))], chart);
  } else if (key === "Home" || key === "End") {
    if (inside.length) point(key === "Home" ? inside[0] : inside[inside.length - 1], chart);
  } else if (key === "+" || key === "=" || key === "-") {
    const half = (range[1] - range[0]) * (key === "-" ? 1 : 0.25);
    zoom(middle - half, middle + half);
    if (cursor !== null) point(cursor, chart);
  } else if (key === "Escape" || key === "0") {
    zoom(steps[0], steps[steps.length - 1]);
  } else return false;
  return true;
}

for (const chart of charts) for (const drawing of chart.drawings) {
  const { svg } = drawing;
  let began = null, mark = null;
  const leave = () => { began = null; if (mark) { mark.remove(); mark = null; } };
  svg.querySelector("title").remove(); // the browser's own tooltip would cover ours; aria-label keeps the description
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("aria-describedby", "how");
  svg.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && press(chart, event.key)) event.preventDefault();
  });
  svg.addEventListener("blur", () => point(null, null));
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    began = stepAt(drawing, event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    const { data } = chart, at = stepAt(drawing, event), { seen } = drawing;
    point(data.steps[nearest(data.steps, Math.max(seen.first, Math.min(seen.last, at)))], chart);
    if (began === null) return;
    if (!mark) {
      mark = element("rect");
      mark.setAttribute("class", "mark");
      svg.append(mark);
    }
    const [x1, x2] = [began, at].map((s) => pixel(seen, Math.max(seen.first, Math.min(seen.last, s)))).sort((a, b) => a - b);
    for (const [name, value] of [["x", x1], ["width", x2 - x1], ["y", seen.top], ["height", seen.bottom - seen.top]]) mark.setAttribute(name, value);
  });
  svg.addEventListener("pointerup", (event) => {
    const wide = mark && Number(mark.getAttribute("width")) > 8, ends = [began, stepAt(drawing, event)].sort((a, b) => a - b);
    leave();
    if (wide) zoom(Math.max(ends[0], drawing.seen.first), Math.min(ends[1], drawing.seen.last));
  });
  svg.addEventListener("pointercancel", leave);
  svg.addEventListener("pointerleave", () => { if (began === null) point(null, null); });
  svg.addEventListener("dblclick", () => zoom(steps[0], steps[steps.length - 1]));
}

const theme = document.getElementById("theme"), themes = ["system", "light", "dark"];
theme.addEventListener("click", () => {
  const next = themes[(themes.indexOf(theme.dataset.theme) + 1) % 3];
  theme.dataset.theme = next;
  theme.textContent = "Theme: " + next;
  document.documentElement.style.colorScheme = next === "system" ? "" : next;
});
reset.addEventListener("click", () => zoom(steps[0], steps[steps.length - 1]));
tools.hidden = false;
document.getElementById("zooming").hidden = !charts.length;
if (charts.length) zoom(steps[0], steps[steps.length - 1]);
const written = document.getElementById("written");
if (written) written.textContent = ` Written ${document.lastModified}; while the run goes on it is written again, so load it anew; paceline report says how it ended if it was killed.`;
