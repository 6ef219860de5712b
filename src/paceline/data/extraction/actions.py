r"""Actions of a completion: ReAct's `Action:` and `Action Input:`, or `<tool_call>...</tool_call>`.

The second is the form of the Hermes and Qwen chat templates: one JSON object per tag.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

OPEN_CALL, CLOSE_CALL = "<tool_call>", "</tool_call>"

_LABEL = re.compile(r"^[ \t]*(Thought|Action Input|Action|Observation|Final Answer)[ \t]*:", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One `Action:` with its `Action Input:`."""

    name: str
    """Text after `Action:`, stripped; not empty."""
    input: str
    """Text after `Action Input:`, up to the next label, stripped: JSON for most tools."""


def labels(text: str) -> list[str]:
    """Return the labels that start a line, in order: Thought, Action, Action Input, Observation, Final Answer."""
    return _LABEL.findall(text)


def actions(text: str) -> list[Action]:
    """Return every `Action:` directly followed by an `Action Input:`, up to the first `Observation:`, in order.

    What a model writes after `Observation:` it has made up itself: the tool has not been called yet.

    >>> actions('Thought: look it up\\nAction: search\\nAction Input: {"q": "42"}\\nObservation: none')
    [Action(name='search', input='{"q": "42"}')]
    """
    pieces = _LABEL.split(text)
    labelled = list(zip(pieces[1::2], pieces[2::2], strict=True))
    end = next((place for place, (label, _) in enumerate(labelled) if label == "Observation"), len(labelled))
    return [
        Action(name=name.strip(), input=content.strip())
        for (label, name), (following, content) in pairwise(labelled[:end])
        if label == "Action" and following == "Action Input" and name.strip()
    ]


def last_action(text: str) -> Action | None:
    """Return the last of the `actions`; None without one."""
    found = actions(text)
    return found[-1] if found else None


def tool_call_blocks(text: str) -> list[str] | None:
    """Return the content of each `<tool_call>...</tool_call>`, stripped; None if tags do not pair up.

    >>> tool_call_blocks('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    ['{"name": "f", "arguments": {}}']
    """
    before, *parts = text.split(OPEN_CALL)
    split = [part.partition(CLOSE_CALL) for part in parts]
    is_whole = CLOSE_CALL not in before and all(closed and CLOSE_CALL not in rest for _, closed, rest in split)
    return [content.strip() for content, _, _ in split] if is_whole else None
