"""All attacks against one reward function: what they earn, what its full score is, and which may score it.

An audit is described for a person, as tables in the terminal, and for a program, as plain values.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.rewards.audit.cheats import ANSWER_ATTACKS, COMPLETION_ATTACKS
from paceline.rewards.audit.programs import PROGRAM_ATTACKS, lookup_program
from paceline.rewards.audit.subjects import WRAPPINGS, Attack, Attempt, Subject, attempts, continued, subjects
from paceline.rewards.builtin.code import KNOWS_OUTPUTS
from paceline.rewards.function import FORM_ALONE, BuiltIn, RewardFunction
from paceline.rewards.scoring.calling import made_up
from paceline.rewards.scoring.scores import score
from paceline.types import Task

CHARACTERS = 4_000_000  # Limit on the total length of the completions of one call
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Honest:
    """Results of the gold answer in one form."""

    form: str
    tasks: int
    """Tasks with an attempt in this form."""
    full: int
    """Tasks on which it scored full."""
    best: float | None
    """The highest score; None: no number was given."""
    is_promised: bool
    """True if the function promises to take this form."""

    @property
    def is_short(self) -> bool:
        """True if the function breaks its promise to take this form."""
        return self.is_promised and self.full < self.tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Results of one attack."""

    attack: str
    what: str
    tasks: int
    """Tasks with something to try."""
    completions: int
    full: int
    """Tasks on which a completion scored full."""
    partial: int
    """Tasks on which a completion scored something, but none full."""
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
    """Result of the attacks on one reward function."""

    name: str
    tasks: int
    threshold: float | None
    """Full score; None: unknown, as nothing scored above an empty completion."""
    threshold_from: str
    exception: str
    """Reason why some attacks do not count against this function; empty: all do."""
    honest: tuple[Honest, ...]
    findings: tuple[Finding, ...]
    failure: str | None
    """The first failure of the function: its message and traceback."""

    @property
    def cheats(self) -> tuple[Finding, ...]:
        """Attacks that scored full and must not."""
        return tuple(finding for finding in self.findings if finding.counts and finding.full)

    @property
    def failed(self) -> int:
        """Completions on which the function failed."""
        return sum(finding.failed for finding in self.findings)

    @property
    def is_silent(self) -> bool:
        """True if the function gave no number at all."""
        bests = [*(result.best for result in self.honest), *(finding.best for finding in self.findings)]
        return all(best is None for best in bests)

    @property
    def is_clean(self) -> bool:
        """True if no cheat scored full, and the gold answer did wherever the function promises it."""
        return not self.cheats and not self.is_silent and not any(honest.is_short for honest in self.honest)


ATTACKS = (*COMPLETION_ATTACKS, *ANSWER_ATTACKS, *PROGRAM_ATTACKS)
EXAMPLE_LENGTH = 200  # Characters of a completion that are shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """Scale of a function's scores."""

    full: Mapping[str, float]
    """Full score by task, where tasks differ."""
    default: float | None
    """Full score of all other tasks, and none is higher; None: unknown."""
    nothing: Mapping[str, float]
    """Score of an empty completion, by task."""
    origin: str
    """Origin of the full score, for a person."""

    def is_full(self, attempt: Attempt) -> bool:
        """Return whether an attempt scored full."""
        full = self.full.get(attempt.row, self.default)
        return attempt.score is not None and full is not None and attempt.score >= full - ROUNDING

    def is_something(self, attempt: Attempt) -> bool:
        """Return whether an attempt scored above 0 and above an empty completion."""
        least = max(0.0, self.nothing.get(attempt.row, 0.0)) + ROUNDING
        return attempt.score is not None and attempt.score > least


def audit(
    name: str,
    function: RewardFunction,
    tasks: Sequence[Task],
    *,
    timeout: float,
    attacks: Sequence[Attack] = ATTACKS,
    say: Callable[[str], None] = lambda sentence: None,
) -> Audit:
    """Grade every attack on every task.

    `measuring` decides what a full score is. A completion on which the function fails is counted as a failure, never as
    0. `timeout`: seconds of one call, which grades all completions of an attack; `say` is called with the name of each
    attack before it runs.

    Raises:
        RewardError: the function asks for an argument that the tasks do not have, or returns no list of numbers.
    """
    chosen = subjects(tasks)
    exception = function.audit_exception if isinstance(function, BuiltIn) else ""
    promised = function.honest_forms if isinstance(function, BuiltIn) else ()
    honest, failure = _graded(name, function, _honest_attempts(function, chosen), timeout)
    rounds: list[tuple[Attack, list[Attempt]]] = []
    for attack in attacks:
        say(attack.name)
        tried, why = _graded(name, function, attempts(attack, chosen), timeout)
        rounds.append((attack, tried))
        failure = failure or why
    measure = measuring(function, honest, [attempt for _, tried in rounds for attempt in tried], promised)
    # The gold answer, by form. A row without gold answer or test cases is not the function's task: nothing is promised.
    lines = []
    for form in dict.fromkeys(attempt.wrapping for attempt in honest):
        tried = [a for a in honest if a.wrapping == form and (a.score is not None or a.failed)]
        line = Honest(
            form=form,
            tasks=len(tried),
            full=sum(map(measure.is_full, tried)),
            best=_best(tried),
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
    """Make completions of the gold answer in every form, a built-in function's gold completion, and right programs."""
    made = []
    for subject in chosen:
        texts = dict[str, str]()
        if subject.cases is not None:
            texts[KNOWS_OUTPUTS] = WRAPPINGS["code fence"].format(lookup_program(subject.cases))
        elif subject.gold is not None:
            texts = {form: wrapping.format(subject.gold) for form, wrapping in WRAPPINGS.items()}
        texts = {form: continued(subject.task.prompt, text) for form, text in texts.items()}
        gold = function.gold if isinstance(function, BuiltIn) else None
        if gold is not None and (completion := gold(subject.task)) is not None:
            texts["the function's own"] = completion
        made += [Attempt(subject=subject, text=text, wrapping=form) for form, text in texts.items()]
    return made


def _graded(
    name: str, function: RewardFunction, tried: Sequence[Attempt], timeout: float
) -> tuple[list[Attempt], str | None]:
    """Return the attempts with their scores, and the first failure, if any."""
    graded, failure, start = list[Attempt](), None, 0
    while start < len(tried):
        # In calls of a bounded size: a list of token ids takes eight times the room of its text.
        end, length = start, 0
        while end < len(tried) and (end == start or length + len(tried[end].text) <= CHARACTERS):
            length += len(tried[end].text)
            end += 1
        part, start = tried[start:end], end
        # Token ids are the bytes of a text, as those of the prompt are.
        completions = [made_up(attempt.text, tuple(attempt.text.encode("utf-8", "surrogatepass"))) for attempt in part]
        scores = score({name: function}, [attempt.subject.task for attempt in part], completions, timeout=timeout)
        failed = set(scores.failed[name])
        for index, (attempt, value) in enumerate(zip(part, scores.values[name], strict=True)):
            graded.append(replace(attempt, score=value, failed=index in failed))
        failure = failure or scores.culprit
    return graded, failure


def measuring(
    function: RewardFunction, honest: Sequence[Attempt], tried: Sequence[Attempt], promised: Sequence[str]
) -> Measure:
    """Return the measure of a function, from what the gold answers (`honest`) and the attacks (`tried`) earned.

    The full score is a built-in function's maximum; where that depends on length, the least that the gold answer earns
    in a form that the function promises to take. For other functions it is what the gold answer earns in its best form,
    or for rows with test cases a program that has the outputs in a table; where neither earns anything, the highest
    score that was seen.
    """
    nothing = _by_task([attempt for attempt in tried if not attempt.text], max)
    if isinstance(function, BuiltIn) and (function.gold is not None or not promised):
        return Measure(full={}, default=function.maximum, nothing=nothing, origin="the most that it gives")
    # honest completions that earned something: above 0, or above an empty completion
    earned = [a for a in honest if a.score is not None and a.score > min(0.0, nothing.get(a.row, 0.0))]
    if isinstance(function, BuiltIn):
        full = _by_task([attempt for attempt in earned if attempt.wrapping in promised], min)
    else:
        full = _by_task(earned, max)
    if full:
        return Measure(full=full, default=max(full.values()), nothing=nothing, origin="what the gold answer scores")
    highest = _best(tried)
    is_known = highest is not None and highest > max([0.0, *nothing.values()])
    origin = "the highest score seen; the gold answer scored no more than nothing" if is_known else "unknown"
    return Measure(full={}, default=highest if is_known else None, nothing=nothing, origin=origin)


def _by_task(scored: Iterable[Attempt], choose: Callable[[float, float], float]) -> dict[str, float]:
    scores: dict[str, float] = {}
    for attempt in scored:
        if attempt.score is not None:
            scores[attempt.row] = choose(attempt.score, scores.get(attempt.row, attempt.score))
    return scores


def _best(tried: Iterable[Attempt]) -> float | None:
    return max((attempt.score for attempt in tried if attempt.score is not None), default=None)


def _finding(attack: Attack, tried: Sequence[Attempt], measure: Measure, exception: str) -> Finding:
    full = [attempt for attempt in tried if measure.is_full(attempt)]
    something = [attempt for attempt in tried if measure.is_something(attempt)]
    telling = full or something
    shown = max(telling, key=lambda attempt: (attempt.score or 0.0, -len(attempt.text)), default=None)
    full_rows = {attempt.row for attempt in full}
    return Finding(
        attack=attack.name,
        what=attack.what,
        tasks=len({attempt.row for attempt in tried}),
        completions=len(tried),
        full=len(full_rows),
        partial=len({attempt.row for attempt in something} - full_rows),
        failed=sum(attempt.failed for attempt in tried),
        best=_best(tried),
        forms=tuple(dict.fromkeys(attempt.wrapping for attempt in telling)),
        example=None if shown is None else shown.text[:EXAMPLE_LENGTH],
        row=None if shown is None else shown.row,
        counts=not exception or (exception == FORM_ALONE and not attack.has_content),
    )


EXAMPLE_WIDTH = 90  # Characters of a completion in the terminal
NAMED_FORMS = 3


def record(audit: Audit) -> dict[str, object]:
    """Return the audit as values for JSON."""
    return {**asdict(audit), "is_clean": audit.is_clean, "cheats": [finding.attack for finding in audit.cheats]}


def print_audit(console: Console, audit: Audit) -> None:
    """Print attacks that scored full, then what the gold answer earned, then the verdict in one sentence."""
    tried = sum(finding.completions for finding in audit.findings)
    full = "unknown" if audit.threshold is None else f"{_number(audit.threshold)} ({audit.threshold_from})"
    tasks = "1 task" if audit.tasks == 1 else f"{audit.tasks} tasks"
    _print(console, f"\n{audit.name}: {tasks}, {tried:,} completions. Full score: {full}.")
    if audit.cheats:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("scores full", no_wrap=True, style="red")
        table.add_column("tasks", justify="right", no_wrap=True)
        table.add_column("in the form of")
        for finding in sorted(audit.cheats, key=lambda finding: -finding.full / finding.tasks):
            table.add_row(escape(finding.attack), f"{finding.full} of {finding.tasks}", _forms(finding.forms))
        console.print(table)
    for finding in audit.cheats:
        shown = repr(finding.example or "")
        shown = shown if len(shown) <= EXAMPLE_WIDTH else f"{shown[:EXAMPLE_WIDTH]}..."
        _print(console, f"{finding.attack}: {shown} scores {_number(finding.best)} on {finding.row}.")
    honest = [result for result in audit.honest if result.full or result.is_promised]
    if honest:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("gold answer as", no_wrap=True)
        table.add_column("full", justify="right", no_wrap=True)
        table.add_column("highest", justify="right")
        for result in honest:
            form = f"[red]{escape(result.form)}[/red]" if result.is_short else escape(result.form)
            table.add_row(form, f"{result.full} of {result.tasks}", _number(result.best))
        console.print(table)
    for sentence in (*_notes(audit), verdict(audit)):
        _print(console, sentence)


def _notes(audit: Audit) -> list[str]:
    """Return remarks beside the verdict: scores below the full one, exceptions, failures."""
    notes = []
    some = [finding for finding in audit.findings if finding.counts and finding.partial and not finding.full]
    if some:
        best = max(some, key=lambda finding: finding.best or 0.0)
        notes.append(f"{len(some)} more attacks score something: at most {_number(best.best)} ({best.attack}).")
    if audit.exception:
        notes.append(f"{audit.name} {audit.exception}: such scores are not counted.")
    if audit.failure is not None:
        failing = ", ".join(finding.attack for finding in audit.findings if finding.failed) or "the gold answer"
        notes.append(f"The function failed on {audit.failed} completions ({failing}): nothing is known of them.")
        notes.append(f"The first failure: {audit.failure.splitlines()[0]}")
    return notes


def verdict(audit: Audit) -> str:
    """Return the verdict as one sentence."""
    if audit.is_silent:
        return f"{audit.name} gave no number to any completion: nothing is known of it."
    problems = []
    if audit.cheats:
        tried = [finding for finding in audit.findings if finding.completions]
        problems.append(f"{len(audit.cheats)} of {len(tried)} attacks score full")
    problems += [
        f"the gold answer in the form {honest.form!r} scores full on {honest.full} of {honest.tasks} tasks only"
        for honest in audit.honest
        if honest.is_short
    ]
    if problems:
        return f"{audit.name}: {'; '.join(problems)}."
    if audit.threshold is None:
        return f"{audit.name}: nothing that was tried scored above an empty completion, the gold answer neither."
    return f"{audit.name}: no known cheat scores full."


def _forms(forms: Sequence[str]) -> str:
    if forms == ("whole",):
        return ""
    if len(forms) == len(WRAPPINGS):
        return "every form"
    return ", ".join(forms) if len(forms) <= NAMED_FORMS else f"{', '.join(forms[:NAMED_FORMS])}, and others"


def _number(score: float | None) -> str:
    """Format a score, zero without a sign."""
    return "no number" if score is None else f"{score + 0.0:g}"


def _print(console: Console, sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False, emoji=False, soft_wrap=True)
