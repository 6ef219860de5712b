"""The record of an attack, and from a subject to the completions that are tried on it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paceline.rewards.audit.subjects import Subject, same_answer
from paceline.rewards.audit.wrappings import WRAPPINGS, continued, wrapped


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    """One way to earn a reward without the work."""

    name: str
    what: str
    """For a person: what is handed in."""
    make: Callable[[Subject], Iterable[str]]
    """What to try on a task; nothing where the task gives nothing to make it of."""
    wrappings: tuple[str, ...] = ()
    """Each text is handed in in each of these forms; none: it is the whole completion."""
    has_content: bool = True
    """False: there is nothing in it that a format could be right around."""
    max_tasks: int | None = None
    """Limit on the tasks of the sample, for attempts that take long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One completion of one task."""

    subject: Subject
    text: str
    wrapping: str
    """`whole` for a completion that is no wrapped answer."""


ANSWER_FORMS = tuple(WRAPPINGS)


def attempts(attack: Attack, subjects: Iterable[Subject]) -> list[Attempt]:
    """Every completion of the attack; what is plainly the gold answer, met by chance, is left out."""
    made: dict[tuple[str, str], Attempt] = {}
    for number, subject in enumerate(subjects):
        if attack.max_tasks is not None and number >= attack.max_tasks:
            break
        for content in attack.make(subject):
            if subject.gold is not None and same_answer(content, subject.gold):
                continue
            for wrapping, text in _texts(attack, content):
                completion = continued(subject.task.prompt, text)
                attempt = Attempt(subject=subject, text=completion, wrapping=wrapping)
                made.setdefault((subject.task.task_id, completion), attempt)
    return list(made.values())


def _texts(attack: Attack, content: str) -> list[tuple[str, str]]:
    if not attack.wrappings:
        return [("whole", content)]
    return [(name, wrapped(name, content)) for name in attack.wrappings]
