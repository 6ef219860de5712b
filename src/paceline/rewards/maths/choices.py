"""Answers to questions with choices: one letter, one with the text of its choice, or several."""

import re

_ONE = re.compile(r"\(?([A-J])\)?")
_LETTER_ALONE = re.compile(r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer) ?:? ?)?\(?([A-J])[).:]*")
_LETTER_AND_TEXT = re.compile(r"\(?([A-J])[).:]+ ?(.+)", re.DOTALL)
_TAKEN_BACK = re.compile(
    r"(?:or|and|nor|but|not|is|was|if|unless|though|through|to|then|vs|plus|with|&)(?![a-zA-Z])"
    r"|.*(?<![a-zA-Z])(?:[Ww]rong|[Ii]ncorrect|[Ff]alse|[a-zA-Z]+n't|[Mm]aybe|[Pp]erhaps|[Pp]ossibly|[Ee]lse|[Ii]nstead"
    r"|[Oo]therwise|[Uu]nless|[Rr]ather|[Oo]ptions?|[Cc]hoices?|[Aa]nswers?|[Uu]nsure|[Ss]ure|[Gg]uess|[Aa]ctually|[Ww]ait"
    r"|[Aa]lternatively|[Ee]ither|[Ff]ormer|[Ll]atter|or|not|[Oo]r|not (?:right|correct|this|that))(?![a-zA-Z])"
    r"|.*[?;]|.*(?<![a-zA-Z])the (?:first|second|third|fourth|fifth|last|other|next)(?![a-zA-Z])",
    re.DOTALL,
)
"""What a text after a letter says against it, or beside it."""
_OTHER_LETTER = re.compile(
    r"(?<![a-zA-Z])(?<![Vv]itamin )(?<![Hh]epatitis )(?<![Tt]ype )(?<![Gg]roup )(?<![Cc]lass )(?<![Pp]oint )"
    r"(?:[B-J]|A(?! [a-z]{2,}))(?![a-zA-Z'])|A (?:and|or|nor|but|is)(?![a-zA-Z])"
)
"""A letter that may be another choice: `A triangle` begins with an article."""
_EARLIER = re.compile(
    r"(?:[Bb]oth )?\(?([A-J])\)?(?:, ?\(?([A-J])\)?)?,? and \(?([A-J])\)?(?: only| are (?:correct|true))?"
)
_WRAPPED = re.compile(r"\\(?:text|mathrm|textbf)\s*\{([^{}]*)\}")
_SEPARATOR = r" ?(?:[,;&和与及]| and ) ?(?:and )?"
_SEVERAL = re.compile(
    r"(?:(?:[Oo]ptions|[Cc]hoices|[Aa]nswers) ?:? ?)?[(\[]?\(?[A-J]\)?\.?"
    rf"(?:(?:{_SEPARATOR}|[ .]?)\(?[A-J]\)?\.?){{1,9}}[)\]]?"
)
_SPELLED_OUT = re.compile(r"[A-J]{2,10}|[A-J](?: ?[,;] ?[A-J]){1,9}")
MAX_TEXT = 1000  # Characters of an answer with the text of its choice


def is_choice(gold: str) -> str | None:
    """The letter of a gold answer that is one choice; None for any other."""
    found = _ONE.fullmatch(gold)
    return found[1] if found else None


def chosen(answer: str) -> str | None:
    """The letter that an answer chooses, alone or before the text of the choice: `C`, `(C)`, `C. 42`; one only.

    The text may name earlier choices that the choice consists of: `C) A and B`. Nothing may take the letter back.

    >>> [chosen(text) for text in ("C", "(C)", "C. 42", "C) A and B", "D) A triangle", "C. or B", "B) No, C")]
    ['C', 'C', 'C', 'C', 'D', None, None]
    """
    if len(answer) > MAX_TEXT:
        return None
    plain = _WRAPPED.sub(r"\1", answer).strip()
    if found := _LETTER_ALONE.fullmatch(plain):
        return found[1]
    found = _LETTER_AND_TEXT.fullmatch(plain)
    if not found:
        return None
    letter, text = found[1], found[2].strip()
    if earlier := _EARLIER.fullmatch(text):
        return letter if all(other < letter for other in earlier.groups() if other) else None
    return None if _TAKEN_BACK.match(text) or _OTHER_LETTER.search(text) else letter


def several_choices(gold: str) -> frozenset[str] | None:
    """The letters of a gold answer that is several choices, `AC` or `A,C`: each once, in the order of the alphabet."""
    letters = re.sub("[^A-J]", "", gold) if _SPELLED_OUT.fullmatch(gold) else ""
    return frozenset(letters) if letters and letters == "".join(sorted(set(letters))) else None


def all_chosen(answer: str) -> frozenset[str] | None:
    """The letters that an answer chooses, in any order, each once; None for anything else, such as `A or C`.

    >>> [sorted(all_chosen(text) or ()) for text in ("C, A", "A and C", "(A)(C)", "A or C", "A, A")]
    [['A', 'C'], ['A', 'C'], ['A', 'C'], [], []]
    """
    plain = _WRAPPED.sub(r"\1", answer).strip() if len(answer) <= MAX_TEXT else ""
    if not _SEVERAL.fullmatch(plain):
        return None
    letters = re.findall(r"(?<![a-z])[A-J](?![a-z])", plain)
    return frozenset(letters) if len(set(letters)) == len(letters) else None
