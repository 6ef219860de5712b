"""The forms in which an answer can be handed in."""

from collections.abc import Mapping

OPEN_THINK = "<think>"

WRAPPINGS: Mapping[str, str] = {
    "bare": "{}",
    "box": r"The answer is \boxed{{{}}}.",
    "answer tags": "<answer>{}</answer>",
    "think and answer tags": "<think>Worked out.</think><answer>{}</answer>",
    "reasoning and answer tags": "<reasoning>\nWorked out.\n</reasoning>\n<answer>\n{}\n</answer>\n",
    "hashes": "Worked out.\n#### {}",
    "code fence": "```python\n{}\n```",
}
"""By name, a format with one place for the answer."""


def wrapped(name: str, content: str) -> str:
    r"""A completion that hands in `content` in one of the `WRAPPINGS`.

    >>> wrapped("hashes", "42")
    'Worked out.\n#### 42'
    """
    return WRAPPINGS[name].format(content)


def continued(prompt: str, completion: str) -> str:
    """The completion as it continues a prompt that has opened `<think>` already: the tag is not opened again.

    >>> continued("2 + 2? <think>", "<think>Easy.</think> 4"), continued("2 + 2? <think>", "4")
    ('Easy.</think> 4', '</think>4')
    """
    if not prompt.rstrip().endswith(OPEN_THINK):
        return completion
    if completion.startswith(OPEN_THINK):
        return completion.removeprefix(OPEN_THINK)
    return f"</think>{completion}"
