"""All attacks against one reward function."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.rewards.audit.answers import ANSWER_ATTACKS
from paceline.rewards.audit.attempts import Attack, Attempt, attempts
from paceline.rewards.audit.completions import COMPLETION_ATTACKS
from paceline.rewards.audit.findings import Audit, Finding, Honest
from paceline.rewards.audit.grading import Grader, Scored
from paceline.rewards.audit.measuring import Measure, measuring
from paceline.rewards.audit.programs import PROGRAM_ATTACKS, lookup_program
from paceline.rewards.audit.subjects import Subject, subjects
from paceline.rewards.audit.wrappings import WRAPPINGS, continued, wrapped
from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.types import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What counts as a cheat against a function."""

    counts: Literal["all", "without content", "none"]
    """Attacks that must not score full."""
    reason: str = ""
    """Why the others may, for a person."""


EVERYTHING = Expectation(counts="all")
_FORM = (
    "rewards the form, whatever the answer in it is; give it a small weight beside a function that judges the answer"
)

EXPECTATIONS: Mapping[str, Expectation] = {
    "format": Expectation(counts="without content", reason=_FORM),
    "react_format": Expectation(counts="without content", reason=_FORM),
    "repetition": Expectation(counts="none", reason="penalises repeated words only, and gives full to anything else"),
    "soft_overlong": Expectation(counts="none", reason="penalises length only, and gives full to anything short"),
    "random": Expectation(counts="none", reason="is the control that has nothing to do with quality"),
}
"""By the name of a built-in function; every attack counts against the others, and against functions of one's own."""

KNOWS_OUTPUTS = "program that knows the outputs"
"""The form of a right program where nobody has written one: it has the tests' outputs by heart."""
_ANY_FORM = ("box", "answer tags", "think and answer tags", "reasoning and answer tags", "hashes")

HONEST_FORMS: Mapping[str, tuple[str, ...]] = {
    "accuracy": _ANY_FORM,
    "cosine": _ANY_FORM,
    "boxed": ("box",),
    "think_answer_tags": ("think and answer tags",),
    "gsm8k": ("reasoning and answer tags",),
    "format": ("think and answer tags",),
    "code": (KNOWS_OUTPUTS,),
}
"""By the name of a built-in function, the forms in which it says that it finds the answer."""


ATTACKS = (*COMPLETION_ATTACKS, *ANSWER_ATTACKS, *PROGRAM_ATTACKS)
EXAMPLE_LENGTH = 200
"""Characters of a completion that are shown."""


def audit(
    name: str,
    function: RewardFunction,
    tasks: Sequence[Task],
    *,
    timeout: float,
    attacks: Sequence[Attack] = ATTACKS,
    say: Callable[[str], None] = lambda sentence: None,
) -> Audit:
    """Hand in every attack for every task and see what it earns.

    What a full score is says `measuring`. A completion on which the function fails is counted as a failure, never as
    0. `timeout`: seconds of one call, which grades all completions of an attack; `say` is told each attack's name
    before its turn.

    Raises:
        RewardError: the function asks for what the tasks do not have, or returns what is no list of numbers.
    """
    grader = Grader(name=name, function=function, timeout=timeout)
    chosen = subjects(tasks)
    base = function.name if isinstance(function, BuiltIn) else ""
    expectation, promised = EXPECTATIONS.get(base, EVERYTHING), HONEST_FORMS.get(base, ())
    honest, failure = grader.grade(_honest_attempts(function, chosen))
    rounds: list[tuple[Attack, list[Scored]]] = []
    for attack in attacks:
        say(attack.name)
        scored, why = grader.grade(attempts(attack, chosen))
        rounds.append((attack, scored))
        failure = failure or why
    measure = measuring(function, honest, [one for _, scored in rounds for one in scored], promised)
    return Audit(
        name=name,
        tasks=len(tasks),
        threshold=measure.highest,
        threshold_from=measure.origin,
        exception=expectation.reason,
        honest=_honest_lines(honest, measure, promised),
        findings=tuple(_finding(attack, scored, measure, expectation) for attack, scored in rounds),
        failure=failure,
    )


def _honest_attempts(function: RewardFunction, chosen: Sequence[Subject]) -> list[Attempt]:
    """The gold answer in every form, the built-in function's own gold completion, and the right program."""
    made = []
    for subject in chosen:
        texts = {form: wrapped(form, subject.gold) for form in WRAPPINGS} if subject.gold is not None else {}
        if subject.cases is not None:
            texts = {KNOWS_OUTPUTS: wrapped("code fence", lookup_program(subject.cases))}
        made += [
            Attempt(subject=subject, text=continued(subject.task.prompt, text), wrapping=form)
            for form, text in texts.items()
        ]
        own = function.gold(subject.task) if isinstance(function, BuiltIn) and function.gold is not None else None
        if own is not None:
            made.append(Attempt(subject=subject, text=own, wrapping="the function's own"))
    return made


def _honest_lines(honest: Sequence[Scored], measure: Measure, promised: Sequence[str]) -> tuple[Honest, ...]:
    forms = dict.fromkeys(one.attempt.wrapping for one in honest)
    lines = []
    for form in forms:
        # A row without gold answer or test cases is not the function's task: nothing is promised there.
        own = [one for one in honest if one.attempt.wrapping == form and (one.score is not None or one.failed)]
        lines.append(
            Honest(
                form=form,
                tasks=len(own),
                full=sum(map(measure.is_full, own)),
                best=max((one.score for one in own if one.score is not None), default=None),
                is_promised=form in promised or form == "the function's own",
            )
        )
    return tuple(lines)


def _finding(attack: Attack, scored: Sequence[Scored], measure: Measure, expectation: Expectation) -> Finding:
    full = [one for one in scored if measure.is_full(one)]
    something = [one for one in scored if measure.is_something(one)]
    telling = full or something
    best = max((one for one in scored if one.score is not None), key=lambda one: one.score or 0.0, default=None)
    shown = max(telling, key=lambda one: (one.score or 0.0, -len(one.attempt.text)), default=None)
    return Finding(
        attack=attack.name,
        what=attack.what,
        tasks=len(_rows(scored)),
        completions=len(scored),
        full=len(_rows(full)),
        partial=len(_rows(something) - _rows(full)),
        failed=sum(one.failed for one in scored),
        best=None if best is None else best.score,
        forms=tuple(dict.fromkeys(one.attempt.wrapping for one in telling)),
        example=None if shown is None else shown.attempt.text[:EXAMPLE_LENGTH],
        row=None if shown is None else shown.attempt.subject.task.task_id,
        counts=expectation.counts == "all" or (expectation.counts == "without content" and not attack.has_content),
    )


def _rows(scored: Iterable[Scored]) -> set[str]:
    return {one.attempt.subject.task.task_id for one in scored}
