"""All attacks against one reward function: what they earn, what its full score is, and which may score it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.rewards.audit.cheats import ANSWER_ATTACKS, COMPLETION_ATTACKS
from paceline.rewards.audit.programs import PROGRAM_ATTACKS, lookup_program
from paceline.rewards.audit.subjects import WRAPPINGS, Attack, Attempt, Subject, attempts, continued, subjects
from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.rewards.scoring.calling import made_up
from paceline.rewards.scoring.scores import score
from paceline.types import Task

CHARACTERS = 4_000_000  # Limit on the total length of the completions of one call
ROUNDING = 1e-9


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
    counts: bool
    """False: the function may give its full score here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """What attacks on one reward function came to."""

    name: str
    tasks: int
    threshold: float | None
    """The full score; None: nothing scored above an empty completion, so what a full one is stays unknown."""
    threshold_from: str
    exception: str
    """Why some attacks do not count against this function; empty: all do."""
    honest: tuple[Honest, ...]
    findings: tuple[Finding, ...]
    failure: str | None
    """The first failure of the function: its message and traceback."""

    @property
    def cheats(self) -> tuple[Finding, ...]:
        """The attacks that scored full and must not."""
        return tuple(finding for finding in self.findings if finding.counts and finding.full)

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """What a score is worth."""

    full: Mapping[str, float]
    """By task, the full score, where tasks differ."""
    default: float | None
    """Full score of all other tasks, and none is higher; None: unknown."""
    nothing: Mapping[str, float]
    """By task, what an empty completion earns."""
    origin: str
    """Where the full score is known from, for a person."""

    def is_full(self, one: Attempt) -> bool:
        """Return whether it scored full."""
        full = self.full.get(one.row, self.default)
        return one.score is not None and full is not None and one.score >= full - ROUNDING


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
    chosen = subjects(tasks)
    base = function.name if isinstance(function, BuiltIn) else ""
    exception, promised = EXCEPTIONS.get(base, ""), HONEST_FORMS.get(base, ())
    honest, failure = _graded(name, function, _honest_attempts(function, chosen), timeout)
    rounds: list[tuple[Attack, list[Attempt]]] = []
    for attack in attacks:
        say(attack.name)
        tried, why = _graded(name, function, attempts(attack, chosen), timeout)
        rounds.append((attack, tried))
        failure = failure or why
    measure = measuring(function, honest, [one for _, tried in rounds for one in tried], promised)
    # The gold answer, by form. A row without gold answer or test cases is not the function's task: nothing is promised.
    lines = []
    for form in dict.fromkeys(one.wrapping for one in honest):
        own = [one for one in honest if one.wrapping == form and (one.score is not None or one.failed)]
        line = Honest(
            form=form,
            tasks=len(own),
            full=sum(map(measure.is_full, own)),
            best=max((one.score for one in own if one.score is not None), default=None),
            is_promised=form in promised or form == "the function's own",
        )
        lines.append(line)
    return Audit(
        name=name,
        tasks=len(tasks),
        threshold=measure.default,
        threshold_from=measure.origin,
        exception=exception,
        honest=tuple(lines),
        findings=tuple(_finding(attack, tried, measure, exception) for attack, tried in rounds),
        failure=failure,
    )


def _honest_attempts(function: RewardFunction, chosen: Sequence[Subject]) -> list[Attempt]:
    """The gold answer in every form, the built-in function's own gold completion, and the right program."""
    made = []
    for subject in chosen:
        texts = {} if subject.gold is None else {form: one.format(subject.gold) for form, one in WRAPPINGS.items()}
        if subject.cases is not None:
            texts = {KNOWS_OUTPUTS: WRAPPINGS["code fence"].format(lookup_program(subject.cases))}
        texts = {form: continued(subject.task.prompt, text) for form, text in texts.items()}
        own = function.gold(subject.task) if isinstance(function, BuiltIn) and function.gold is not None else None
        if own is not None:
            texts["the function's own"] = own
        made += [Attempt(subject=subject, text=text, wrapping=form) for form, text in texts.items()]
    return made


def _graded(
    name: str, function: RewardFunction, tried: Sequence[Attempt], timeout: float
) -> tuple[list[Attempt], str | None]:
    """The attempts with their scores, and the first failure, where there is one."""
    graded, failure, start = list[Attempt](), None, 0
    while start < len(tried):
        # In calls of a bounded size: a list of token ids takes eight times the room of its text.
        end, length = start, 0
        while end < len(tried) and (end == start or length + len(tried[end].text) <= CHARACTERS):
            length += len(tried[end].text)
            end += 1
        part, start = tried[start:end], end
        # Token ids are the bytes of a text, as those of the prompt are.
        completions = [made_up(one.text, tuple(one.text.encode("utf-8", "surrogatepass"))) for one in part]
        scores = score({name: function}, [one.subject.task for one in part], completions, timeout=timeout)
        failed = set(scores.failed[name])
        for place, (one, value) in enumerate(zip(part, scores.values[name], strict=True)):
            graded.append(replace(one, score=value, failed=place in failed))
        failure = failure or scores.culprit
    return graded, failure


def measuring(
    function: RewardFunction, honest: Sequence[Attempt], tried: Sequence[Attempt], promised: Sequence[str]
) -> Measure:
    """The measure of a function, from what the gold answers (`honest`) and the attacks (`tried`) earned.

    The full score is a built-in function's maximum; where that depends on length, the least that the gold answer
    earns in a form that the function promises to take. Of another function it is what the gold answer earns in the
    form that earns most, or for rows with test cases a program that knows the outputs by heart; where neither earns
    anything, the highest score that was seen.
    """
    nothing = _by_task([one for one in tried if not one.text], max)
    if isinstance(function, BuiltIn) and (function.gold is not None or not promised):
        return Measure(full={}, default=function.maximum, nothing=nothing, origin="the most that it gives")
    # An honest completion earned something above 0, or above what an empty one gets.
    earned = [one for one in honest if one.score is not None and one.score > min(0.0, nothing.get(one.row, 0.0))]
    if isinstance(function, BuiltIn):
        full = _by_task([one for one in earned if one.wrapping in promised], min)
    else:
        full = _by_task(earned, max)
    if full:
        return Measure(full=full, default=max(full.values()), nothing=nothing, origin="what the gold answer scores")
    highest = max((one.score for one in tried if one.score is not None), default=None)
    is_known = highest is not None and highest > max([0.0, *nothing.values()])
    origin = "the highest score seen; the gold answer scored no more than nothing" if is_known else "unknown"
    return Measure(full={}, default=highest if is_known else None, nothing=nothing, origin=origin)


def _by_task(scored: Iterable[Attempt], choose: Callable[[float, float], float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in scored:
        if one.score is not None:
            found[one.row] = choose(one.score, found.get(one.row, one.score))
    return found


def _finding(attack: Attack, tried: Sequence[Attempt], measure: Measure, exception: str) -> Finding:
    full = [one for one in tried if measure.is_full(one)]
    # Above 0 and above what an empty completion earns.
    something = [
        one
        for one in tried
        if one.score is not None and one.score > max(0.0, measure.nothing.get(one.row, 0.0)) + ROUNDING
    ]
    telling = full or something
    best = max((one for one in tried if one.score is not None), key=lambda one: one.score or 0.0, default=None)
    shown = max(telling, key=lambda one: (one.score or 0.0, -len(one.text)), default=None)
    full_rows = {one.row for one in full}
    return Finding(
        attack=attack.name,
        what=attack.what,
        tasks=len({one.row for one in tried}),
        completions=len(tried),
        full=len(full_rows),
        partial=len({one.row for one in something} - full_rows),
        failed=sum(one.failed for one in tried),
        best=None if best is None else best.score,
        forms=tuple(dict.fromkeys(one.wrapping for one in telling)),
        example=None if shown is None else shown.text[:EXAMPLE_LENGTH],
        row=None if shown is None else shown.row,
        counts=not exception or (exception == _FORM and not attack.has_content),
    )
