"""`code`: does the completion's program pass the tests of its row?

The program is the last complete fenced block of Python outside `<think>...</think>`. It runs in a sandbox on one input
at a time; what it prints or returns is compared outside (`judging`, `cases`).

| completion                                                     | `score=all` | `score=fraction`     |
|----------------------------------------------------------------|-------------|----------------------|
| a program that passes every test                               | 1.0         | 1.0                  |
| a program that fails one of four tests                         | 0.0         | 0.75                 |
| no closed fence, no valid program, no function of that name    | 0.0         | 0.0                  |
| it ends with an error, or needs too much time, memory, output  | 0.0         | the tests it passed  |
| it is slow, and the batch has used up its time (`judging`)     | 0.0         | the tests it passed  |
| the row has no test cases                                      | None        | None                 |
| the row's test cases cannot be read                            | 0.0         | 0.0                  |
| the sandbox fails                                              | failure     | failure, never 0     |
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.chat.thinking import ThoughtReader, prefills_think
from paceline.data.formats import CASES_COLUMNS
from paceline.errors import DataError, PacelineError, RewardError, SandboxError
from paceline.rewards.builtin.answers import after_thought
from paceline.rewards.function import CHOOSE, BuiltIn, Grade, Need, RewardContext
from paceline.rewards.programs.cases import Cases, code_row_check, has_cases, parse_cases, same_output
from paceline.rewards.programs.judging import Judgement, Judges, Trial
from paceline.sandbox.programs import Limits, Sandbox
from paceline.types import Task

_PYTHON = re.compile(r"py(?:thon)?(?:3(?:\.[0-9]+)*)?")
"""Language names of Python after an opening fence, such as `python`, `py`, `python3` and `python3.12`."""

_FENCE = re.compile(
    r"(?P<answer>[ \t]*<answer>)?(?P<indent>[ \t]*)(?P<marks>`{3,}(?=[^`]*$)|~{3,}(?!~))(?P<info>.*?)(?:</answer>)?"
)


@dataclass(slots=True)
class _Opened:
    """A fence that may still be closed."""

    indent: str
    marks: str
    language: str
    content: list[str] = field(default_factory=list)


def last_code_block(text: str, *, prefilled: bool = False) -> str | None:
    r"""Return the last complete fence of Python outside the thinking; None without one.

    A fence marked `python`, `py`, `python3` or `python3.12` goes before an unmarked one, which may hold the program's
    output. One of another language is not taken. Both fences, of backticks or tildes, stand on lines of their own;
    `<answer>` may stand before the opening one and `</answer>` after the closing one. A fence that is never closed is
    none. A tag of thinking inside a complete fence is part of the program. `prefilled`: the prompt has opened the
    thinking (see `prefills_think`).

    >>> last_code_block("```python\nprint(1)\n```\nIt prints:\n```\n1\n```")
    'print(1)\n'
    """
    named, bare = None, None
    for language, content in _fences(text, ThoughtReader(prefilled=prefilled)):
        if content is None:
            named, bare = None, None
        elif _PYTHON.fullmatch(language):
            named = content
        elif not language:
            bare = content
    return bare if named is None else named


def _fences(text: str, thoughts: ThoughtReader) -> Iterator[tuple[str, str | None]]:
    """Yield language and content of each complete fence; the content is None if all before was thinking.

    An opening fence with a language ends an unclosed one as none, whose lines are then read for tags of thinking.
    """
    opened: _Opened | None = None
    for line in text.splitlines(keepends=True):
        fence = None if opened is None else _FENCE.fullmatch(line.rstrip())
        is_bare = fence is not None and not fence["info"].strip()
        if opened is not None and fence and is_bare and not fence["answer"] and fence["marks"].startswith(opened.marks):
            yield opened.language, "".join(opened.content)
            opened = None
        elif opened is not None and (fence is None or is_bare or not opened.marks.startswith(fence["marks"])):
            opened.content.append(line.removeprefix(opened.indent))
        else:
            for piece in (*(opened.content if opened else ()), line):
                visible = thoughts.visible(piece)
                if thoughts.is_restarted:
                    yield "", None
            opened, fence = None, None if thoughts.is_thinking else _FENCE.fullmatch(visible.rstrip())
            if fence is not None:
                opened = _Opened(fence["indent"], fence["marks"], (fence["info"].split() or [""])[0].lower())
    if opened is not None:
        thoughts.visible("".join(opened.content))
        if thoughts.is_restarted:
            yield "", None


CASES = Need(
    does="runs test cases",
    remedies=("give them in one of the columns that docs/rewards.md names", CHOOSE),
    repairs=("correct the tests or the solutions of these rows", CHOOSE),
    is_met=lambda task: has_cases(task.columns),
)
KNOWS_OUTPUTS = "program that knows the outputs"
"""Form of a right program where nobody has written one: a table of the tests' outputs."""
Score = Literal["all", "fraction"]

ROWS_KEPT = 256  # Rows whose tests stay read: the completions of a prompt arrive one after the other
FENCE = "```"
NO_PROGRAM = Grade(value=0.0, note="no closed fence with Python in it")
ENDS_AT_ONCE = "import sys\nsys.exit(0)"
ECHO = "import sys\nsys.stdout.write(sys.stdin.read())"


def code(context: RewardContext, *, score: Score = "all", timeout: float = 10.0, memory_mb: int = 512) -> BuiltIn:
    """Make the reward function for a run.

    `score`: 1.0 for all tests or nothing (`all`), or the share of tests passed (`fraction`). `timeout`: seconds of
    processor time for one test. `memory_mb`: MiB for one test.

    Raises:
        RewardError: a parameter that cannot be.
    """
    if timeout <= 0:
        raise RewardError(f"reward function code: timeout must be above 0 seconds, got {timeout:g}; the default is 10")
    if memory_mb < 1:
        raise RewardError(f"reward function code: memory_mb must be at least 1, got {memory_mb}; the default is 512")
    limits = Limits(seconds=timeout, memory_mb=memory_mb)
    grader = _Grader(context, limits=limits, score=score)
    return BuiltIn(
        name="code",
        call=grader.grade,
        gold=_gold,
        junk=_junk,
        right=1.0,
        need=CASES,
        honest_forms=(KNOWS_OUTPUTS,),
        check_row=code_row_check,
        begin=grader.begin,
        find=_program,
        is_formed=lambda *pair: _program(*pair) is not None,
        describe=lambda: f"programs of code run in the sandbox: {(context.open_sandbox or _no_sandbox)().description}",
    )


class _Grader:
    def __init__(self, context: RewardContext, *, limits: Limits, score: Score) -> None:
        self._judges = Judges(context.open_sandbox or _no_sandbox, limits=limits, stop_at_first=score == "all")
        self._score = score
        self._lock = threading.Lock()
        self._rows: OrderedDict[tuple[int, ...], tuple[Sequence[object], Cases]] = OrderedDict()

    def begin(self, *, prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> None:
        """Start judging in the background what a later `grade` will ask for."""
        self._start(prompts, completions, columns)

    def grade(
        self, *, prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]
    ) -> list[Grade | PacelineError | None]:
        """Return the score of each completion; None without test cases, an error where the grader failed."""
        started = self._start(prompts, completions, columns)
        judged = iter(self._judges.results([trial for trial in started if isinstance(trial, Trial)]))
        grades = list[Grade | PacelineError | None]()
        for trial in started:
            outcome = next(judged) if isinstance(trial, Trial) else trial
            if isinstance(outcome, Judgement):
                share = outcome.passed / len(outcome.verdicts)
                value = float(share == 1) if self._score == "all" else share
                outcome = Grade(value=value, note=outcome.note, cut_short="cut_short" in outcome.verdicts)
            grades.append(outcome)
        return grades

    def _start(
        self, prompts: Sequence[str], completions: Sequence[str], columns: Mapping[str, Sequence[Any]]
    ) -> list[Trial | Grade | PacelineError | None]:
        started = list[Trial | Grade | PacelineError | None]()
        for index, pair in enumerate(zip(prompts, completions, strict=True)):
            row = {name: columns[name][index] for name in CASES_COLUMNS if name in columns}
            if not has_cases(row):
                started.append(None)
            elif (program := _program(*pair)) is None:
                started.append(NO_PROGRAM)
            elif any("\ud800" <= character <= "\udfff" for character in program):
                started.append(Grade(value=0.0, note="the program holds half a surrogate pair, which no file can"))
            else:
                try:
                    started.append(self._judges.start(program, self._cases(row)))
                except DataError as error:  # such a row is refused when data are read: nobody is told to solve it
                    started.append(Grade(value=0.0, note=f"nothing passes tests that cannot be read: {error}"))
        return started

    def _cases(self, row: Mapping[str, object]) -> Cases:
        """Return the tests of a row, parsed once for all its completions, whose columns are the same objects."""
        cells = list(row.values())
        key = tuple(map(id, cells))
        with self._lock:
            if key not in self._rows:
                # The cells are kept beside the tests, so that no other object can get their identity.
                self._rows[key] = cells, parse_cases(row, "of the batch")
                if len(self._rows) > ROWS_KEPT:
                    self._rows.popitem(last=False)
            return self._rows[key][1]


def _program(prompt: str, completion: str) -> str | None:
    return last_code_block(completion, prefilled=prefills_think(prompt))


def _no_sandbox() -> Sandbox:
    raise SandboxError(
        "reward function code has no sandbox to run programs in; give the RewardContext that it is made with one "
        "(open_sandbox)"
    )


def _gold(task: Task) -> str | None:
    """Return the row's solution, if it has one and test cases."""
    solution = task.columns.get("solution")
    if not isinstance(solution, str) or not solution.strip() or not has_cases(task.columns):
        return None
    return after_thought(task, "\n" + (solution if FENCE in solution else _fenced(solution)))


def _junk(task: Task) -> tuple[str, ...]:
    """Return nothing, a program that ends at once, and programs that print an input, where that is wrong."""
    if not has_cases(task.columns):
        return ()
    cases = parse_cases(task.columns, task.task_id)
    programs = [ENDS_AT_ONCE]
    if cases.function is not None:
        programs.append(f"def {cases.function}(*arguments):\n    return None")
    elif not all(map(same_output, cases.outputs, cases.inputs)):
        programs += [ECHO, f"import sys\nsys.stdout.write({cases.inputs[0]!r})"]
    return ("", *(after_thought(task, "\n" + _fenced(program)) for program in programs))


def _fenced(program: str) -> str:
    return f"{FENCE}python\n{program}\n{FENCE}"
