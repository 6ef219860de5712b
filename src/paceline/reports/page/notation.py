"""The objective's lines as a list that reads like a formula: symbols in italics, indices below the line."""

import re
from collections.abc import Iterable
from html import escape

from paceline.objective.formula import Line

_INDEXED = re.compile(r"\b([A-Za-z]+)_t\b")
_NAMES = re.compile(r"\b(A|R|r|p|q|tau|rho)\b")
_TIMES, _MINUS = " * ", re.compile(r"(?<![\w)])-(?=[\w(])| - ")
_GREEK = {"tau": "&tau;", "rho": "&rho;"}


def as_list(lines: Iterable[Line]) -> str:
    """One term and its definition per line. The text stays as it is; only signs and letters are set otherwise.

    >>> as_list([Line(symbol="kl_t", text="2 * log(p_t / q_t) - A")])  # doctest: +NORMALIZE_WHITESPACE
    '<dl class="formula"><dt>kl<sub>t</sub></dt><dd>2 &middot; log(<i>p<sub>t</sub></i> / <i>q<sub>t</sub></i>)
    &minus; <i>A</i></dd></dl>'
    """
    rows = "".join(f"<dt>{_symbol(line.symbol)}</dt><dd>{_set(line.text)}</dd>" for line in lines)
    return f'<dl class="formula">{rows}</dl>'


def _symbol(text: str) -> str:
    return re.sub(_INDEXED, r"\1<sub>t</sub>", escape(text))


def _set(text: str) -> str:
    signed = _MINUS.sub(lambda found: " &minus; " if found[0] == " - " else "&minus;", escape(text))
    indexed = _INDEXED.sub(r"<i>\1<sub>t</sub></i>", signed.replace(_TIMES, " &middot; "))
    return _NAMES.sub(_italic, indexed)


def _italic(found: re.Match[str]) -> str:
    name = found[0]
    before = found.string[: found.start()]
    if before.endswith(("<i>", "<", "&")):  # set already, or a letter of a tag or an entity
        return name
    return f"<i>{_GREEK.get(name, name)}</i>"
