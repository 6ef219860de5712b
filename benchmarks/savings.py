"""What the layout of a training pass saves: tokens and operations of other layouts on the same completions.

Pure functions, operations of one forward pass; the backward pass is a multiple of it in every layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from step_work import Group, Shape, Training, attention, completion_pairs, prompt_pairs


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One way to compute the log-probabilities of a step's completions."""

    name: str
    tokens: int
    """That enter the layers."""
    operations: float


def layouts(shape: Shape, groups: Sequence[Group]) -> list[Layout]:
    """From the plainest way to the one in use; each row leaves out one more thing that nobody needs."""
    rows = [(group.prompt, length) for group in groups for length in group.completions]
    longest = max(prompt for prompt, _ in rows), max(length for _, length in rows)
    padded = [longest] * len(rows)
    shared = Training.of(shape, groups)
    return [
        _plain("rows padded to the longest, head at every position", shape, padded, head=_inputs(padded)),
        _plain("head at completion positions only", shape, padded, head=sum(length for _, length in padded)),
        _plain("no padding", shape, rows, head=sum(length for _, length in rows)),
        Layout(
            name="each prompt once, the last layer where it is read",
            tokens=shared.tokens,
            operations=shared.products + shared.attention + shared.head,
        ),
    ]


def _inputs(rows: Sequence[tuple[int, int]]) -> int:
    return sum(prompt + length - 1 for prompt, length in rows)


def _plain(name: str, shape: Shape, rows: Sequence[tuple[int, int]], *, head: int) -> Layout:
    """Every row with its own prompt, as if the rows were the tokens that exist."""
    layer = shape.kv_projection + shape.rest_of_layer
    pairs = sum(prompt_pairs(prompt) + completion_pairs(prompt, length) for prompt, length in rows)
    tokens = _inputs(rows)
    operations = shape.layers * (2 * layer * tokens + attention(shape, pairs)) + 2 * shape.head * head
    return Layout(name=name, tokens=tokens, operations=operations)
