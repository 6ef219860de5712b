r"""One spelling for answers that are written in many: `$\dfrac12$.` becomes `\frac{1}{2}`.

Only the spelling changes, never the value: no comma, brace or letter that carries meaning is removed.
"""

import re

from paceline.rewards.extraction import unboxed

_SYMBOLS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "·": r"\cdot ",
        "÷": r"\div ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "±": r"\pm ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "\N{UNION}": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "²": "^2",
        "³": "^3",
        "½": r"\frac{1}{2}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "\u00a0": " ",
    }
)
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dt]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\frac\s*([0-9])\s*([0-9])(?![0-9])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*\{([^{}]*)\}\s*([0-9])(?![0-9])", r"\\frac{\1}{\2}"),
        (r"\\(?:left|right|displaystyle)(?![a-zA-Z])", ""),
        (r"\{,\}", ","),
        (r"(?<!\\)\\[,;: ]|~", " "),
        (r"\\!", ""),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])", "°"),
        (r"\\([%$])", r"\1"),
        (r"\*\*", "^"),
        (r"\^\s*([0-9]{2,})", r"^{\1}"),
        (r"_\s*([0-9])(?![0-9])", r"_{\1}"),
        (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
        (r"(?<![a-zA-Z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\s+", " "),
    )
)
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|textrm)\s*\{([^{}]*)\}", re.DOTALL)
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))


def normalise(answer: str) -> str:
    r"""The answer in one spelling: no maths delimiters, outer box, font command, sizing, trailing full stop.

    >>> normalise(r"$\boxed{\dfrac12}$.")
    '\\frac{1}{2}'
    """
    text = answer.strip()
    while True:
        shorter = _unwrapped(text)
        if shorter == text:
            break
        text = shorter
    text = text.translate(_SYMBOLS)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text.strip()


def _unwrapped(text: str) -> str:
    """One layer of wrapping less; the same text when there is none."""
    if text.endswith(".") and not text.endswith(".."):
        return text[:-1].rstrip()
    for start, end in _DELIMITERS:
        inner = text[len(start) : -len(end)]
        if text.startswith(start) and text.endswith(end) and inner.strip() and start not in inner:
            return inner.strip()
    whole = _WRAPPER.fullmatch(text)
    return whole[1].strip() if whole else unboxed(text)
