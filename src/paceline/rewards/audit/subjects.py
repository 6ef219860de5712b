"""A task with all that a cheat can be made of."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from paceline.config.sections import DataConfig
from paceline.data.formats import Message, Problem
from paceline.data.rows import Row
from paceline.data.screening import Screened
from paceline.data.system_message import system_prompt
from paceline.errors import DataError
from paceline.rewards.programs.cases import Cases, has_cases, parse_cases
from paceline.types import Task

NUM_OTHERS = 3
"""Gold answers of other tasks, per task."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\{([^{}]*)\}")
_DRESS = re.compile(r"\\(?:left|right|displaystyle|[!,;: ])|\$|(?<![0-9])\s|\s(?![0-9])")
_UNIT = re.compile(r"\s*(?:\\text\{[^{}]*\}|\^\{?\\circ\}?|\\?%|[a-zA-Z° ]+)\.?$")
_CALCULATION = re.compile(r"[\d(][\d\s.()+*/^-]*[+*/^-][\d\s.()+*/^-]*[\d)]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One task of the sample."""

    task: Task
    gold: str | None
    question: str
    """The last message, or the whole of a plain prompt."""
    others: tuple[str, ...]
    """Gold answers of other tasks of the sample that are not this one's."""
    cases: Cases | None
    """The test cases of a row with code; None: any other row."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numbers of the question, each once."""
        return tuple(dict.fromkeys(_NUMBER.findall(self.question)))

    @property
    def calculations(self) -> tuple[str, ...]:
        """The calculations that the question spells out: `17 + 25`."""
        return tuple(dict.fromkeys(found.strip() for found in _CALCULATION.findall(self.question)))

    @property
    def number(self) -> Fraction | None:
        """The gold answer as a number, where it is a plain one."""
        return plain_number(self.gold or "")


def plain_tasks(screened: Screened, data: DataConfig, *, default_system: str | None) -> list[Task]:
    """Tasks without a tokenizer: messages are written out as `role: text`, and token ids are the bytes of the text.

    A reward function that reads the chat template's own marks, or decodes token ids, sees others than in training.
    """
    system = system_prompt(data, default_system)
    names = dict.fromkeys(name for row in screened.rows for name in row.columns)
    return [
        _plain_task(row, asked, system, columns={name: row.columns.get(name) for name in names})
        for row, asked in zip(screened.rows, screened.problems, strict=True)
    ]


def _plain_task(row: Row, asked: Problem, system: str | None, *, columns: Mapping[str, object]) -> Task:
    messages: list[Message] | None = None
    text = asked.prompt
    if not isinstance(text, str):
        has_own = text[0]["role"] in ("system", "developer")
        messages = text if system is None or has_own else [{"role": "system", "content": system}, *text]
        text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
    return Task(
        task_id=row.row_id,
        prompt=text,
        prompt_ids=tuple(text.encode()),
        messages=None if messages is None else tuple(messages),
        answer=asked.answer,
        columns=columns,
    )


def subjects(tasks: Sequence[Task]) -> list[Subject]:
    """The tasks with what cheats are made of."""
    golds = list(dict.fromkeys(task.answer.strip() for task in tasks if task.answer and task.answer.strip()))
    return [
        Subject(
            task=task,
            gold=task.answer.strip() if task.answer and task.answer.strip() else None,
            question=_question(task),
            others=_others(golds, task.answer or "", place),
            cases=_cases(task),
        )
        for place, task in enumerate(tasks)
    ]


def same_answer(text: str, gold: str) -> bool:
    r"""Return whether a text is plainly the gold answer: the text but for case and LaTeX's dress, or the number.

    Of its own and stricter than what grades: a cheat that a grader takes for the answer must not pass for a lucky one.

    >>> same_answer(" yes", r"\text{Yes}"), same_answer("1,000", "1000.0 m"), same_answer("41=42", "42")
    (True, True, False)
    """
    if _bare(text) == _bare(gold):
        return True
    number = plain_number(text)
    return number is not None and number == plain_number(_UNIT.sub("", gold))


def plain_number(text: str) -> Fraction | None:
    """A decimal number with or without thousands, or a fraction of two whole numbers; None for anything else."""
    plain = _bare(text).replace(",", "")
    plain = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", plain)
    is_number = re.fullmatch(r"[-+]?[0-9]{1,40}(\.[0-9]{1,40}|/[0-9]{0,39}[1-9])?", plain)
    return Fraction(plain) if is_number else None


def _bare(text: str) -> str:
    r"""Without LaTeX's dress: `$`, spaces, `\text{}`, `\left`, and a name before `=`."""
    plain = _DRESS.sub("", _TEXT.sub(r"\1", text)).replace("dfrac", "frac").replace("tfrac", "frac").casefold()
    return re.sub(r"^[a-z]=(?=.)", "", plain)


def _question(task: Task) -> str:
    content = task.messages[-1]["content"] if task.messages else task.prompt
    return content if isinstance(content, str) else task.prompt


def _others(golds: Sequence[str], own: str, place: int) -> tuple[str, ...]:
    start = place + 1
    turned = [golds[(start + step) % len(golds)] for step in range(len(golds))] if golds else []
    return tuple(gold for gold in turned if not same_answer(gold, own))[:NUM_OTHERS]


def _cases(task: Task) -> Cases | None:
    if not has_cases(task.columns):
        return None
    try:
        return parse_cases(task.columns, task.task_id)
    except DataError:
        return None
