"""All attacks against one reward function."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.rewards.audit.cheats import ANSWER_ATTACKS, COMPLETION_ATTACKS
from paceline.rewards.audit.measuring import Grader, Measure, Scored, measuring
from paceline.rewards.audit.programs import PROGRAM_ATTACKS, lookup_program
from paceline.rewards.audit.subjects import WRAPPINGS, Attack, Attempt, Subject, attempts, continued, subjects
from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.types import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Honest:
    """How the gold answer did in one form."""

    form: str
    tasks: int
    """Tasks that it was handed in for."""
    full: int
    """Those of them on which it scored full."""
    best: float | None
    """The highest score; None: no number was given."""
    is_promised: bool
    """True if the function says that it takes this form."""

    @property
    def is_short(self) -> bool:
        """True if the function does not keep what it says."""
        return self.is_promised and self.full < self.tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """How one attack did."""

    attack: str
    what: str
    tasks: int
    """Tasks that gave something to try; 0: there was nothing to try."""
    completions: int
    full: int
    """Tasks on which a completion scored full."""
    partial: int
    """Tasks on which one scored something, and none full."""
    failed: int
    """Completions on which the function failed: nothing is known of them."""
    best: float | None
    """The highest score; None: no number was given."""
    forms: tuple[str, ...]
    """The forms that scored full, or else something."""
    example: str | None
    """The completion that scored most, where it scored anything."""
    row: str | None
    """Its row."""
    counts: bool
    """False: the function may give its full score here."""

    @property
    def is_cheated(self) -> bool:
        """True if a cheat scored full that must not."""
        return self.counts and self.full > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """What attacks on one reward function came to."""

    name: str
    tasks: int
    threshold: float | None
    """The full score; None: nothing scored above an empty completion, so what a full one is stays unknown."""
    threshold_from: str
    """Where that is known from."""
    exception: str
    """Why some attacks do not count against this function; empty: all do."""
    honest: tuple[Honest, ...]
    findings: tuple[Finding, ...]
    failure: str | None
    """The first failure of the function: its message and traceback."""

    @property
    def cheats(self) -> tuple[Finding, ...]:
        """The attacks that scored full and must not."""
        return tuple(finding for finding in self.findings if finding.is_cheated)

    @property
    def failed(self) -> int:
        """Completions on which the function failed."""
        return sum(finding.failed for finding in self.findings)

    @property
    def is_silent(self) -> bool:
        """True if the function gave no number at all."""
        return all(one.best is None for one in self.honest) and all(one.best is None for one in self.findings)

    @property
    def is_clean(self) -> bool:
        """True if no cheat scored full, and the gold answer did wherever the function says so."""
        return not self.cheats and not self.is_silent and not any(one.is_short for one in self.honest)


_FORM = (
    "rewards the form, whatever the answer in it is; give it a small weight beside a function that judges the answer"
)
# By the name of a built-in function, why some attacks may score full. Every attack counts against the others, and
# against functions of one's own; against those of a form, attacks without content count.
EXCEPTIONS: Mapping[str, str] = {
    "format": _FORM,
    "react_format": _FORM,
    "repetition": "penalises repeated words only, and gives full to anything else",
    "soft_overlong": "penalises length only, and gives full to anything short",
    "random": "is the control that has nothing to do with quality",
}

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
EXAMPLE_LENGTH = 200  # Characters of a completion that are shown


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
    exception, promised = EXCEPTIONS.get(base, ""), HONEST_FORMS.get(base, ())
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
        exception=exception,
        honest=_honest_lines(honest, measure, promised),
        findings=tuple(_finding(attack, scored, measure, exception) for attack, scored in rounds),
        failure=failure,
    )


def _honest_attempts(function: RewardFunction, chosen: Sequence[Subject]) -> list[Attempt]:
    """The gold answer in every form, the built-in function's own gold completion, and the right program."""
    made = []
    for subject in chosen:
        texts = (
            {form: shape.format(subject.gold) for form, shape in WRAPPINGS.items()} if subject.gold is not None else {}
        )
        if subject.cases is not None:
            texts = {KNOWS_OUTPUTS: WRAPPINGS["code fence"].format(lookup_program(subject.cases))}
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


def _finding(attack: Attack, scored: Sequence[Scored], measure: Measure, exception: str) -> Finding:
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
        counts=not exception or (exception == _FORM and not attack.has_content),
    )


def _rows(scored: Iterable[Scored]) -> set[str]:
    return {one.attempt.subject.task.task_id for one in scored}
