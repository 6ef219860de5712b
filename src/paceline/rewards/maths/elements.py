r"""Answers with parts: tuples, intervals, sets, lists, unions, matrices; and inequalities read as intervals."""

import re
from collections.abc import Callable
from dataclasses import dataclass

MAX_UNORDERED = 32  # Elements of a set that is compared in any order; the work grows with the square

_GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|"
    "upsilon|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega"
)
# Letters only: with any command for a name, `\not = 42` would give 42 the name `\not`.
NAME = rf"(?:[a-zA-Z]|\\(?:{_GREEK})(?![a-zA-Z]))" + r"(?:_\{?\w+\}?)?(?:\([a-zA-Z]\))?"
LABEL = (
    rf"(?:{NAME}|(?:m ?|\\text ?\{{ ?m ?\}} ?)?\\angle ?\{{? ?[A-Z]{{1,3}} ?\}}?"
    r"|[A-Z]{2}|\|[A-Z]{2}\||\\overline ?\{ ?[A-Z]{2} ?\})"
)
"""A name of a value: a letter, or what geometry calls an angle or a segment."""
_BOUND = r"(?:[^<>=a-zA-Z\\,;]|\\(?:frac|sqrt|pi|infty)(?![a-zA-Z]))+"
_BELOW, _ABOVE = r"(?:<|\\le(?![a-zA-Z]))", r"(?:>|\\ge(?![a-zA-Z]))"
_BETWEEN = tuple(re.compile(rf"({_BOUND})({sign}) ?({NAME}) ?({sign})({_BOUND})") for sign in (_BELOW, _ABOVE))
_ONE_SIDED = re.compile(rf"({NAME}) ?({_BELOW}|{_ABOVE}|\\ne(?![a-zA-Z]))({_BOUND})")
_ONE_SIDED_REVERSED = re.compile(rf"({_BOUND})({_BELOW}|{_ABOVE}|\\ne(?![a-zA-Z])) ?({NAME})")
_VALUE_FIRST = re.compile(rf"({_BOUND})= ?({NAME})")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}
_OPEN, _CLOSE = {"<": "(", ">": "(", r"\le": "[", r"\ge": "["}, {"<": ")", ">": ")", r"\le": "]", r"\ge": "]"}
_AND, _OR = r"and|und|et", r"or|oder|ou"
_AND_SIGNS, _OR_SIGNS = r"和|与|且|及|そして", r"或者|或|または|又は"
_CONJUNCTION = re.compile(
    rf"(?:\\q?quad|\s)*(?:\\(?:text|mathrm)\s*\{{\s*({_OR}|{_AND}|{_OR_SIGNS}|{_AND_SIGNS})\s*\}}"
    rf"|((?<![a-zA-Z\\])(?:{_OR}|{_AND})(?![a-zA-Z])|{_OR_SIGNS}|{_AND_SIGNS})|\\(lor|vee)(?![a-zA-Z]))"
    r"(?:\\q?quad|\s)*"
)
_ANDS = frozenset(f"{_AND}|{_AND_SIGNS}".split("|"))
_PLAIN_WORD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{2,}|\\text")
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])")
_MATRIX = re.compile(
    r"[\[(]?\s*\\begin\{(?P<kind>[pb]?matrix|array|smallmatrix)\}(?:\s*\{[lcr| ]*\})?"
    r"(?P<body>(?:(?!\\begin).)*)\\end\{(?P=kind)\}\s*[\])]?",
    re.DOTALL,
)
_SYSTEM = re.compile(
    r"(?:\\\{)?\s*\\begin\{(?P<kind>aligned|align\*?|cases|array|gathered|split)\}(?:\{[lcr ]*\})?"
    r"(?P<body>(?:(?!\\begin).)*)\\end\{(?P=kind)\}",
    re.DOTALL,
)
_EQUATION = re.compile(r"([a-zA-Z](?:_\{?\w+\}?)?) ?= ?([^=]+)")
_NAMED_TUPLE = re.compile(r"(\([^()=]*\)) ?= ?(\(.*\))")
_INTERVAL_PART = r"[\[\](] ?[^\[\]();,]+[,;][^\[\]();,]+[\[\])]"
_INTERVALS = re.compile(rf"(?:{NAME} ?\\in ?)?{_INTERVAL_PART}(?: ?\\cup ?{_INTERVAL_PART})*")
_SET_BUILDER = re.compile(
    rf"\\\{{ ?(?P<name>{NAME}) ?(?:\\in ?\(-\\infty,\\infty\) ?)?(?:\\mid(?![a-zA-Z])|\\vert(?![a-zA-Z])|\||:)"
    r" ?(?P<condition>[^|:]*?)(?:, ?(?P=name) ?\\in ?\(-\\infty,\\infty\))? ?\\\}"
)
_TRANSPOSED = re.compile(
    r"(?P<row>[\[(].*[\])]) ?\^ ?\{? ?(?:T|\\top|\\intercal|\\(?:mathrm|mathsf|text) ?\{ ?T ?\}) ?\}?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Collection:
    """Several elements between brackets, or bare (`6, 4`)."""

    brackets: str
    """Opening and closing bracket, `{}` for a set and for a bare list; `union`; `matrix 2x3`."""
    elements: tuple[str, ...]

    def matches(self, answer: "Collection", equal: Callable[[str, str], bool]) -> bool:
        """Return whether brackets and elements are the same, in the same order unless it is a set or a union."""
        if self.brackets != answer.brackets or len(self.elements) != len(answer.elements):
            return False
        if self.brackets not in ("{}", "union") or len(self.elements) > MAX_UNORDERED:
            return all(equal(gold, stated) for gold, stated in zip(self.elements, answer.elements, strict=True))
        left = list(answer.elements)
        for gold in self.elements:
            match = gold if gold in left else next((stated for stated in left if equal(gold, stated)), None)
            if match is None:
                return False
            left.remove(match)
        return True


def collection(text: str) -> Collection | None:
    r"""Read a collection of two or more elements; None for a single value. `\pm 2` is the set of 2 and -2."""
    if matrix := _MATRIX.fullmatch(text):
        rows = [row.split("&") for row in re.split(r"\\\\", matrix["body"].strip().removesuffix(r"\\"))]
        shape = "x".join([str(len(rows)), *sorted({str(len(row)) for row in rows})])
        cells = tuple(cell.strip() for row in rows for cell in row)  # row by row
        return Collection(brackets=f"matrix {shape}", elements=cells)
    joined = split(text, separator=r"\cup")
    if len(joined) > 1:
        return Collection(brackets="union", elements=tuple(joined))
    plain = text.replace(r"\{", "{").replace(r"\}", "}")
    brackets, inner = _outer_brackets(plain)
    elements = [sign for element in split(inner) for sign in _both_signs(element)]
    if len(elements) < 2:
        return None
    return Collection(brackets=brackets or "{}", elements=tuple(elements))


def is_matrix(text: str) -> bool:
    """Return whether the text is one matrix and nothing else."""
    return _MATRIX.fullmatch(text) is not None


def matrix_of_list(text: str) -> Collection | None:
    """Read a matrix that is written as a list of rows, `[[1,2],[3,4]]`, or as a transposed row, `[1,2]^T`."""
    if transposed := _TRANSPOSED.fullmatch(text):
        brackets, inner = _outer_brackets(transposed["row"])
        cells = split(inner)
        if not brackets or any(cell[:1] in "([{" for cell in cells):
            return None
        return Collection(brackets=f"matrix {len(cells)}x1", elements=tuple(cells))
    brackets, inner = _outer_brackets(text)
    rows = [_outer_brackets(row) for row in split(inner)]
    if brackets not in ("[]", "()") or any(row[0] != brackets for row in rows):
        return None
    cells_of_rows = [split(row) for _, row in rows]
    shape = "x".join([str(len(rows)), *sorted({str(len(row)) for row in cells_of_rows})])
    return Collection(brackets=f"matrix {shape}", elements=tuple(cell for row in cells_of_rows for cell in row))


def equations(text: str) -> dict[str, str] | None:
    """Read the values of a system `x=2, y=3` or `(x,y)=(2,3)` by their names; None for anything else.

    Two names or more, each once. A value that names one of the others is none that is solved for.
    """
    if named := _NAMED_TUPLE.fullmatch(text):
        names, values = ([part.strip() for part in split(_outer_brackets(group)[1])] for group in named.groups())
        pairs = list(zip(names, values, strict=False)) if len(names) == len(values) else []
    else:
        matched = [_EQUATION.fullmatch(part) for part in split(text)]
        pairs = [(part[1], part[2].strip()) for part in matched if part] if all(matched) else []
    by_name = {name.replace("{", "").replace("}", ""): value for name, value in pairs}
    return by_name if len(by_name) == len(pairs) >= 2 else None


def values_by_name(system: dict[str, str]) -> Collection:
    """Return the values as a tuple, in alphabetical order of their names."""
    return Collection(brackets="()", elements=tuple(value for _, value in sorted(system.items())))


def split(text: str, *, separator: str = ",") -> list[str]:
    """Split at the separators (for commas, also semicolons) that are outside all brackets."""
    parts, depth, start, position = list[str](), 0, 0, 0
    separators = (",", ";") if separator == "," else (separator,)
    while position < len(text):
        character = text[position]
        depth += (character in "([{") - (character in ")]}")
        mark = next((mark for mark in separators if depth == 0 and text.startswith(mark, position)), "")
        if mark:
            parts.append(text[start:position].strip())
            start = position + len(mark)
        position += len(mark) or 1
    return [*parts, text[start:].strip()]


def as_membership(text: str) -> str:
    r"""Convert an inequality between one name and constants to an interval: `x>3` becomes `x\in (3,\infty)`.

    Alternatives become one answer: `x<1 or x>3` a union, `x=1 or 2` the list `x=1,2`. `x>2 and x<5` is `2<x<5`, and
    `5=x` becomes `x=5`.
    """
    text = _listed(text)
    # The parts that `or` and `and` join, and the words used; words that join other words are left alone.
    pieces = _CONJUNCTION.split(text)
    words = [word for position, word in enumerate(pieces) if position % 4 and word]
    parts, joins = pieces[::4], {"and" if word in _ANDS else "or" for word in words}
    if len(parts) > 1 and all(part.strip() and not _PLAIN_WORD.search(part) for part in parts):
        parts = [part.strip(" ,") for part in parts]
    else:
        parts, joins = [text], set()
    memberships = [_interval(part) for part in parts]
    named = [membership for membership in memberships if membership]
    if len(parts) == 1:
        return f"{named[0][0]}\\in {named[0][1]}" if named else _name_first(text)
    if len(named) == len(parts) and len({name for name, _ in named}) == 1:
        if joins == {"and"} and (both := _between([interval for _, interval in named])):
            return f"{named[0][0]}\\in {both}"
        if "and" not in joins:
            return f"{named[0][0]}\\in " + r"\cup ".join(interval for _, interval in named)
    return ",".join(map(_name_first, parts))


def is_alternative(text: str) -> bool:
    """Return whether the text joins anything by `or`."""
    pieces = _CONJUNCTION.split(text)
    return any(word and word not in _ANDS for position, word in enumerate(pieces) if position % 4)


def _listed(text: str) -> str:
    r"""Convert systems to lists, set-builder notation to its condition, reversed brackets of intervals to usual ones.

    `\begin{cases}x=2\\y=3\end{cases}` becomes `x=2, y=3`, `\{x \mid x>1\}` `x>1`, and `]1,2[` `(1,2)`.
    """
    if system := _SYSTEM.fullmatch(text):
        body = system["body"].strip().removesuffix(r"\\")
        rows = [row.replace("&", "").strip(" ,;.") for row in re.split(r"\\\\", body)]
        if len(rows) > 1 and all(_EQUATION.fullmatch(row) for row in rows):
            return ", ".join(rows)
    if builder := _SET_BUILDER.fullmatch(text):
        member = as_membership(builder["condition"])
        return member if member != builder["condition"] and member.startswith(builder["name"]) else text
    if ("]" in text or "[" in text) and _INTERVALS.fullmatch(text):
        opened = re.sub(r"(^|\\cup ?|\\in ?)\]", r"\1(", text)
        return re.sub(r"\[(?=$| ?\\cup)", ")", opened)
    return text


def _interval(text: str) -> tuple[str, str] | None:
    for pattern, is_rising in zip(_BETWEEN, (True, False), strict=True):
        if match := pattern.fullmatch(text):
            left, left_sign, name, right_sign, right = match.groups()
            if not is_rising:
                left, left_sign, right_sign, right = right, right_sign, left_sign, left
            return name.strip(), f"{_OPEN[left_sign]}{left.strip()},{right.strip()}{_CLOSE[right_sign]}"
    if match := _ONE_SIDED.fullmatch(text):
        return match[1].strip(), _ray(match[2], match[3].strip())
    if match := _ONE_SIDED_REVERSED.fullmatch(text):
        return match[3].strip(), _ray(_FLIPPED[match[2]], match[1].strip())
    return None


def _between(rays: list[str]) -> str | None:
    """Intersect two rays, one upwards and one downwards; None for any others."""
    up = [ray for ray in rays if ray.endswith(r",\infty)") and r"\cup" not in ray]
    down = [ray for ray in rays if ray.startswith(r"(-\infty,") and r"\cup" not in ray]
    if len(rays) != 2 or len(up) != 1 or len(down) != 1:
        return None
    return up[0].removesuffix(r"\infty)") + down[0].removeprefix(r"(-\infty,")


def _ray(sign: str, bound: str) -> str:
    if sign == r"\ne":
        return rf"(-\infty,{bound})\cup ({bound},\infty)"
    return rf"(-\infty,{bound}{_CLOSE[sign]}" if sign in ("<", r"\le") else rf"{_OPEN[sign]}{bound},\infty)"


def _name_first(text: str) -> str:
    """Convert `5=x` to `x=5`, and `x=\\pm 2` to both of its values."""
    if match := _VALUE_FIRST.fullmatch(text):
        text = f"{match[2]}={match[1].strip()}"
    return ",".join(_both_signs(text)) if "=" in text else text


def _outer_brackets(text: str) -> tuple[str, str]:
    """Split off the brackets around the whole text; empty if none enclose it."""
    if not text or text[0] not in "([{" or text[-1] not in ")]}":
        return "", text
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and position < len(text) - 1:
            return "", text
    return text[0] + text[-1], text[1:-1]


def _both_signs(element: str) -> tuple[str, ...]:
    r"""Return both values of an element with one `\pm`; otherwise the element itself."""
    parts = _PLUS_MINUS.split(element)
    if len(parts) != 2:
        return (element,)
    name, equals, before = parts[0].rpartition("=")
    before, after = before.strip(), parts[1].strip()
    return tuple(f"{name}{equals}{before}{sign if before or sign == '-' else ''}{after}" for sign in "+-")
