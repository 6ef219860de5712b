"use strict";
// The form of filters, and the page's words on keys and rules.

const KEYS = [
  ["j  \u2193", "the next completion"], ["k  \u2191", "the one before"], ["Enter", "open its group"], ["Esc", "close it; leave a field"],
  ["/", "search"], ["c", "colour tokens by the next quantity"], ["\u2190 \u2192", "in a completion: token by token"],
  ["Home  End", "first and last completion"], ["?", "this page"],
];

function fillControls(columns) {
  const choices = (id, options) => {
    const box = byId(id), before = box.options.length ? box.value : null;
    box.replaceChildren(...options.map(([value, title]) => element("option", { value }, title)));
    if (options.some(([value]) => value === before)) box.value = before;
  };
  const plain = (word) => [word, word];
  choices("set", [...columns.sets.map(plain), ...(columns.sets.length > 1 ? [["", "all"]] : [])]);
  choices("judge", [["", "total"], ...[...columns.functions.keys()].map(plain)]);
  choices("finish", [["", "any"], ...columns.finish_words.map(plain)]);
  choices("dropped", [["", "any"], ["yes", "trained on"], ["no", "dropped"],
    ...columns.dropped_words.map((word) => [`because ${word}`, word.replaceAll("_", " ")])]);
  const { talks } = columns;
  byId("talks").hidden = talks === null;
  document.body.classList.toggle("talks", talks !== null);
  choices("outcome", [["", "any"], ...(talks === null ? [] : talks.outcome_words.map(plain))]);
  const orders = [...byId("order").options].filter(({ value }) => !TALK_ORDERS[value]).map(({ value, textContent }) => [value, textContent]);
  choices("order", [...orders, ...(talks === null ? [] : Object.entries(TALK_ORDERS).map(([name, { title }]) => [name, title]))]);
  choices("rule", [["", "any"], ["marked", "suspicious by a rule"], ...columns.rules.map(([name]) => plain(name))]);
}

function wantedRows() {
  const number = (id) => (byId(id).value === "" ? NaN : Number(byId(id).value));
  return {
    set: byId("set").value,
    steps: [number("step-from"), number("step-to")],
    judge: byId("judge").value,
    rewards: [number("reward-from"), number("reward-to")],
    finish: byId("finish").value,
    dropped: byId("dropped").value,
    rule: byId("rule").value,
    outcome: byId("outcome").value,
    turns: [number("turns-from"), number("turns-to")],
    failedCalls: number("failed-calls"),
  };
}

function fillHelp(columns) {
  const close = element("button", { type: "button" }, "Close");
  close.addEventListener("click", () => byId("help").close());
  const terms = (pairs) => element("dl", {}, ...pairs.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
  byId("help").replaceChildren(
    element("header", {}, element("h2", {}, "Keys"), close),
    terms(KEYS),
    element("h2", {}, "Suspicious first"),
    element("p", {}, "Rules that point at completions to look at. Sorted by the number of rules that hold; ties by this order. " +
      `A completion is well paid if its reward lies in the upper tenth of the range that rewards have in the run; evaluations are graded by ${columns.grader}. ` +
      "A rule finds what is worth a look, and proves nothing."),
    terms(columns.rules),
    element("h2", {}, "Dropped"),
    terms(columns.dropped_words.length ? columns.dropped_words.map((word, at) => [word.replaceAll("_", " "), columns.dropped_reasons[at]]) : [["none", "No completion was."]]),
    element("h2", {}, "What is recorded"),
    element("p", {}, "A run writes down its tokens, the engine's logprobs and the advantages. The trainer's logprobs, the ratio and the entropy " +
      "of each token are computed again where somebody asks: paceline replay RUN --step N --tokens."));
}
