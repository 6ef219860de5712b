"""The phases of a measured step against their floors: what was watched, what must be done, what it is called."""

from collections.abc import Mapping, Sequence
from statistics import median

from floors import Rates, Work, floor, limit
from step_work import (
    Group,
    Shape,
    Training,
    backward,
    conversion,
    decode,
    forward,
    optimiser,
    prefill,
)

from paceline.types import RolloutGroup

PHASES = {
    "weights": "weights made ready for generation: joined, converted",
    "prefill": "prompts through the model, into the cache",
    "decode": "one token for every living completion, all steps",
    "sampling": "the rest of generation: drawing, ending, text",
    "rewards": "scoring and advantages",
    "packing": "completions to micro-batches, on the device",
    "forward": "log-probabilities and loss of every micro-batch",
    "backward": "gradients",
    "optimiser": "norm of the gradient, its limit, AdamW, metrics read",
}
"""By name, what is in it. Those without work in `phase_work` have no floor: nothing in them must take time."""


def trained_groups(groups: Sequence[RolloutGroup]) -> list[Group]:
    """What has a gradient: completions with an advantage."""
    return [
        Group(
            prompt=len(group.task.prompt_ids),
            completions=tuple(len(one.trajectory.completion_ids) for one in group.rollouts if one.advantage != 0),
        )
        for group in groups
    ]


def sampled_groups(groups: Sequence[RolloutGroup]) -> list[Group]:
    """What was generated."""
    return [
        Group(
            prompt=len(group.task.prompt_ids),
            completions=tuple(len(one.trajectory.completion_ids) for one in group.rollouts),
        )
        for group in groups
    ]


def phase_work(
    shape: Shape, sampled: Sequence[Group], trained: Sequence[Group], *, size: int, micro_batches: int
) -> dict[str, Work | list[Work]]:
    """The least work of each phase; `size` is the bytes of a number in products and cache."""
    training = Training.of(shape, trained)
    return {
        "weights": conversion(shape, size=size),
        "prefill": prefill(shape, sampled, size=size),
        "decode": decode(shape, sampled, size=size),
        "forward": forward(shape, training, size=size, micro_batches=micro_batches),
        "backward": backward(shape, training, size=size, micro_batches=micro_batches),
        "optimiser": optimiser(shape),
    }


def against_floors(
    seconds: Mapping[str, float], work: Mapping[str, Work | list[Work]], rates: Rates
) -> dict[str, dict[str, object]]:
    """One repetition: seconds of every phase, its floor and which of operations and bytes set it (None without one)."""
    found: dict[str, dict[str, object]] = {}
    for name in PHASES:
        floored = name in work and seconds.get(name, 0.0) > 0
        found[name] = {
            "seconds": seconds.get(name, 0.0),
            "floor": floor(work[name], rates) if floored else None,
            "limit": _limit(work[name], rates) if floored else None,
        }
    return found


def _limit(work: Work | list[Work], rates: Rates) -> str | None:
    """Of a sequence, whatever sets most of its floor."""
    if isinstance(work, Work):
        return limit(work, rates)
    shares = {"operations": 0.0, "bytes": 0.0}
    for one in work:
        shares[limit(one, rates)] += floor(one, rates)
    return max(shares, key=lambda name: shares[name]) if work else None


def summarised(repetitions: Sequence[Mapping[str, Mapping]]) -> dict[str, dict[str, object]]:
    """Medians over repetitions; `over` is the median of seconds over floor."""
    found: dict[str, dict[str, object]] = {}
    for name in PHASES:
        rows = [one[name] for one in repetitions]
        floored = [row for row in rows if row["floor"]]
        found[name] = {
            "seconds": median(row["seconds"] for row in rows),
            "floor": median(row["floor"] for row in floored) if floored else None,
            "over": median(row["seconds"] / row["floor"] for row in floored) if floored else None,
            "limit": floored[0]["limit"] if floored else None,
        }
    return found
