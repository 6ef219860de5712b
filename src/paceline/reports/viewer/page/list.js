"use strict";
// The list: as many rows as there are completions, of which only those in sight are elements.

const ROW_HEIGHT = 56; // px, as page.css has it
const BEYOND = 8; // rows drawn above and below what is in sight

const list = { columns: null, rows: new Int32Array(0), at: 0, onOpen: () => {}, lines: new Map(), drawn: "" };

function setRows(columns, rows, { keep = true } = {}) {
  const before = list.rows[list.at];
  list.columns = columns;
  list.rows = rows;
  const again = keep ? rows.indexOf(before) : -1;
  list.at = Math.max(0, again);
  byId("spacer").style.height = `${rows.length * ROW_HEIGHT}px`;
  byId("nothing").hidden = rows.length > 0;
  if (again < 0) byId("list").scrollTop = 0;
  list.drawn = "";
  drawRows();
}

function forgetLines() {
  list.lines.clear();
}

function moveTo(at, { open = false } = {}) {
  if (!list.rows.length) return;
  list.at = Math.min(list.rows.length - 1, Math.max(0, at));
  const box = byId("list"), top = list.at * ROW_HEIGHT;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + ROW_HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW_HEIGHT - box.clientHeight;
  list.drawn = "";
  drawRows();
  if (open) list.onOpen(list.rows[list.at]);
}

function drawRows() {
  const box = byId("list");
  const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - BEYOND);
  const end = Math.min(list.rows.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW_HEIGHT) + BEYOND);
  const range = `${first} ${end}`;
  if (range === list.drawn) return;
  list.drawn = range;
  const made = [];
  for (let at = first; at < end; at++) made.push(rowElement(at));
  byId("spacer").replaceChildren(...made);
  box.setAttribute("aria-activedescendant", `row-${list.at}`);
}

function rowElement(at) {
  const columns = list.columns, row = list.rows[at], part = partOf(columns, row);
  const dropped = columns.dropped_words[columns.dropped[row]];
  const sample = row - columns.groupStart[columns.group[row]];
  const made = element(
    "div",
    {
      id: `row-${at}`, class: "row", role: "option", "aria-selected": at === list.at,
      "aria-posinset": at + 1, "aria-setsize": list.rows.length, "data-at": at,
    },
    element("span", { class: "place" }, element("b", {}, `step ${part.step}`), element("small", {}, `#${sample}`)),
    element("span", { class: "words" },
      element("span", { class: "prompt" }, labelOf(columns, row)),
      element("span", { class: "line" }, lineOf(row, at))),
    element("span", { class: "facts" },
      element("b", { class: `pill ${rewardClass(columns, row)}` }, shown(columns.reward[row])),
      element("small", {}, counted(columns.tokens[row], "token"))),
    talkElement(columns.talks, row),
    element("span", { class: "flags" },
      ...rulesOf(columns, row).slice(0, 2).map(([name]) => element("i", { class: "rule" }, name)),
      dropped ? element("i", { class: "dropped" }, dropped.replaceAll("_", " ")) : null,
      columns.finish_words[columns.finish[row]] === "length" ? element("i", { class: "cut" }, "cut") : null)
  );
  made.style.transform = `translateY(${at * ROW_HEIGHT}px)`;
  return made;
}

// how a conversation went: outcome, turns, failed calls, seconds of its environment
function talkElement(talks, row) {
  if (talks === null) return null;
  if (talks.outcome[row] < 0) return element("span", { class: "talk" });
  const outcome = talks.outcome_words[talks.outcome[row]], failed = talks.failed_calls[row];
  const facts = [counted(talks.turns[row], "turn"), failed ? counted(failed, "failed call") : null,
    talks.seconds[row] ? `${shown(talks.seconds[row], 1)} s` : null].filter((fact) => fact !== null);
  return element("span", { class: `talk ${/failed|too long/.test(outcome) ? "bad" : ""}` },
    element("b", {}, outcome), element("small", {}, facts.join(", ")));
}

// a block of previews arrives later than the rows that want it: it is put into those that are there then
function lineOf(row) {
  const block = Math.floor(row / list.columns.block), known = list.lines.get(block);
  if (Array.isArray(known)) return known[row - block * list.columns.block] || "";
  if (known === undefined) {
    list.lines.set(block, "asked");
    documentNamed(`previews-${block}`).then(
      ({ lines }) => {
        list.lines.set(block, lines);
        list.drawn = "";
        drawRows();
      },
      () => list.lines.delete(block)
    );
  }
  return "\u2026";
}

function beginList(onOpen) {
  const box = byId("list");
  list.onOpen = onOpen;
  let asked = false;
  box.addEventListener("scroll", () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      drawRows();
    });
  });
  new ResizeObserver(() => drawRows()).observe(box);
  byId("spacer").addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row) moveTo(Number(row.dataset.at), { open: true });
  });
}
