"""A task with the material for cheats, and the completions of an attack on it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from paceline.chat.thinking import OPEN_THINK
from paceline.config.sections import DataConfig
from paceline.data.formats import Screened
from paceline.data.prompts import system_prompt
from paceline.errors import DataError
from paceline.rewards.programs.cases import Cases, has_cases, parse_cases
from paceline.types import Message, Task

WRAPPINGS: Mapping[str, str] = {
    "bare": "{}",
    "box": r"The answer is \boxed{{{}}}.",
    "answer tags": "<answer>{}</answer>",
    "think and answer tags": "<think>Worked out.</think><answer>{}</answer>",
    "reasoning and answer tags": "<reasoning>\nWorked out.\n</reasoning>\n<answer>\n{}\n</answer>\n",
    "hashes": "Worked out.\n#### {}",
    "code fence": "```python\n{}\n```",
}
"""Forms in which an answer can be stated: by name, a format with one field."""


def continued(prompt: str, completion: str) -> str:
    """Return a completion that continues its prompt: where that has opened `<think>`, the tag is not opened again.

    >>> continued("2 + 2? <think>", "<think>Easy.</think> 4"), continued("2 + 2? <think>", "4")
    ('Easy.</think> 4', '</think>4')
    """
    if not prompt.rstrip().endswith(OPEN_THINK):
        return completion
    if completion.startswith(OPEN_THINK):
        return completion.removeprefix(OPEN_THINK)
    return f"</think>{completion}"


NUM_OTHERS = 3  # Gold answers of other tasks, per task

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\{([^{}]*)\}")
_FORMATTING = re.compile(r"\\(?:left|right|displaystyle|[!,;: ])|\$|(?<![0-9])\s|\s(?![0-9])")
_UNIT = re.compile(r"\s*(?:\\text\{[^{}]*\}|\^\{?\\circ\}?|\\?%|[a-zA-Z° ]+)\.?$")
_CALCULATION = re.compile(r"[\d(][\d\s.()+*/^-]*[+*/^-][\d\s.()+*/^-]*[\d)]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A task of the sample with the material for cheats."""

    task: Task
    gold: str | None
    question: str
    """Last message, or all of a plain prompt."""
    others: tuple[str, ...]
    """Gold answers of other tasks of the sample, without those that equal this task's."""
    cases: Cases | None
    """Test cases of a row with code; None for any other row."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """Numbers of the question, without duplicates."""
        return tuple(dict.fromkeys(_NUMBER.findall(self.question)))

    @property
    def calculations(self) -> tuple[str, ...]:
        """Calculations in the question, such as `17 + 25`."""
        return tuple(dict.fromkeys(calculation.strip() for calculation in _CALCULATION.findall(self.question)))

    @property
    def number(self) -> Fraction | None:
        """The gold answer as a number, or None."""
        return plain_number(self.gold or "")


def plain_tasks(screened: Screened, data: DataConfig, *, default_system: str | None) -> list[Task]:
    """Make tasks without a tokenizer: messages become lines of `role: text`, token ids the bytes of the text.

    Unlike in training, a reward function sees no marks of a chat template, and token ids that no tokenizer decodes.
    """
    system = system_prompt(data, default_system)
    names = dict.fromkeys(name for row in screened.rows for name in row.columns)
    tasks = []
    for row in screened.rows:
        messages: list[Message] | None = None
        text = row.prompt
        if not isinstance(text, str):
            has_own = text[0]["role"] in ("system", "developer")
            text = [{**message, "content": _plain_content(message["content"])} for message in text]
            messages = text if system is None or has_own else [{"role": "system", "content": system}, *text]
            text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        task = Task(
            task_id=row.row_id,
            prompt=text,
            prompt_ids=tuple(text.encode()),
            messages=None if messages is None else tuple(messages),
            answer=row.answer,
            columns={name: row.columns.get(name) for name in names},
        )
        tasks.append(task)
    return tasks


def _plain_content(content: object) -> object:
    """Return the content of a message as text, in which a mark stands for each image."""
    if not isinstance(content, list):
        return content
    return "".join(part["text"] if part["type"] == "text" else f"<{part['type']}>" for part in content)


def subjects(tasks: Sequence[Task]) -> list[Subject]:
    """Return the tasks with the material for cheats."""
    golds = list(dict.fromkeys(task.answer.strip() for task in tasks if task.answer and task.answer.strip()))
    made = []
    for index, task in enumerate(tasks):
        last = task.messages[-1]["content"] if task.messages else task.prompt
        gold, cases = (task.answer or "").strip(), None
        start = (index + 1) % max(1, len(golds))
        others = [other for other in golds[start:] + golds[:start] if not same_answer(other, gold)]
        if has_cases(task.columns):
            with suppress(DataError):
                cases = parse_cases(task.columns, task.task_id)
        subject = Subject(
            task=task,
            gold=gold or None,
            question=last if isinstance(last, str) else task.prompt,
            others=tuple(others[:NUM_OTHERS]),
            cases=cases,
        )
        made.append(subject)
    return made


def same_answer(text: str, gold: str) -> bool:
    r"""Return whether a text is plainly the gold answer: the same number, or text apart from case and formatting.

    It shares no code with the graders and is stricter: a cheat that a grader takes for the answer must not count as a
    lucky guess.

    >>> same_answer(" yes", r"\text{Yes}"), same_answer("1,000", "1000.0 m"), same_answer("41=42", "42")
    (True, True, False)
    """
    if _bare(text) == _bare(gold):
        return True
    number = plain_number(text)
    return number is not None and number == plain_number(_UNIT.sub("", gold))


def plain_number(text: str) -> Fraction | None:
    """Read a decimal number with or without thousands, or a fraction of two whole numbers; None for anything else."""
    plain = _bare(text).replace(",", "")
    plain = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", plain)
    is_number = re.fullmatch(r"[-+]?[0-9]{1,40}(\.[0-9]{1,40}|/[0-9]{0,39}[1-9])?", plain)
    return Fraction(plain) if is_number else None


def _bare(text: str) -> str:
    r"""Remove LaTeX's formatting: `$`, spaces, `\text{}`, `\left`, and a name before `=`."""
    plain = _FORMATTING.sub("", _TEXT.sub(r"\1", text)).replace("dfrac", "frac").replace("tfrac", "frac").casefold()
    return re.sub(r"^[a-z]=(?=.)", "", plain)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    """A way to earn a reward without solving the task."""

    name: str
    what: str
    """Description of the completions, for a person."""
    make: Callable[[Subject], Iterable[str]]
    """Returns the texts to try on a task; none where the task has no material for them."""
    wrappings: tuple[str, ...] = ()
    """Names of the forms in which each text is tried; none: the text is the whole completion."""
    has_content: bool = True
    """False: it has no content, so that a format around it must not score either."""
    max_tasks: int | None = None
    """Most tasks of the sample to try it on, for attempts that take long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A completion of a task, and its score."""

    subject: Subject
    text: str
    wrapping: str
    """Name of the form; `whole` for a completion that is no wrapped answer."""
    score: float | None = None
    """None: not graded yet, not graded by this function, or failed."""
    failed: bool = False

    @property
    def row(self) -> str:
        """Id of the task."""
        return self.subject.task.task_id


def attempts(attack: Attack, subjects: Iterable[Subject]) -> list[Attempt]:
    """Make every completion of the attack, without texts that happen to be the gold answer."""
    made: dict[tuple[str, str], Attempt] = {}
    for number, subject in enumerate(subjects):
        if attack.max_tasks is not None and number >= attack.max_tasks:
            break
        for content in attack.make(subject):
            if subject.gold is not None and same_answer(content, subject.gold):
                continue
            forms = [(name, WRAPPINGS[name].format(content)) for name in attack.wrappings] or [("whole", content)]
            for wrapping, text in forms:
                attempt = Attempt(subject=subject, text=continued(subject.task.prompt, text), wrapping=wrapping)
                made.setdefault((attempt.row, attempt.text), attempt)
    return list(made.values())
