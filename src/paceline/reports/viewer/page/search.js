"use strict";
// A text in the completions and prompts of all candidates: part by part, with what was found so far.

const AT_ONCE = 4; // parts that are read at a time
let searchNumber = 0;

function stopSearch() {
  searchNumber++;
}

// onProgress(rows found so far, candidates asked, is it the end); nothing is told of a search that another has replaced
async function searchTexts(columns, rows, text, onProgress) {
  const number = ++searchNumber, needle = text.toLowerCase();
  const byPart = new Map();
  for (const row of rows) {
    const part = columns.part[row];
    if (!byPart.has(part)) byPart.set(part, []);
    byPart.get(part).push(row);
  }
  const waiting = [...byPart.entries()], found = [];
  let asked = 0, failures = 0, told = performance.now();
  async function work() {
    while (waiting.length && number === searchNumber) {
      const [part, candidates] = waiting.shift();
      try {
        const texts = await documentNamed(`texts-${columns.parts[part].key}`);
        found.push(...candidates.filter((row) => hasText(columns, texts, part, row, needle)));
      } catch (error) {
        failures += candidates.length;
      }
      asked += candidates.length;
      if (number === searchNumber && performance.now() - told > 200) {
        told = performance.now();
        onProgress(found, asked, failures, false);
      }
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (number === searchNumber) onProgress(found, asked, failures, true);
}

function hasText(columns, texts, part, row, needle) {
  const completion = texts.completions[row - columns.partRow[part]];
  const prompt = texts.prompts[columns.group[row] - columns.partGroup[part]];
  return [completion, prompt].some((text) => text !== undefined && text.toLowerCase().includes(needle));
}
