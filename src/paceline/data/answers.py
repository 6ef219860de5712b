"""Answers in a text: `<answer>...</answer>`, boxes, `####`, and the first of these that a text has.

Every function is pure and linear in the length of the text, whatever the text holds.
"""

import re
from collections.abc import Sequence
from itertools import islice

from paceline.data.wording import DENIAL, leads, without_closing

OPEN_ANSWER, CLOSE_ANSWER = "<answer>", "</answer>"


def last_answer_tag(text: str) -> str | None:
    """Return the content of the last complete `<answer>...</answer>`, stripped; None without one.

    >>> last_answer_tag("<answer>41</answer> no: <answer>42</answer> or <answer>43")
    '42'
    """
    for part in reversed(text.split(OPEN_ANSWER)[1:]):
        content, closed, _ = part.partition(CLOSE_ANSWER)
        if closed:
            return content.strip()
    return None


def stand_once_in_order(text: str, marks: Sequence[str]) -> bool:
    """Return True if each mark stands exactly once in the text, in this order.

    >>> stand_once_in_order("<answer>42</answer>", ["<answer>", "</answer>"])
    True
    """
    if any(text.count(mark) != 1 for mark in marks):
        return False
    places = [text.index(mark) for mark in marks]
    return places == sorted(places)


_BEHIND_BOX = re.compile(
    r"[$*]*(?:\\[)\]])?(?P<words>(?![\s.$*]*!)(?:[^0-9\\{}?\N{FULLWIDTH QUESTION MARK}]|\\text\s*\{[^{}0-9\\?]*\})*)"
)
_LONGEST_AROUND = 200
"""Characters before or behind a box that are read as words around it."""
_BOX_TOKEN = re.compile(r"(?P<box>\\boxed\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


def _boxes(text: str) -> list[tuple[int, int, int]]:
    r"""Find every complete brace-matched `\boxed{...}`: start, start of its content, and end; sorted by start.

    Escaped braces (`\{`) are content. Positions, not contents, as nested boxes would be copied once per level.
    """
    boxes: list[tuple[int, int, int]] = []
    unclosed: list[tuple[bool, int, int]] = []  # is a box, where it starts, where its content starts
    for token in _BOX_TOKEN.finditer(text):
        if token["box"] or token["open"]:
            unclosed.append((bool(token["box"]), token.start(), token.end()))
        elif token["close"] and unclosed:
            is_box, start, content_start = unclosed.pop()
            if is_box:
                boxes.append((start, content_start, token.end()))
    return sorted(boxes)


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{...}` that is in no other; None without one.

    A box that is all of another's content is opened too.

    >>> last_boxed(r"\boxed{1}, so \boxed{\frac{1}{2}} and \boxed{"), last_boxed(r"\boxed{\boxed{42}}")
    ('\\frac{1}{2}', '42')
    """
    boxes = _outer_boxes(text)
    return unboxed(text[boxes[-1][1] : boxes[-1][2] - 1].strip()) if boxes else None


def _outer_boxes(text: str) -> list[tuple[int, int, int]]:
    """Return the boxes that are in no other: start, start of the content, end."""
    outer = list[tuple[int, int, int]]()
    for box in _boxes(text):
        if not outer or box[0] >= outer[-1][2]:
            outer.append(box)
    return outer


_BETWEEN_BOXES = re.compile(
    r"[\s$]*(?:\\[)\]])?[\s$]*(?:,|;|(?:,\s*)?(?:\\(?:text|mbox|textrm)\s*\{\s*(?:or|and)\s*\}|\b(?:or|and)\b))"
    r"(?:\s|\$|\\[(\[,;: ]|\\q?quad)*(?:[A-Za-z]\w{0,9}\s*=[\s$]*)?"
)


def boxed_answer(text: str) -> str | None:
    r"""Return what the last box says, with the boxes that stand before it in the same list; None without one.

    >>> boxed_answer(r"$x=\boxed{5}$ or $x=\boxed{6}$"), boxed_answer(r"\boxed{5} boys, so \boxed{6}")
    ('5, 6', '6')
    """
    boxes = _outer_boxes(text)
    if not boxes:
        return None
    listed, start = [boxes[-1]], boxes[-1][0]
    for box in reversed(boxes[:-1]):
        between = text[box[2] : start] if box[2] <= start <= box[2] + _LONGEST_AROUND else ""
        if not _BETWEEN_BOXES.fullmatch(between):
            break
        listed.insert(0, box)
        start = box[0]
    return ", ".join(unboxed(text[content : end - 1].strip()) for _, content, end in listed)


def unboxed(answer: str) -> str:
    r"""Return the innermost content of an answer that is one box, with the words behind it; any other as it is.

    In front of the box only words that lead to an answer may stand. Those behind it belong to the answer, unless they
    say nothing of its value; a question mark, and an exclamation mark that may be a factorial, leave the box closed.
    The same holds for a box in a box.

    >>> [unboxed(text) for text in (r"$\boxed{42}$", r"The answer is \boxed{42}.", r"\boxed{42} thousand")]
    ['42', '42', '42 thousand']
    >>> unboxed(r"2\boxed{42}"), unboxed(r"not \boxed{42}"), unboxed(r"\boxed{-\boxed{42}}")
    ('2\\boxed{42}', 'not \\boxed{42}', '-\\boxed{42}')
    """
    content, words = (0, len(answer)), list[str]()
    for start, content_start, end in _boxes(answer):
        if start - content[0] > _LONGEST_AROUND or content[1] - end > _LONGEST_AROUND:
            break
        behind = _BEHIND_BOX.fullmatch(answer, end, content[1])
        if not behind or not _leads_to_box(answer[content[0] : start]):
            break
        content = content_start, end - 1
        words.append(without_closing(" " + behind["words"].strip(" \n\t.!$*")).strip(" \n\t.!$*"))
    if not words:
        return answer
    return " ".join([answer[slice(*content)].strip(), *(word for word in reversed(words) if word.strip(",:;"))])


def _leads_to_box(text: str) -> bool:
    """Return whether a text says nothing but that a box comes: words that lead to it, `x =`, signs of maths mode."""
    text = re.sub(r"\\[(\[]$", "", text.strip(" \n\t$*")).strip(" \n\t$*")
    if text.endswith("="):
        text = re.sub(r"(?<![\w\\])[a-zA-Z]$", "", re.sub(r"\\[(\[]", "", text[:-1]).strip(" $"))
    return leads(text)


def last_hashes(text: str) -> str | None:
    """Return the line after the last `####`, stripped; None without one.

    >>> last_hashes("12 / 3 = <<12/3=4>>4\\n#### 4\\nDone.")
    '4'
    """
    _, mark, tail = text.rpartition("####")
    lines = tail.strip().splitlines()
    return lines[0].strip() if mark and lines else None


def closing_hashes(text: str) -> str | None:
    """Return the text after the `####` that starts the last line; None if the text does not end so.

    For a gold answer, in which a `####` further up is a heading or part of a drawing.
    """
    last_line = text.strip().rpartition("\n")[2].strip()
    return last_hashes(last_line) if last_line.startswith("####") else None


def final_answer(text: str, *, plain: bool = False) -> str | None:
    r"""Return the answer of a visible text: last `<answer>`, else `boxed_answer`, else the text after the last `####`.

    `plain`: else what the last line states (`plain_answer`).
    """
    for find in (last_answer_tag, boxed_answer, last_hashes, *((plain_answer,) if plain else ())):
        answer = find(text)
        if answer is not None:
            return unboxed(answer)
    return None


_LEAD_IN = re.compile(
    r"\banswer(?:\s+is\b|\s*[:=])|(?<![!<>=~≠≈/\\+*^%&|-])=(?![=<>!/]|\\=)|(?=≈)", re.IGNORECASE
)  # an `=` of other signs, such as `/=`, `=\=` and `+=`, equates nothing
_EMPHASIS = re.compile(r"\*\*|__")
_NUMBER = re.compile(
    r"(?<![\w^.,/+*-])[-\N{MINUS SIGN}]?[$€£]?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:/[0-9]+)?%?(?![\w^/+*])"
)
_DIGITS = re.compile("[0-9]+")
_ASKED = re.compile(r"[?\N{FULLWIDTH QUESTION MARK}]")
_FACTORIAL = re.compile(r"[\s.$)\"']*!")
_WORDS = re.compile(r"[\w\s.,:;!'\"()$€£%/\N{MINUS SIGN}-]*")


def plain_answer(text: str) -> str | None:
    """Return the answer that the last line states; None for an empty text.

    It is the text after the line's last `answer is`, `answer:` or `=`. If exactly one number stands there, words that
    lead to it are left out, and so are words behind it that say nothing of its value: `42 apples`, but `42 thousand`.
    Any other word in front leaves the number unread: `less than 42` equals nothing. Several numbers are no answer
    either, nor is a line that denies or asks anything, nor `42!`, which may be a factorial. What stands before the `=`
    is not looked at: a wrong sum with the right result is right.

    >>> [plain_answer(line) for line in ("The answer is 42.", "So 6 * 7 = 42 apples", "It is 41 or 42", "It is not 42")]
    ['42', '42 apples', 'It is 41 or 42', 'It is not 42']
    """
    lines = text.strip().splitlines()
    if not lines:
        return None
    line = _EMPHASIS.sub("", lines[-1]).strip()
    if DENIAL.search(line):
        return line
    *_, (start, end) = ((0, 0), *(match.span() for match in _LEAD_IN.finditer(line)))
    if line[start:end].lower().startswith("answer") and not leads(_clause(line[:start])):
        return line
    rest = line[end:].strip() or line
    if _ASKED.search(rest):
        return line
    numbers = list(islice(_NUMBER.finditer(rest), 2)) if _WORDS.fullmatch(rest) else []
    if len(numbers) != 1 or _DIGITS.findall(rest) != _DIGITS.findall(numbers[0][0]):
        return rest
    before, behind = rest[: numbers[0].start()], rest[numbers[0].end() :]
    if not leads(before.replace("$", "")) or len(behind) > _LONGEST_AROUND or _FACTORIAL.match(behind):
        return rest
    behind = without_closing(" " + behind.strip(" .!;:,)\"'")).strip(" .!;:,")
    return f"{numbers[0][0]} {behind}".strip()


def _clause(text: str) -> str:
    """Return the end of a text, after its last punctuation mark."""
    return text[max(text.rfind(mark) for mark in ".,:;!?()=") + 1 :]
