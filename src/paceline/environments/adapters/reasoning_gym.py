"""`reasoning_gym:NAME(parameter=value, ...)`: a task of reasoning-gym, with further attempts after a wrong answer.

The row's column `reasoning_gym` is the package's entry, as the dataset of that name has it; without one the entry is
drawn by the episode's seed, with the parameters. `attempts=N` is this adapter's own parameter (3).

The answer of a turn is its last `<answer>`, else its last box, else what stands behind `####`, else all of it. It is
scored by the task's own `score_answer`.

| the answer of a turn          | what the model reads                              | reward of the turn           |
|-------------------------------|---------------------------------------------------|------------------------------|
| scores 1                      | `Right.`; the episode is done                     | 1 less the score before      |
| scores less                   | `Wrong. 2 more attempts.`                         | its score less that before   |
| is empty, or cannot be scored | `Not an answer. 2 more attempts.`                 | 0 less the score before      |
| was the last attempt          | `Wrong.` or `Not an answer.`; the episode is done | as above                     |

The rewards of the turns add up to the score of the last answer, which is the episode's reward.

Some of the package's scorers evaluate a text as Python (`eval`, sympy's `parse_expr`). No process bounds that: what is
evaluated could change the score. An answer reaches such a scorer only if its characters can say nothing but numbers,
signs and lists (`ONLY`); where no such rule exists, the task is refused (`REFUSED`).
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from paceline.chat.thinking import visible_text
from paceline.data.answers import final_answer
from paceline.environments import AgentTurn, Observation
from paceline.environments.adapters import Adapter, Parameters, seed_of
from paceline.environments.builtin.games import behind_prompt, said
from paceline.errors import ConfigError, EnvironmentFailure

DEFAULT_ATTEMPTS, MOST_ATTEMPTS = 3, 20
ATTEMPTS = "attempts"

EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify|S|lambdify|__import__)\(")
MOST_EVALUATED = 500  # Characters of an answer to such a scorer: a long product or list takes long to compute
ONLY: Mapping[str, str] = {
    "countdown": r"(?!.*\*\s*\*)[\d\s+\-*/().]+",
    "binary_matrix": r"[\d\s,\[\]\-]+",
    "spiral_matrix": r"[\d\s,\[\]\-]+",
    "string_insertion": r"[A-E\s,\[\]'\"]+",
    "n_queens": r"[Q_\s,\[\]'\"]+",
}
"""All that an answer may be for tasks whose scorer evaluates it: no name, no call, no power."""
REFUSED: Mapping[str, str] = {
    "simple_integration": "its scorer evaluates the answer as Python code",
    "intermediate_integration": "its scorer evaluates the answer as Python code",
    "polynomial_multiplication": "its scorer evaluates the answer as Python code",
    "puzzle24": "its scorer never looks at the numbers that are given, so 6 + 6 + 6 + 6 is always right",
    "game_of_life_halting": "its scorer takes any text for the right answer",
    "composite": "it is no task but several; name one of them",
}
OWN_TEXT = ("number_sorting", "basic_arithmetic", "bitwise_arithmetic", "codeio", "propositional_logic")
"""Tasks whose file evaluates its own questions or programs, and never an answer; read in version 0.1.25."""
TUPLES = ("arc_agi", "rearc")
"""Tasks whose scorer compares tuples, which are lists in a row."""
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What scorers raise for an answer that they cannot read; each has scored the right answer of the entry before."""


class Attempts:
    """`Environment` of one question."""

    def __init__(self, dataset_of: Callable[[int], Any], name: str, attempts: int) -> None:
        """`dataset_of` makes the package's dataset of one entry from a seed."""
        self._dataset_of, self._name, self._left = dataset_of, name, attempts
        self._dataset: Any = None
        self._entry: Mapping[str, Any] = {}
        self._score = 0.0

    def begin(self, task: Mapping[str, Any], seed: int) -> str:
        """Ask the question where the prompt does not have it, and say how to answer.

        Raises:
            EnvironmentFailure: the row's entry is of another task, or its right answer does not score 1.
        """
        number = seed_of(task, seed)
        self._dataset = self._dataset_of(number)
        is_given = "reasoning_gym" in task
        self._entry = task["reasoning_gym"] if is_given else self._dataset[0]
        source = self._entry["metadata"]["source_dataset"]
        if source != self._name:
            raise EnvironmentFailure(
                f"the row's entry is of the task {source!r}, but the environment is {self._name!r}"
            )
        if self._name in TUPLES:
            self._entry = _tuples(self._entry)
        answer = self._entry["answer"]
        if answer is not None and self._dataset.score_answer(answer, self._entry) < 1:
            raise EnvironmentFailure(f"the entry's own answer {answer!r:.50} does not score 1; remove the row")
        rule = f"Answer as <answer>...</answer>. You have {_count(self._left, 'attempt')}."
        return f"\n{rule}" if is_given else behind_prompt(task, f"{self._entry['question']}\n{rule}")

    def observe(self, turn: AgentTurn) -> Observation:
        """Score the answer of a turn, as the table at the top of this file says."""
        self._left -= 1
        score = self._scored(_answer(turn.content))
        gained, self._score = (score or 0.0) - self._score, score or 0.0
        done = self._score >= 1 or self._left == 0
        text = "Not an answer." if score is None else "Right." if score >= 1 else "Wrong."
        if not done:
            text += f" {_count(self._left, 'more attempt')}."
        return said(text, reward=gained, done=done, calls=1, failed_calls=int(score is None))

    def close(self) -> float:
        """Return the score of the last answer."""
        return self._score

    def _scored(self, answer: str) -> float | None:
        """Return the score within [0, 1]; None: it is no answer."""
        only = ONLY.get(self._name)
        if not answer or (only and not (len(answer) <= MOST_EVALUATED and re.fullmatch(only, answer, re.DOTALL))):
            return None
        try:
            return min(1.0, max(0.0, float(self._dataset.score_answer(answer, self._entry))))
        except UNREADABLE:
            return None


def _answer(text: str) -> str:
    visible = visible_text(text)
    return (final_answer(visible) or visible).strip()


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tuples(part) for key, part in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


@lru_cache
def _tasks() -> Mapping[str, Any]:
    import reasoning_gym

    return dict(reasoning_gym.factory.DATASETS)


def evaluates(name: str) -> bool:
    """Return True if the file of a task, or that of its scorer, evaluates some text as code."""
    kind = _tasks()[name][0]
    files = {sys.modules[code.__module__] for code in (kind, kind.score_answer)}
    return any(EVALUATES.search(inspect.getsource(file)) for file in files)


def _refusal(name: str) -> str | None:
    """Say why a task of the package cannot be played; None: it can."""
    if name in REFUSED:
        return REFUSED[name]
    if name in ONLY or name in OWN_TEXT or not evaluates(name):
        return None
    return "its file evaluates text as Python code, and nobody has read yet whether answers are among it"


def load(name: str, parameters: Parameters) -> Callable[[], Attempts]:
    """Return what makes the episodes of a task; see `adapters.Load`."""
    import reasoning_gym

    known = [task for task in sorted(_tasks()) if task not in REFUSED]
    if name not in _tasks():
        near = get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
        raise ConfigError(f"there is no task {name!r} among {len(known)}; nearest: {', '.join(near)}")
    if (why := _refusal(name)) is not None:
        raise ConfigError(f"the task {name!r} is refused: {why}")
    settings: dict[str, Any] = {ATTEMPTS: DEFAULT_ATTEMPTS, **parameters}
    attempts = settings.pop(ATTEMPTS)
    if not isinstance(attempts, int) or isinstance(attempts, bool) or not 1 <= attempts <= MOST_ATTEMPTS:
        raise ConfigError(f"attempts must be a whole number within [1, {MOST_ATTEMPTS}], got {attempts!r}")

    def dataset_of(seed: int) -> Any:
        try:
            return reasoning_gym.create_dataset(name, size=1, seed=seed, **settings)
        except (AssertionError, ValueError, TypeError) as error:
            raise ConfigError(f"the parameters of {name!r} do not go together ({error}); take others") from error

    return lambda: Attempts(dataset_of, name, attempts)


ADAPTER = Adapter(package="reasoning-gym", example="chain_sum", load=load)
