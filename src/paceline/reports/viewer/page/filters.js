"use strict";
// Which completions are shown, in which order. Pure: columns and wishes in, row numbers out.

// wanted: set, steps [from, to], judge ("" or a function), rewards [from, to], finish, dropped, rule, outcome, turns [from, to], failedCalls (at least); "" or NaN: any
function matching(columns, wanted) {
  const rows = new Int32Array(columns.count);
  const values = wanted.judge === "" ? columns.reward : columns.functions.get(wanted.judge);
  const finish = wanted.finish === "" ? -1 : columns.finish_words.indexOf(wanted.finish);
  const fits = partsThatFit(columns, wanted);
  const [low, high] = wanted.rewards;
  const anyReward = Number.isNaN(low) && Number.isNaN(high);
  let count = 0;
  for (let row = 0; row < columns.count; row++) {
    if (!fits[columns.part[row]]) continue;
    const value = values[row];
    if (!anyReward && !(value === value && !(value < low) && !(value > high))) continue;
    if (wanted.judge !== "" && value !== value) continue; // not this function's task
    if (finish >= 0 && columns.finish[row] !== finish) continue;
    if (!fitsDropped(columns, row, wanted.dropped)) continue;
    if (wanted.rule !== "" && !fitsRule(columns, row, wanted.rule)) continue;
    if (!fitsTalk(columns.talks, row, wanted)) continue;
    rows[count++] = row;
  }
  return rows.subarray(0, count);
}

function partsThatFit(columns, wanted) {
  const [from, to] = wanted.steps;
  return columns.parts.map(
    (part) => (wanted.set === "" || part.set === wanted.set) && !(part.step < from) && !(part.step > to)
  );
}

// how a conversation went; what is none fits only where nothing is wanted
function fitsTalk(talks, row, { outcome, turns: [from, to], failedCalls }) {
  if (outcome === "" && Number.isNaN(from) && Number.isNaN(to) && Number.isNaN(failedCalls)) return true;
  if (talks === null || talks.outcome[row] < 0) return false;
  if (outcome !== "" && talks.outcome_words[talks.outcome[row]] !== outcome) return false;
  return !(talks.turns[row] < from) && !(talks.turns[row] > to) && !(talks.failed_calls[row] < failedCalls);
}

function fitsDropped(columns, row, dropped) {
  if (dropped === "") return true;
  if (dropped === "no") return columns.dropped[row] >= 0;
  if (dropped === "yes") return columns.dropped[row] < 0 && partOf(columns, row).set === "training";
  return columns.dropped_words[columns.dropped[row]] === dropped.slice("because ".length);
}

function fitsRule(columns, row, rule) {
  if (rule === "marked") return columns.marks[row] !== 0;
  return (columns.marks[row] & (1 << columns.rules.findIndex(([name]) => name === rule))) !== 0;
}

// orders by the columns of conversations, the largest first
const TALK_ORDERS = {
  failures: { key: "failed_calls", title: "most failed calls first" },
  turns: { key: "turns", title: "most turns first" },
  slow: { key: "seconds", title: "slowest environment first" },
};

// equal ones stay as they are recorded
function ordered(columns, rows, order) {
  if (order === "file") return rows;
  if (order === "newest") return Int32Array.from(rows).sort((a, b) => stepOf(columns, b) - stepOf(columns, a) || a - b);
  const key = new Float64Array(columns.count);
  for (const row of rows) key[row] = sortKey(columns, row, order);
  return Int32Array.from(rows).sort((a, b) => key[b] - key[a] || a - b);
}

function stepOf(columns, row) {
  return columns.parts[columns.part[row]].step;
}

function sortKey(columns, row, order) {
  const least = -1e300; // without a number: last
  if (order === "suspicious") return suspicion(columns.marks[row]);
  if (TALK_ORDERS[order]) return columns.talks === null ? 0 : columns.talks[TALK_ORDERS[order].key][row];
  if (order === "long") return columns.tokens[row];
  if (order === "short") return -columns.tokens[row];
  const value = order === "advantage" ? Math.abs(columns.advantage[row]) : columns.reward[row];
  if (value !== value) return least;
  return order === "low" ? -value : value;
}

// more rules first; of as many the one whose rule stands higher in the list
function suspicion(marks) {
  let count = 0;
  for (let left = marks; left; left &= left - 1) count++;
  return marks === 0 ? 0 : 32 * count + (31 - Math.log2(marks & -marks));
}
