"use strict";
// A conversation: turns as bubbles, tool calls and their results folded.

function conversation(episode) {
  const bubbles = episode.turns.flatMap((turn, number) => {
    const calls = turn.message.tool_calls || [];
    const about = [`turn ${number + 1}`, `${counted(turn.sampled, "token")} trained on`, turn.prompt_ids ? "in a context of its own" : null];
    const model = element("div", { class: "bubble model" },
      turn.message.content || !calls.length ? element("pre", {}, turn.message.content) : null,
      ...calls.map((call) => folded(`calls ${call.function.name}`, JSON.stringify(call.function.arguments, null, 1))),
      turn.malformed === null ? null : element("p", { class: "why rule" }, element("b", {}, "a call that could not be read"), `: ${turn.malformed}`),
      element("small", {}, about.filter((part) => part !== null).join(", ")));
    const said = [turn.observed ? `${counted(turn.observed, "token")} read` : null, turn.seconds ? `${shown(turn.seconds)} s` : null,
      turn.reward === null ? null : `reward ${shown(turn.reward)}`].filter((part) => part !== null);
    if (!turn.answer.length && turn.reward === null) return [model];
    const answers = turn.answer.map((message) =>
      message.role === "tool" ? folded(`${message.name || "a tool"} answers`, message.content) : element("pre", {}, message.content));
    return [model, element("div", { class: "bubble environment" }, ...answers, element("small", {}, said.join(", ")))];
  });
  return element("div", { class: "conversation" }, ...bubbles,
    element("p", { class: "note" }, [episode.environment, counted(episode.turns.length, "turn"), episode.end, ...episode.notes].join(", ")),
    episode.failure === null ? null : element("p", { class: "why rule" }, element("b", {}, "failed"), `: ${episode.failure}`),
    (episode.printed || []).length ? folded("what it printed", episode.printed.join("\n")) : null);
}

function folded(title, text) {
  return element("details", {}, element("summary", {}, title), element("pre", {}, text));
}
