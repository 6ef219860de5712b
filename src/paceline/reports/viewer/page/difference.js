"use strict";
// What two texts have in common, word for word. Pure: texts in, pieces out.

const MAX_CELLS = 4e6; // words of one middle times words of the other: 8 MB and a few dozen milliseconds

// pieces {kind: "same" | "gone" | "new", text} that make up both texts; exact: false where they were too long to compare
function differenceOf(before, after) {
  const a = wordsOf(before), b = wordsOf(after);
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const middleA = a.slice(start, a.length - end), middleB = b.slice(start, b.length - end);
  const exact = middleA.length * middleB.length <= MAX_CELLS;
  const middle = exact ? aligned(middleA, middleB)
    : [...middleA.map((text) => ({ kind: "gone", text })), ...middleB.map((text) => ({ kind: "new", text }))];
  const same = (text) => ({ kind: "same", text });
  return { exact, pieces: joined([...a.slice(0, start).map(same), ...middle, ...a.slice(a.length - end).map(same)]) };
}

function wordsOf(text) {
  return text.match(/\w+|\s+|[^\w\s]/gu) || [];
}

// the longest common subsequence; of words that are gone and new in one place, those that are gone come first
function aligned(a, b) {
  const width = b.length + 1, lengths = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i * width + j] = a[i] === b[j] ? lengths[(i + 1) * width + j + 1] + 1
        : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const pieces = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      pieces.push({ kind: "same", text: a[i++] });
      j++;
    } else if (i < a.length && (j === b.length || lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) {
      pieces.push({ kind: "gone", text: a[i++] });
    } else {
      pieces.push({ kind: "new", text: b[j++] });
    }
  }
  return pieces;
}

function joined(pieces) {
  const runs = [];
  for (const { kind, text } of pieces) {
    const last = runs[runs.length - 1];
    if (last && last.kind === kind) last.text += text;
    else runs.push({ kind, text });
  }
  return runs;
}

function differenceElement(before, after) {
  const { exact, pieces } = differenceOf(before, after);
  const tags = { same: "span", gone: "del", new: "ins" };
  const text = element("pre", { class: "difference" }, ...pieces.map(({ kind, text }) => element(tags[kind], {}, text)));
  return exact ? text : element("div", {}, element("p", { class: "note" }, "Too long to be compared word for word."), text);
}
