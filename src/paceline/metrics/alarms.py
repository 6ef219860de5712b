"""Alarms: rules on the metrics of the last steps that detect a run gone wrong.

A rule looks at the last `WINDOW` steps, so that one odd step raises no alarm, and some compare with the first `WINDOW`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paceline.metrics.definitions import Record

WINDOW = 5
"""Steps that a rule looks at: long enough to average out chance, short enough to warn early."""
ENTROPY_LEFT = 1 / 20
"""Share of the initial entropy. A run that learns its task loses nine tenths of it (the embedded one: 0.345 to 0.035
nats per token). With a twentieth left, the completions of a prompt are nearly all the same."""
LENGTH_LEFT = 1 / 4
"""Share of the initial length: a policy below it has stopped writing its reasoning down."""
MANY_TRUNCATED = 0.5
"""Share of truncated completions: with every second one cut, being short is rewarded rather than being right."""
WITHOUT_SIGNAL = 0.95
"""Share of a step's prompts without signal: an update comes from 1 in 20 only."""
MANY_CLIPPED = 0.3
"""Share of the trained tokens. A few per cent are usual; above a third, those learn nothing and the others went too
far."""
FAR_MISMATCH = 0.1
"""Mean difference in nats per token: engine and trainer differ by 10 %, where bfloat16 causes 1 to 2 %."""
MANY_FAILURES = 0.01
"""Share of the completions that a reward function grades. A sound grader fails on none; the run continues up to
`max_reward_failure_rate`."""
MANY_SKIPPED = 2
"""Skipped updates. One may be chance, for example a broken row; two in so few steps have a cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlarmRule:
    """An alarm: active where `holds` is true of the first and the last `WINDOW` steps."""

    name: str
    meaning: str
    remedy: str
    holds: Callable[[Sequence[Record], Sequence[Record]], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class AlarmChange:
    """Beginning or end of an alarm."""

    rule: AlarmRule
    since: int
    """Step at which the alarm began."""
    step: int
    begins: bool

    def describe(self) -> str:
        """Describe the change in one sentence."""
        if self.begins:
            return f"alarm {self.rule.name} since step {self.since}: {self.rule.meaning}; {self.rule.remedy}"
        return f"alarm {self.rule.name}, which began with step {self.since}, is over with step {self.step}"


class AlarmState:
    """Active alarms of a run, updated step by step."""

    def __init__(self, past: Iterable[Record] = ()) -> None:
        """Replay `past`, the steps before a resumed run: an alarm that was active then still is."""
        self._first, self._last = list[Record](), deque[Record](maxlen=WINDOW)
        self._since = dict[str, int]()
        for record in past:
            self.see(record)

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the active alarms, in the order of `RULES`."""
        return tuple(rule.name for rule in RULES if rule.name in self._since)

    def see(self, record: Record) -> list[AlarmChange]:
        """Add a step and return what it changes."""
        self._last.append(record)
        if len(self._first) < WINDOW:
            self._first.append(record)
        changes = []
        for rule in RULES:
            holds = len(self._last) == WINDOW and rule.holds(self._first, self._last)
            if holds == (rule.name in self._since):
                continue
            since = self._since.setdefault(rule.name, record["step"])
            if not holds:
                del self._since[rule.name]
            changes.append(AlarmChange(rule=rule, since=since, step=record["step"], begins=holds))
        return changes


def _numbers(records: Sequence[Record], name: str) -> list[float]:
    """Return the values of a metric, of the steps that measured it."""
    return [record[name] for record in records if record[name] is not None]


def _mean(records: Sequence[Record], name: str) -> float | None:
    values = _numbers(records, name)
    return sum(values) / len(values) if values else None


def _above(name: str, limit: float) -> Callable[[Sequence[Record], Sequence[Record]], bool]:
    def holds(first: Sequence[Record], last: Sequence[Record]) -> bool:
        mean = _mean(last, name)
        return mean is not None and mean > limit

    return holds


def _fell_below(name: str, share: float) -> Callable[[Sequence[Record], Sequence[Record]], bool]:
    def holds(first: Sequence[Record], last: Sequence[Record]) -> bool:
        before, now = _mean(first, name), _mean(last, name)
        return before is not None and now is not None and now < share * before

    return holds


def _without_signal(first: Sequence[Record], last: Sequence[Record]) -> bool:
    names = ("groups_zero_deviation", "groups_no_reward", "groups_filtered")
    silent = sum(sum(_numbers(last, name)) for name in names)
    return silent >= WITHOUT_SIGNAL * sum(_numbers(last, "prompts"))


def _clipped(first: Sequence[Record], last: Sequence[Record]) -> bool:
    return sum(_mean(last, name) or 0.0 for name in ("clip_low_fraction", "clip_high_fraction")) > MANY_CLIPPED


def _failing(first: Sequence[Record], last: Sequence[Record]) -> bool:
    rollouts = sum(_numbers(last, "rollouts"))
    rewards = [record["rewards"] for record in last]
    failures = [
        sum(step[name]["failures"] + step[name]["doubtful"] for step in rewards if name in step)
        for name in {name for step in rewards for name in step}
    ]
    return max(failures, default=0) > MANY_FAILURES * rollouts


def _skipped(first: Sequence[Record], last: Sequence[Record]) -> bool:
    return sum(_numbers(last, "updates_skipped")) >= MANY_SKIPPED


RULES = (
    AlarmRule(
        name="entropy_collapse",
        meaning="entropy is below a twentieth of what it was in the first 5 steps",
        remedy="where the reward still has room to grow, raise --clip-eps-high or --entropy-coef, or lower "
        "--learning-rate",
        holds=_fell_below("entropy", ENTROPY_LEFT),
    ),
    AlarmRule(
        name="length_collapse",
        meaning="completions are less than a quarter as long as in the first 5 steps",
        remedy="read some of rollouts/: if the reward can be had without the work, mend it",
        holds=_fell_below("completion_length_mean", LENGTH_LEFT),
    ),
    AlarmRule(
        name="length_explosion",
        meaning="more than half of the completions are cut at --max-completion-length",
        remedy="raise it, or give --overlong-share so that length costs something",
        holds=_above("truncated_fraction", MANY_TRUNCATED),
    ),
    AlarmRule(
        name="no_signal",
        meaning="at most 1 prompt in 20 has completions with different rewards",
        remedy="take tasks that are neither too easy nor too hard, or more --num-generations",
        holds=_without_signal,
    ),
    AlarmRule(
        name="clip_fraction",
        meaning="the clip holds more than 30 % of the trained tokens",
        remedy="lower --learning-rate, --num-iterations or --num-minibatches",
        holds=_clipped,
    ),
    AlarmRule(
        name="logprob_mismatch",
        meaning="engine and trainer differ by more than 0.1 nats per token",
        remedy="give --rollout-correction token_truncate, lower --max-staleness, or sample without top-p, top-k, min-p "
        "and engine_quantization",
        holds=_above("logprob_mismatch_mean", FAR_MISMATCH),
    ),
    AlarmRule(
        name="reward_failures",
        meaning="a reward function fails on more than 1 % of the completions, or raises on them together",
        remedy="`rewards` in metrics.jsonl says which; its first failure is what to mend",
        holds=_failing,
    ),
    AlarmRule(
        name="skipped_updates",
        meaning="two or more updates of the last 5 steps were not finite and were skipped",
        remedy="lower --learning-rate or --max-grad-norm, and look at the steps in kept/",
        holds=_skipped,
    ),
)
