"""Where the answer stands in a text: the one place that looks for tags, boxes, `####`, code fences and tool calls.

Every function here is pure and linear in the length of the text, whatever the text holds.

thinking.py  what is thought and what is said
tags.py      `<answer>...</answer>`
boxes.py     LaTeX's boxed answers
hashes.py    the `####` of GSM8K
plain.py     the last line of a text without any mark
final.py     the first of these that a text has
fences.py    programs between code fences
actions.py   `Action:` and `Action Input:`, and `<tool_call>...</tool_call>`
"""

from paceline.extraction.actions import (
    CLOSE_CALL,
    OPEN_CALL,
    Action,
    actions,
    labels,
    last_action,
    tool_call_blocks,
)
from paceline.extraction.boxes import last_boxed, unboxed
from paceline.extraction.fences import last_code_block
from paceline.extraction.final import final_answer
from paceline.extraction.hashes import closing_hashes, last_hashes
from paceline.extraction.plain import plain_answer
from paceline.extraction.tags import CLOSE_ANSWER, OPEN_ANSWER, last_answer_tag, stand_once_in_order
from paceline.extraction.thinking import (
    CLOSE_REASONING,
    CLOSE_THINK,
    OPEN_REASONING,
    OPEN_THINK,
    prefill,
    prefills_think,
    visible_text,
)

__all__ = [
    "OPEN_THINK",
    "CLOSE_THINK",
    "OPEN_REASONING",
    "CLOSE_REASONING",
    "OPEN_ANSWER",
    "CLOSE_ANSWER",
    "OPEN_CALL",
    "CLOSE_CALL",
    "prefill",
    "prefills_think",
    "visible_text",
    "last_answer_tag",
    "stand_once_in_order",
    "last_boxed",
    "unboxed",
    "last_hashes",
    "closing_hashes",
    "plain_answer",
    "final_answer",
    "last_code_block",
    "Action",
    "labels",
    "actions",
    "last_action",
    "tool_call_blocks",
]
