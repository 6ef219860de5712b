"""Answers to questions with choices: one letter, one with the text of its choice, or several."""

import re

from paceline.rewards.maths.notation import normalise

_ONE = re.compile(r"\(?([A-J])\)?")
_LETTER_ALONE = re.compile(r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer) ?:? ?)?\(?([A-J])[).:]*")
_LETTER_AND_TEXT = re.compile(r"\(?([A-J])[).:]+ ?(.+)", re.DOTALL)
_JOINED_WORDS = (
    "or and nor but not is was are be been if unless though through to then vs plus with can could may might must "
    "should would will shall does did do has had have seems looks appears sounds gets"
)
_JOINED = frozenset(_JOINED_WORDS.split())
"""First words of a text that qualifies the letter before it, or names another one."""
_DENYING_WORDS = (
    # English, also the other choice and words of doubt.
    "no not none nope nah never neither nor nothing cannot cant dont doesnt didnt isnt arent wasnt wont wouldnt "
    "couldnt shouldnt wrong incorrect incorrectly false falsely untrue invalid inaccurate impossible improbable "
    "implausible unlikely unsure uncertain unclear unknown undecided unless except excluded excludes exclude "
    "excluding eliminated eliminates eliminate eliminating rejected rejects reject rejecting discarded discard "
    "dismissed dismiss fail fails failed failing failure ruled rules out off crossed struck refuted refutes refute "
    "disproved disproven disproves contradicted contradicts contradiction contradictory denied denies deny opposite "
    "reverse contrary inverse mistake mistaken mistakenly error erroneous bad worst doubt doubtful doubtfully hardly "
    "barely maybe perhaps possibly probably else instead otherwise rather actually wait guess alternatively either "
    "former latter or option options choice choices answer answers sure remaining another other others first second "
    "third fourth fifth last next unsupported unacceptable irrelevant absurd nonsense flawed distractor trap "
    # German, French, Spanish, Portuguese, Italian, Russian.
    "nicht nein kein keine keiner nie niemals falsch unmöglich unwahr unrichtig ausgeschlossen oder weder sondern "
    "vielleicht non pas faux fausse jamais aucun aucune incorrecte impossible exclu exclue ou ni peut-être nunca "
    "falso falsa incorrecto incorrecta imposible ninguno ninguna tampoco quizás não nao errado errada nenhum nenhuma "
    "impossível mai sbagliato sbagliata errato errata scorretto nessuno nessuna oppure forse не нет неверно "
    "неправильно ложно ложь"
)
_DENYING = frozenset(_DENYING_WORDS.split())
"""Words anywhere in a text that deny the letter before it."""
_DENYING_SIGN = re.compile(
    r"[?;❌✗✘✖不错錯非没沒无無否误誤假或違违]|还是|還是|排除|ない|ません|間違|いいえ|아니|틀|^\\times$"
)
_NEUTRAL = re.compile(
    r"(?:no (?:significant )?(?:change|changes|effect|difference|solution|solutions|real solutions?|relationship"
    r"|correlation|conclusion|increase|decrease)|not enough (?:information|data)|none of (?:these|the above))\.?",
    re.IGNORECASE,
)
"""Usual texts of choices that deny nothing."""
_OTHER_LETTER = re.compile(
    r"(?<![a-zA-Z])(?<!vitamin )(?<!hepatitis )(?<!type )(?<!group )(?<!class )(?<!point )"
    r"(?:[b-j]|a(?! [a-z]{2,}))(?![a-zA-Z'])|(?<![a-zA-Z])a (?:and|or|nor|but|is)(?![a-zA-Z])",
    re.IGNORECASE,
)
"""A letter in either case that may be another choice: `A triangle` and `a triangle` begin with an article."""
_EARLIER = re.compile(
    r"(?:[Bb]oth )?\(?([A-J])\)?(?:, ?\(?([A-J])\)?)?,? and \(?([A-J])\)?(?: only| are (?:correct|true))?"
)
_LISTED = re.compile(
    r"(?<![\w.)])\(?([A-J])[).:]+[ \t]*(\S.*?)"
    r"(?=\s*(?:\n|$|<[|/\N{FULLWIDTH VERTICAL LINE}]|<end_of|\[/)|,?\s+\(?[A-J][).:])"
)
"""A choice in a prompt, up to the next one, the end of the line or a mark of a chat template."""
_WRAPPED = re.compile(r"\\(?:text|mathrm|textbf)\s*\{([^{}]*)\}")
_SEPARATOR = r" ?(?:[,;&和与及]| and ) ?(?:and )?"
_SEVERAL = re.compile(
    r"(?:(?:[Oo]ptions|[Cc]hoices|[Aa]nswers) ?:? ?)?[(\[]?\(?[A-J]\)?\.?"
    rf"(?:(?:{_SEPARATOR}|[ .]?)\(?[A-J]\)?\.?){{1,9}}[)\]]?"
)
_SPELLED_OUT = re.compile(r"[A-J]{2,10}|[A-J](?: ?[,;] ?[A-J]){1,9}")
MAX_TEXT = 1000  # Characters of an answer with the text of its choice


def is_choice(gold: str) -> str | None:
    """Return the letter of a gold answer that is one choice; None for any other."""
    match = _ONE.fullmatch(gold)
    return match[1] if match else None


def chosen(answer: str) -> str | None:
    """Return the only letter that an answer chooses, alone or before the text of the choice: `C`, `(C)`, `C. 42`.

    The text may name earlier choices that the choice consists of: `C) A and B`. It must not retract the letter.

    >>> [chosen(text) for text in ("C", "(C)", "C. 42", "C) A and B", "D) A triangle", "C. or B", "C: no", "C. b")]
    ['C', 'C', 'C', 'C', 'D', None, None, None]
    """
    if len(answer) > MAX_TEXT:
        return None
    plain = _WRAPPED.sub(r"\1", answer).strip()
    if match := _LETTER_ALONE.fullmatch(plain):
        return match[1]
    match = _LETTER_AND_TEXT.fullmatch(plain)
    if not match:
        return None
    letter, text = match[1], match[2].strip()
    if earlier := _EARLIER.fullmatch(text):
        return letter if all(other < letter for other in earlier.groups() if other) else None
    return letter if _NEUTRAL.fullmatch(text) or not (_is_taken_back(text) or _OTHER_LETTER.search(text)) else None


def _is_taken_back(text: str) -> bool:
    words = re.findall(r"[\w'-]+", text.casefold())
    return (
        text.startswith("&")
        or not _JOINED.isdisjoint(words[:1])
        or not _DENYING.isdisjoint(words)
        or any(word.endswith("n't") for word in words)
        or _DENYING_SIGN.search(text) is not None
    )


def of_prompt(answer: str, prompt: str) -> str:
    """Reduce an answer with the text of a choice to its letter, if the prompt gives that letter exactly this text.

    Empty if the prompt gives it another text. Any other answer is returned unchanged, also without choices in
    the prompt.

    >>> prompt = "Where is it?\\nA) Oslo\\nB) Not in Oslo"
    >>> of_prompt("B) not in Oslo.", prompt), of_prompt("A) ruled out", prompt), of_prompt("A) Oslo", "Where is it?")
    ('B', '', 'A) Oslo')
    """
    plain = _WRAPPED.sub(r"\1", normalise(answer)).strip() if len(answer) <= MAX_TEXT else ""
    match = _LETTER_AND_TEXT.fullmatch(plain)
    if not match:
        return answer
    texts = dict[str, set[str]]()
    for letter, text in _LISTED.findall(prompt):
        texts.setdefault(letter, set()).add(_plain_text(text[:MAX_TEXT]))
    if match[1] not in texts or len(texts) == 1:
        return answer
    return match[1] if _plain_text(match[2]) in texts[match[1]] else ""


def _plain_text(text: str) -> str:
    """Remove case and surrounding punctuation from the words and formulas of a choice."""
    return _WRAPPED.sub(r"\1", normalise(text)).replace("$", "").casefold().strip(" .,;")


def several_choices(gold: str) -> frozenset[str] | None:
    """Return the letters of a gold answer with several choices, `AC` or `A,C`, each once, in alphabetical order."""
    letters = re.sub("[^A-J]", "", gold) if _SPELLED_OUT.fullmatch(gold) else ""
    return frozenset(letters) if letters and letters == "".join(sorted(set(letters))) else None


def all_chosen(answer: str) -> frozenset[str] | None:
    """Return the letters that an answer chooses, in any order, each once; None for anything else, such as `A or C`.

    >>> [sorted(all_chosen(text) or ()) for text in ("C, A", "A and C", "(A)(C)", "A or C", "A, A")]
    [['A', 'C'], ['A', 'C'], ['A', 'C'], [], []]
    """
    plain = _WRAPPED.sub(r"\1", answer).strip() if len(answer) <= MAX_TEXT else ""
    if not _SEVERAL.fullmatch(plain):
        return None
    letters = re.findall(r"(?<![a-z])[A-J](?![a-z])", plain)
    return frozenset(letters) if len(set(letters)) == len(letters) else None
