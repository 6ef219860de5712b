r"""One spelling for answers that are written in many: `$\dfrac12$.` becomes `\frac{1}{2}`.

Only the spelling changes, never the value: no comma, brace or letter that carries meaning is removed. Characters that
look like others are read as follows:

| written                                              | read as                                             |
|------------------------------------------------------|-----------------------------------------------------|
| digits of any script: full width, Arabic-Indic, bold | the ASCII digit of the same value                   |
| full-width punctuation and letters                   | ASCII                                               |
| minus sign, hyphens, figure and en dash              | `-`                                                 |
| superscript and subscript digits, Greek letters      | `^{2}`, `_{2}`, `\alpha`                            |
| no-break, thin and ideographic spaces                | a space; between groups of three digits, a comma    |
| zero-width characters, soft hyphen                   | nothing                                             |
| marks that change the direction of writing           | themselves, which equal nothing                     |
| letters of other alphabets                           | themselves: a Cyrillic A does not answer `A`        |
"""

import re
import unicodedata
from functools import lru_cache

from paceline.data.extraction.answers import unboxed

_SYMBOLS = {
    "\N{MULTIPLICATION SIGN}": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "÷": r"\div ",
    "\N{DIVISION SLASH}": "/",
    "\N{FRACTION SLASH}": "/",
    "∞": r"\infty ",
    "±": r"\pm ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "\N{UNION}": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "\N{DOUBLE-STRUCK CAPITAL R}": r"\mathbb{R}",
    **{
        sign: rf"\frac{{{above}}}{{{below}}}"
        for sign, above, below in ("½12", "⅓13", "⅔23", "¼14", "¾34", "⅕15", "⅛18")
    },
    "º": "°",
    "\N{MODIFIER LETTER PRIME}": "'",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{IDEOGRAPHIC FULL STOP}": ".",
    "\N{IDEOGRAPHIC COMMA}": ",",
}
_GREEK_LETTERS = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
_GREEK = {
    unicodedata.lookup(
        f"GREEK {'SMALL' if name.islower() else 'CAPITAL'} LETTER {name.replace('mb', 'm')}"
    ): f"\\{name} "
    for name in _GREEK_LETTERS.split()
}
_DASHES = dict.fromkeys(
    "\N{MINUS SIGN}\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{FIGURE DASH}\N{EN DASH}\N{SMALL HYPHEN-MINUS}", "-"
)
_SPACES = dict.fromkeys("\u00a0\u2007\u2008\u3000", " ")
_NOTHING = dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", "")
_FULL_WIDTH = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_CHARACTERS = str.maketrans(_FULL_WIDTH | _GREEK | _SYMBOLS | _DASHES | _SPACES | _NOTHING)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")

_REWRITES = tuple(
    (sign, re.compile(pattern), replacement)
    for sign, pattern, replacement in (
        ("frac", r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        ("frac", r"\\frac\s*([0-9])\s*([0-9])(?![0-9])", r"\\frac{\1}{\2}"),
        ("frac", r"\\frac\s*([0-9])\s*\{([^{}]*)\}", r"\\frac{\1}{\2}"),
        ("frac", r"\\frac\s*\{([^{}]*)\}\s*([0-9a-zA-Z])(?![0-9])", r"\\frac{\1}{\2}"),
        ("\\sqrt", r"\\sqrt\s*([0-9a-zA-Z])(?![0-9])", r"\\sqrt{\1}"),
        ("\\", r"\\left\s*\.|\\right\s*\.", ""),
        ("\\", r"\\(?:left|right|displaystyle|textstyle|bigl|bigr|Bigl|Bigr|big|Big|limits)(?![a-zA-Z])", ""),
        ("\\,", r"(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))", ","),
        ("{,}", r"\{,\}", ","),
        ("\\", r"(?<!\\)\\[,;: ]", " "),
        ("~", r"~", " "),
        ("\\!", r"\\!", ""),
        ("\\circ", r"\^\s*\{?\s*\\circ\s*\}?|\\circ$", "°"),
        ("\\degree", r"\\degree(?![a-zA-Z])", "°"),
        ("\\", r"\\([%$])", r"\1"),
        ("**", r"\*\*", "^"),
        ("^", r"\^\s*([0-9]{2,})", r"^{\1}"),
        ("mod", r"mod\s*([0-9])(?![0-9])", r"mod{\1}"),
        ("angle", r"\\langle(?![a-zA-Z])", "("),
        ("angle", r"\\rangle(?![a-zA-Z])", ")"),
        ("_", r"_\s*([0-9])(?![0-9])", r"_{\1}"),
        ("\\le", r"\\(?:leq|leqslant)(?![a-zA-Z])", r"\\le "),
        ("\\ge", r"\\(?:geq|geqslant)(?![a-zA-Z])", r"\\ge "),
        ("<=", r"<=", r"\\le "),
        (">=", r">=", r"\\ge "),
        ("\\lt", r"\\lt(?![a-zA-Z])", "<"),
        ("\\gt", r"\\gt(?![a-zA-Z])", ">"),
        ("\\neq", r"\\neq(?![a-zA-Z])", r"\\ne "),
        ("!=", r"!=", r"\\ne "),
        ("\\", r"\\(?:varnothing|emptyset)(?![a-zA-Z])|\\\{\s*\\\}", r"\\emptyset "),
        ("R", r"\\(?:mathbb|Bbb)\s*\{?\s*R\s*\}?|\\R(?![a-zA-Z])", r"(-\\infty,\\infty)"),
        ("ll real", r"^[Aa]ll real(?:s| numbers)$", r"(-\\infty,\\infty)"),
        ("brace", r"\\lbrace(?![a-zA-Z])", r"\\{"),
        ("brace", r"\\rbrace(?![a-zA-Z])", r"\\}"),
        ("\\log", r"\\log\s*_\s*(?:\{\s*e\s*\}|e(?![a-zA-Z]))", r"\\ln "),
        ("\\dot", r"\\dot\s*\{?([0-9])\}?([0-9]*)\\dot\s*\{?([0-9])\}?", r"\\overline{\1\2\3}"),
        ("\\dot", r"(?<=[0-9.])\\dot\s*\{?([0-9])\}?", r"\\overline{\1}"),
        ("pi", r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
        ("inf", r"(?<![a-zA-Z\\])(?:inf|infty|infinity)(?![a-zA-Z])", r"\\infty "),
        ("\\infty", r"\+\s*(?=\\infty)", ""),
        ("sqrt", r"(?<![a-zA-Z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        ("√", r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        ("√", r"√\s*([0-9]+|[a-zA-Z])", r"\\sqrt{\1}"),
    )
)
"""What a text has to hold for the rewriting to concern it, the pattern, and what becomes of it; in this order."""
_PLAIN = re.compile(r"-?[0-9][0-9.,/]*[0-9]|-?[0-9]")
_THIN_SPACE = re.compile(r"(?<=[0-9])[\u2009\u200a\u202f](?=[0-9]{3}(?![0-9]))")
_SPACE = re.compile(r"\s+")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|textrm|mbox|boldsymbol|bm)\s*\{([^{}]*)\}", re.DOTALL)
_SINGLETON = re.compile(r"\\\{((?!.*\\mid)(?:[^(),;\\]|\\[a-zA-Z])+)\\\}")
"""A set of one element. One letter after a backslash: the rest of a command reads as other characters, in one way."""
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))


@lru_cache(maxsize=4096)
def normalise(answer: str) -> str:
    r"""The answer in one spelling: no maths delimiters, outer box, font command, sizing, trailing full stop.

    >>> normalise(r"$\boxed{\dfrac12}$.")
    '\\frac{1}{2}'
    """
    if _PLAIN.fullmatch(answer):
        return answer
    text = answer
    if not text.isascii():
        text = text.translate(_CHARACTERS)
        text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda found: f"^{{{found[0].translate(_SUPERSCRIPTS)}}}", text)
        text = re.sub(r"[₀₁₂₃₄₅₆₇₈₉]+", lambda found: f"_{{{found[0].translate(_SUBSCRIPTS)}}}", text)
        # Decimal digits of any script.
        text = _THIN_SPACE.sub(",", "".join(str(unicodedata.decimal(character, character)) for character in text))
    text, before = text.strip(), ""
    while text != before:
        text, before = _unwrapped(text), text
    for sign, pattern, replacement in _REWRITES:
        if sign in text:
            text = pattern.sub(replacement, text)
    text = _SPACE.sub(" ", text).strip()
    single = _SINGLETON.fullmatch(text)  # again: its brackets may have been sized
    return single[1].strip() if single else text


def _unwrapped(text: str) -> str:
    """One layer of wrapping less; the same text when there is none."""
    if text.endswith(".") and not text.endswith(".."):
        return text[:-1].rstrip()
    for start, end in _DELIMITERS:
        inner = text[len(start) : -len(end)]
        if text.startswith(start) and text.endswith(end) and inner.strip() and start not in inner:
            return inner.strip()
    if single := _SINGLETON.fullmatch(text):
        return single[1].strip()
    whole = _WRAPPER.fullmatch(text)
    return whole[1].strip() if whole else unboxed(text)
