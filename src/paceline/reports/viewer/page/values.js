"use strict";
// What there is to say of each token of a completion, from what the run recorded and what a replay computed.

// kind: two-sided around 0, one-sided from 0, or classes; needs: what has to be there
const QUANTITIES = [
  { name: "none", title: "no colour" },
  {
    name: "push", title: "advantage \u00d7 ratio", kind: "two-sided", needs: "advantage",
    about: "How hard, and which way, the objective pushed this token: up (blue) or down (orange). The ratio is that of " +
      "the policy after the step's updates to the one before.",
    without: "The ratio is not recorded for this step, so this is the advantage alone, the same for all tokens.",
  },
  {
    name: "mismatch", title: "engine \u2212 trainer logprob", kind: "two-sided", needs: "before",
    about: "Nats by which the engine found the token more probable (blue) or less (orange) than the trainer, under the same weights.",
  },
  {
    name: "change", title: "change of logprob by the step", kind: "two-sided", needs: "after",
    about: "Nats that the step's updates added to the token's logprob: the logarithm of the ratio.",
  },
  {
    name: "entropy", title: "entropy", kind: "one-sided", needs: "entropy",
    about: "Nats: how open the choice was that the policy had here before the step.",
  },
  {
    name: "surprise", title: "\u2212 engine logprob", kind: "one-sided", needs: "engine",
    about: "Nats: how improbable the token was to the engine that sampled it.",
  },
  {
    name: "mask", title: "trained on", kind: "classes", needs: "advantage",
    about: "Whether the token has a gradient.",
    classes: ["trained on", "in the averages, no gradient", "no part of the step", "read from the environment"],
  },
];

const NO_PART = ["filtered", "surplus", "no_reward", "reward_failed", "environment_failed", "truncated"];

// one number per token, not a number for what an environment wrote; null: this was not recorded
function tokenValues(columns, row, entry) {
  const count = entry.pieces.length, observed = new Set(entry.observed);
  const own = [...entry.pieces.keys()].filter((at) => !observed.has(at));
  const spread = (packed) => {
    const values = unpacked(packed);
    if (values === null || !observed.size) return values;
    const wide = new Float64Array(count).fill(NaN);
    own.forEach((at, number) => { wide[at] = values[number]; });
    return wide;
  };
  const engine = spread(entry.engine), before = spread(entry.before), after = spread(entry.after);
  const advantage = columns.advantage[row];
  const each = (make) => Float64Array.from({ length: count }, (_, at) => (observed.has(at) ? NaN : make(at)));
  const ratio = before && after ? each((at) => Math.exp(after[at] - before[at])) : null;
  return {
    engine, before, after, ratio,
    entropy: spread(entry.entropy),
    advantage: Number.isNaN(advantage) ? null : each(() => advantage),
    push: Number.isNaN(advantage) ? null : each((at) => advantage * (ratio ? ratio[at] : 1)),
    mismatch: engine && before ? each((at) => engine[at] - before[at]) : null,
    change: before && after ? each((at) => after[at] - before[at]) : null,
    surprise: engine ? each((at) => -engine[at]) : null,
    mask: Float64Array.from({ length: count }, (_, at) => (observed.has(at) ? 3 : maskOf(columns, row))),
  };
}

// 0 trained on, 1 in the averages, 2 no part of the step
function maskOf(columns, row) {
  const dropped = columns.dropped_words[columns.dropped[row]];
  if (dropped !== undefined && NO_PART.includes(dropped)) return 2;
  return dropped === undefined && columns.advantage[row] !== 0 ? 0 : 1;
}

function isTrainedOn(columns, row) {
  const part = partOf(columns, row);
  return part.set === "training" && part.updated && maskOf(columns, row) === 0;
}

// little-endian floats in base64 under the name of their type, as the journal has them
function unpacked(packed) {
  if (!packed) return null;
  const [[name, text]] = Object.entries(packed);
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return name === "float32" ? new Float32Array(bytes.buffer) : new Float64Array(bytes.buffer);
}

// the largest of all values shown, by size: the scale of the colours
function largest(valuesOfAll, name) {
  let most = 0;
  for (const values of valuesOfAll) for (const value of values[name] || []) if (!Number.isNaN(value)) most = Math.max(most, Math.abs(value));
  return most;
}

// the class of a colour: -5 to 5 around 0, 0 to 5 from 0, or the number of a class
function shade(kind, value, most) {
  if (kind === "classes") return `class-${value}`;
  if (Number.isNaN(value)) return "";
  const level = most > 0 ? Math.round((5 * value) / most) : 0;
  return kind === "two-sided" && level < 0 ? `down-${-level}` : `up-${Math.max(0, level)}`;
}
