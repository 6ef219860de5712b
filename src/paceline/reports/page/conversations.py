"""A conversation as a page shows it: turns as bubbles, tool calls and their results folded, failures in plain sight."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from paceline.metrics.definitions import Record
from paceline.reports.format import count, short

LONGEST_MESSAGE = 2000
"""Characters of a message that are shown."""

ENDS: Mapping[str, str] = {
    "done": "ended by its environment",
    "max_turns": "all turns used up",
    "length": "cut at the limit",
    "failed": "its environment failed",
    "timed_out": "its environment took too long",
}
"""Why an episode ended, in the words of a page."""


def conversation(episode: Record, *, is_trained: bool) -> str:
    """Draw the turns of an episode, as `rollout_record` has it, in order.

    `is_trained`: the tokens that were sampled have a gradient.
    """
    bubbles = ""
    for number, turn in enumerate(episode["turns"], 1):
        message: Record = turn["message"]
        calls = message.get("tool_calls", ())
        body = _text(message["content"]) if message["content"] or not calls else ""
        body += "".join(_call(one) for one in calls)
        if turn["malformed"] is not None:
            body += f'<p class="fault">a call that could not be read: {escape(str(turn["malformed"]))}</p>'
        facts = [f"turn {number}", f"{count(turn['sampled'], 'token')} {'trained on' if is_trained else 'sampled'}"]
        if turn["prompt_ids"] is not None:
            facts.append("in a context of its own")
        bubbles += (
            f'<div class="bubble model"><b class="who">model</b>{body}<small>{escape(", ".join(facts))}</small></div>'
        )
        said = [f"{count(turn['observed'], 'token')} read"] if turn["observed"] else []
        said += [f"{turn['seconds']:.2g} s"] if turn["seconds"] else []
        said += [f"reward {short(turn['reward'])}"] if turn["reward"] is not None else []
        answers = "".join(_answer(one) for one in turn["observation"])
        if answers or turn["reward"] is not None:
            about = f"<small>{escape(', '.join(said))}</small>" if said else ""
            bubbles += f'<div class="bubble environment"><b class="who">{who(turn)}</b>{answers}{about}</div>'
    if episode["failure"] is not None:
        bubbles += f'<p class="fault">{escape(str(episode["failure"]))}</p>'
    return f'<div class="conversation">{bubbles}</div>'


def who(turn: Record) -> str:
    """Return who answers the model in a turn: tools, a user whom the environment plays, or the environment itself."""
    roles = {str(message["role"]) for message in turn["observation"]}
    return {"tool": "tools", "user": "user"}.get("".join(roles), "environment")


def conversation_facts(episode: Record) -> list[str]:
    """Name the environment, the number of turns and the reason of the end."""
    facts = [str(episode["environment"]), count(len(episode["turns"]), "turn"), ENDS[episode["end"]]]
    return facts + [str(note) for note in episode["notes"]]


def _text(content: object) -> str:
    text = str(content)
    left_out = len(text) - LONGEST_MESSAGE
    if left_out > 0:
        text = f"{text[:LONGEST_MESSAGE]}\n[... {left_out:,} characters ...]"
    return f"<pre>\n{escape(text)}</pre>" if text.strip() else '<em class="blank">(empty)</em>'


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False, indent=1)
    return f"<details><summary>calls {escape(str(function['name']))}</summary>{_text(arguments)}</details>"


def _answer(message: Record) -> str:
    if message["role"] != "tool":
        return _text(message["content"])
    name = escape(str(message["name"])) if "name" in message else "a tool"
    return f"<details><summary>{name} answers</summary>{_text(message['content'])}</details>"
