"""Selection of the completions that a step trains on, and of the update that each belongs to."""

import itertools
from collections.abc import Sequence
from typing import Literal

from paceline.objective.micro_batches import Sample
from paceline.training.rollouts.grouping import OUT_OF_THE_STEP
from paceline.types import Rollout, RolloutGroup


def samples_of(groups: Sequence[RolloutGroup], *, over: Literal["kept", "all"] = "kept") -> list[Sample]:
    """Every completion that counts in the step's averages, in order; of groups that are left out none does.

    kept  those with a reward that are not masked
    all   also those without a reward, at advantage 0 with all their tokens, and masked ones, without any: TRL's
    """
    return [
        sample_of(number, group, rollout)
        for number, group in enumerate(groups)
        if group.dropped not in OUT_OF_THE_STEP
        for rollout in group.rollouts
        if over == "all" or rollout.dropped is None
    ]


def sample_of(number: int, group: RolloutGroup, rollout: Rollout) -> Sample:
    """One completion of group `number`."""
    return Sample(
        group=number,
        prompt_ids=group.task.prompt_ids,
        completion_ids=rollout.completion.token_ids,
        rollout_logprobs=rollout.completion.logprobs,
        advantage=rollout.advantage,
        masked=rollout.dropped == "truncated",
    )


def minibatches(num_samples: int, parts: int) -> list[range]:
    """Positions 0 to `num_samples` in `parts` runs whose sizes differ by one at most; empty ones are left out.

    >>> minibatches(5, 2)
    [range(0, 2), range(2, 5)]
    """
    bounds = [num_samples * part // parts for part in range(parts + 1)]
    runs = (range(start, end) for start, end in itertools.pairwise(bounds))
    return [run for run in runs if run]
