r"""Normalisation of answers to one spelling: `$\dfrac12$.` becomes `\frac{1}{2}`.

Only the spelling changes, never the value: no comma, brace or letter with a meaning is removed. Conversions of
characters:

| written                                              | read as                                             |
|------------------------------------------------------|-----------------------------------------------------|
| digits of any script: full width, Arabic-Indic, bold | the ASCII digit of the same value                   |
| full-width punctuation and letters                   | ASCII                                               |
| minus sign, hyphens, figure and en dash              | `-`                                                 |
| superscript and subscript digits, Greek letters      | `^{2}`, `_{2}`, `\alpha`                            |
| no-break, thin and ideographic spaces                | a space; between groups of three digits, a comma    |
| zero-width characters, soft hyphen                   | nothing                                             |
| marks that change the direction of writing           | themselves, which equal nothing                     |
| bold and italic letters of mathematics               | the plain letter                                    |
| letters of other alphabets                           | themselves: a Cyrillic A does not answer `A`        |
| `=`, an arrow or `\therefore` in front                | nothing                                             |
| underlines, and colours but white                    | nothing                                             |
| `1 000`, `1'000`, `1_000`: groups of three digits    | `1000`                                              |
"""

import re
import unicodedata
from functools import lru_cache

from paceline.data.answers import unboxed

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
    "≈": r"\approx ",
    "\N{TILDE OPERATOR}": r"\sim ",
    "≡": r"\equiv ",
    "∠": r"\angle ",
    "\N{DIVIDES}": r"\mid ",
    "⇒": r"\Rightarrow ",
    "→": r"\rightarrow ",
    "∴": r"\therefore ",
    "\N{SCRIPT SMALL E}": "e",
    "\N{DOUBLE-STRUCK ITALIC SMALL E}": "e",
    "\N{DOUBLE-STRUCK ITALIC SMALL I}": "i",
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
_STYLED = {
    chr(code): letter
    for code in range(0x1D400, 0x1D7CC)
    if len(letter := unicodedata.normalize("NFKC", chr(code))) == 1
    and letter.isalpha()
    and not re.search("DOUBLE-STRUCK|FRAKTUR|SCRIPT", unicodedata.name(chr(code), ""))
}
"""Bold, italic, sans-serif and monospaced letters; those of other alphabets, such as double-struck ones, differ."""
_CHARACTERS = str.maketrans(
    {sign: _GREEK.get(letter, letter) for sign, letter in _STYLED.items()}
    | _FULL_WIDTH
    | _GREEK
    | _SYMBOLS
    | _DASHES
    | _SPACES
    | _NOTHING
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")

_EDGE = re.compile(r"^(?:\\q?quad(?![a-zA-Z])|\\[,;:!]|\s)+|(?<!\\)\\(?:q?quad|[,;:!])$")
_COLOUR = r"(?!white|none|transparent)[a-zA-Z]+"
_FUNCTIONS = (
    "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|coth|ln|log|lg|exp|max|min|gcd|lcm|det|tg|ctg"
    "|arcsinh|arsinh|asinh|arccosh|arcosh|acosh|arctanh|artanh|atanh"
)
_OPERATORS = "Re|Im|tr|Tr|rank|dim|ker|sgn|sign|deg|Var|Cov|arg|Arg|diag|span|adj"
_MOD = r"\\(?:text|mathrm|operatorname)\s*\{\s*mod\s*\}|\\[pb]?mod(?![a-zA-Z])|(?<![a-zA-Z\\])mod(?![a-zA-Z])"
_PHANTOM = r"\\[hv]?phantom\s*\{[^{}]*\}"
_MIXED_PART = r"[ ]?/|[ ]?\\frac|[ ][0-9]"


def _joined(groups: re.Match[str]) -> str:
    """Remove the separators between groups of digits in `1 000`."""
    return re.sub("[ '_]", "", groups[0])


_REWRITES = tuple(
    (sign, re.compile(pattern), replacement)
    for sign, pattern, replacement in (
        ("phantom", rf"(?<=[0-9])(?:\s*{_PHANTOM})+\s*(?=[0-9])", r"\\quad "),
        ("phantom", _PHANTOM, ""),
        ("color", rf"\\(?:text)?color\s*\{{{_COLOUR}\}}\s*(?=\{{)", ""),
        ("color", rf"\\color\s*\{{{_COLOUR}\}}\s*", ""),
        ("underline", r"(?<![0-9a-zA-Z.])\\underline\s*\{([^{}]*)\}(?![0-9a-zA-Z.])", r"\1"),
        ("rm", r"\{\s*\\rm\s+([ei])\s*\}|\\rm\s+([ei])(?![a-zA-Z])", r"\1\2"),
        ("{", r"\\(?:mathrm|text|operatorname|textrm|mathit|mathnormal|rm)\s*\{\s*([ei])\s*\}", r"\1"),
        ("\\math", r"\\(?:mathbf|mathit|mathnormal|mathsf)\s*\{\s*([a-zA-Z])\s*\}", r"\1"),
        ("{", rf"\\(?:operatorname\*?|mathrm|text|rm)\s*\{{\s*({_FUNCTIONS})\s*\}}", r"\\\1 "),
        ("\\Re", r"\\(Re)(?![a-zA-Z])\s*", r"\\operatorname{\1}"),
        ("\\Im", r"\\(Im)(?![a-zA-Z])\s*", r"\\operatorname{\1}"),
        ("{", rf"\\(?:operatorname\*?|mathrm|text|rm)\s*\{{\s*({_OPERATORS})\s*\}}\s*", r"\\operatorname{\1}"),
        ("sinh", r"\\(?:arcsinh|arsinh|asinh)(?![a-zA-Z])", r"\\arsinh "),
        ("cosh", r"\\(?:arccosh|arcosh|acosh)(?![a-zA-Z])", r"\\arcosh "),
        ("tanh", r"\\(?:arctanh|artanh|atanh)(?![a-zA-Z])", r"\\artanh "),
        ("\\lg", r"\\lg(?![a-zA-Z])", r"\\log_{10} "),
        ("tg", r"\\(c?)tg(?![a-zA-Z])", lambda match: r"\cot " if match[1] else r"\tan "),
        ("mod", rf"\(\s*(?:{_MOD})\s*\{{?\s*(\w+)\s*\}}?\s*\)", r"\\pmod{\1}"),
        ("mod", rf"(?:{_MOD})\s*\{{?\s*(\w+)\s*\}}?$", r"\\pmod{\1}"),
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
        ("~", r"~=|(?:^|=\s*)~", r"\\approx "),
        ("~", r"~", " "),
        ("", rf"(?<![0-9a-zA-Z.,_^{{\\])[1-9][0-9]{{0,2}}(?:[ '_][0-9]{{3}})+(?![0-9_']|{_MIXED_PART})", _joined),
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
"""Text that has to occur for the pattern to apply, the pattern, and its replacement; in this order."""
_PLAIN = re.compile(r"-?[0-9][0-9.,/]*[0-9]|-?[0-9]")
_THIN_SPACE = re.compile(r"(?<=[0-9])[\u2009\u200a\u202f](?=[0-9]{3}(?![0-9]))")
_SPACE = re.compile(r"\s+")
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|textrm|mbox|boldsymbol|bm|emph|underline|colorbox\s*\{(?!black)[a-zA-Z]+\}"
    r"|textcolor\s*\{(?!white)[a-zA-Z]+\}|(?:text)?color\s*\{(?!white)[a-zA-Z]+\}"
    r"|overline(?=\{-?[0-9]+\}$|\{\\underline))\s*\{",
    re.DOTALL,
)
"""A command that changes how its argument looks; white text is invisible and not such a command."""
_LEADING = re.compile(
    r"(?:(?:=(?![=>])|=>|->|\\(?:Rightarrow|Longrightarrow|implies|therefore|rightarrow|longrightarrow|to)(?![a-zA-Z]))\s*)+"
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_MARKUP = re.compile(r"<(b|strong|i|em|u)>(.*)</\1>", re.DOTALL)
_SINGLETON = re.compile(r"\\\{((?!.*\\mid|\s*[a-zA-Z]\s*(?:\\in[^|:]*)?(?:\||:|\\vert))(?:[^(),;\\]|\\[a-zA-Z])+)\\\}")
"""A set of one element. One letter after a backslash: the rest of a command reads as other characters, in one way."""
_DELIMITERS = (
    ("$$", "$$"),
    ("$", "$"),
    (r"\(", r"\)"),
    (r"\[", r"\]"),
    ("**", "**"),
    ("__", "__"),
    ("*", "*"),
    ("`", "`"),
)


@lru_cache(maxsize=4096)
def normalise(answer: str) -> str:
    r"""Return the answer in one spelling: no maths delimiters, outer box, font command, sizing, trailing full stop.

    >>> normalise(r"$\boxed{\dfrac12}$.")
    '\\frac{1}{2}'
    """
    if _PLAIN.fullmatch(answer):
        return answer
    text = answer
    if not text.isascii():
        text = text.translate(_CHARACTERS)
        text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda digits: f"^{{{digits[0].translate(_SUPERSCRIPTS)}}}", text)
        text = re.sub(r"[₀₁₂₃₄₅₆₇₈₉]+", lambda digits: f"_{{{digits[0].translate(_SUBSCRIPTS)}}}", text)
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
    """Remove one layer of wrapping; the same text when there is none."""
    if text.endswith(".") and not text.endswith(".."):
        return text[:-1].rstrip()
    if edge := _EDGE.search(text):
        return (text[: edge.start()] + text[edge.end() :]).strip()
    if text.endswith("~"):
        return text.rstrip("~ ")
    for start, end in _DELIMITERS:
        inner = text[len(start) : -len(end)]
        if text.startswith(start) and text.endswith(end) and inner.strip() and start not in inner:
            return inner.strip()
    if single := _SINGLETON.fullmatch(text):
        return single[1].strip()
    if leading := _LEADING.match(text):
        return text[leading.end() :]
    if markup := _MARKUP.fullmatch(text):
        return markup[2].strip()
    argument = _argument(text)
    return unboxed(text) if argument is None else argument


def _argument(text: str) -> str | None:
    """Return the argument of a font command that is the whole text; None for any other text."""
    start = _WRAPPER.match(text)
    if start is None or not text.endswith("}"):
        return None
    depth = 1
    for brace in _BRACE.finditer(text, start.end()):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start.end() : -1].strip() if brace.end() == len(text) else None
    return None
