"use strict";
// A conversation: turns as bubbles, tool calls and their results folded.

// entry, values, texts: its tokens, null where they are not known; look: what colours them
function conversation(episode, { isTrained, entry, values, texts, look, onPoint }) {
  const isColoured = entry !== null && look.quantity.kind && values[look.quantity.name];
  let start = 0;
  const bubbles = episode.turns.flatMap((turn, number) => {
    const calls = turn.message.tool_calls || [];
    const about = [`turn ${number + 1}`, `${counted(turn.sampled, "token")} ${isTrained ? "trained on" : "sampled"}`, turn.prompt_ids ? "in a context of its own" : null];
    const end = start + turn.sampled;
    const said = isColoured
      ? [tokenText(partOfEntry(entry, start, end), texts, partOfValues(values, start, end), look, onPoint)]
      : [turn.message.content || !calls.length ? element("pre", {}, turn.message.content) : null,
        ...calls.map((call) => folded(`calls ${call.function.name}`, JSON.stringify(call.function.arguments, null, 1)))];
    start = end + turn.observed;
    const model = element("div", { class: "bubble model" },
      element("b", { class: "who" }, "model"),
      ...said,
      turn.malformed === null ? null : element("p", { class: "why rule" }, element("b", {}, "a call that could not be read"), `: ${turn.malformed}`),
      element("small", {}, about.filter((part) => part !== null).join(", ")));
    const facts = [turn.observed ? `${counted(turn.observed, "token")} read` : null, turn.seconds ? `${shown(turn.seconds)} s` : null,
      turn.reward === null ? null : `reward ${shown(turn.reward)}`].filter((part) => part !== null);
    if (!turn.observation.length && turn.reward === null) return [model];
    const observations = turn.observation.map((message) =>
      message.role === "tool" ? folded(`${message.name || "a tool"} returns`, message.content) : element("pre", {}, message.content));
    return [model, element("div", { class: "bubble environment" },
      element("b", { class: "who" }, speakerOf(turn)), ...observations, element("small", {}, facts.join(", ")))];
  });
  return element("div", { class: "conversation" }, ...bubbles,
    element("p", { class: "note" }, [episode.environment, counted(episode.turns.length, "turn"), episode.end, ...episode.notes].join(", ")),
    episode.failure === null ? null : element("p", { class: "why rule" }, element("b", {}, "failed"), `: ${episode.failure}`),
    (episode.printed || []).length ? folded("what it printed", episode.printed.join("\n")) : null);
}

// tools, a user whom the environment plays, or the environment itself
function speakerOf(turn) {
  const roles = new Set(turn.observation.map((message) => message.role));
  if (roles.size !== 1) return "environment";
  return roles.has("tool") ? "tools" : roles.has("user") ? "user" : "environment";
}

// the tokens from `start` to before `end`, as if they were all
function partOfEntry(entry, start, end) {
  const within = (places) => places.filter((at) => at >= start && at < end).map((at) => at - start);
  return { ...entry, pieces: entry.pieces.slice(start, end), ids: entry.ids.slice(start, end), special: within(entry.special), observed: within(entry.observed) };
}

function partOfValues(values, start, end) {
  return Object.fromEntries(Object.entries(values).map(([name, all]) => [name, all === null ? null : all.slice(start, end)]));
}

function folded(title, text) {
  return element("details", {}, element("summary", {}, title), element("pre", {}, text));
}
