"""A step's rollouts as records from which they can be made again, bit for bit, without an engine or a reward function.

A rollout's record is the one for readers (`rollout_records`) and, beside it, what only a learner needs:

    token_ids     the completion's tokens
    logprobs      as the engine reported them: little-endian floats in base64, of the narrowest type that holds them
    group_dropped, rollout_dropped   why its group, or it alone, is not trained on
    prompt_ids    in the first rollout of a group
"""

import base64
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from paceline.rewards import Scores
from paceline.rollouts.producer import RolloutBatch
from paceline.rollouts.records import rollout_records
from paceline.types import Completion, Rollout, RolloutGroup, Task, WeightChange

Record = Mapping[str, Any]

_TYPES = {"float32": "f", "float64": "d"}


def restorable_records(groups: Sequence[RolloutGroup]) -> list[dict[str, object]]:
    """One object per rollout, group after group, samples numbered from 0."""
    rollouts = [(group, sample, rollout) for group in groups for sample, rollout in enumerate(group.rollouts)]
    return [
        {
            **record,
            "group_dropped": group.dropped,
            "rollout_dropped": rollout.dropped,
            "token_ids": rollout.completion.token_ids,
            "logprobs": _packed(rollout.completion.logprobs),
            **({"prompt_ids": group.task.prompt_ids} if sample == 0 else {}),
        }
        for record, (group, sample, rollout) in zip(rollout_records(groups), rollouts, strict=True)
    ]


def restored_groups(records: Sequence[Record]) -> tuple[RolloutGroup, ...]:
    """The groups that `restorable_records` was given; of their tasks only what a learner or a reader needs."""
    return tuple(
        RolloutGroup(task=_task(rows[0]), rollouts=tuple(map(_rollout, rows)), dropped=rows[0]["group_dropped"])
        for rows in _by_group(records)
    )


def batch_about(batch: RolloutBatch) -> dict[str, object]:
    """What is not in the records of a step's groups."""
    scores = batch.scores
    return {
        "refills": batch.refills,
        "missing": batch.missing,
        "generate_seconds": batch.generate_seconds,
        "reward_seconds": batch.reward_seconds,
        "rewards": {name: {"seconds": scores.seconds[name], "failed": scores.failed[name]} for name in scores.values},
        "first_failures": dict(scores.first_failures),
        "policy_versions": sorted(
            {
                version
                for group in batch.groups
                for rollout in group.rollouts
                for version, _ in rollout.completion.tokens_by_version
            }
        ),
    }


def restored_batch(about: Record, groups: Sequence[RolloutGroup]) -> RolloutBatch:
    """The batch that `batch_about` was given."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    of_functions: Mapping[str, Record] = about["rewards"]
    return RolloutBatch(
        groups=tuple(groups),
        scores=Scores(
            values={name: tuple(rollout.rewards[name] for rollout in rollouts) for name in of_functions},
            failed={name: tuple(one["failed"]) for name, one in of_functions.items()},
            seconds={name: one["seconds"] for name, one in of_functions.items()},
            first_failures=about["first_failures"],
            notes={name: tuple(rollout.notes.get(name) for rollout in rollouts) for name in of_functions},
        ),
        refills=about["refills"],
        missing=about["missing"],
        generate_seconds=about["generate_seconds"],
        reward_seconds=about["reward_seconds"],
    )


def _by_group(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    starts = [at for at, record in enumerate(records) if record["sample"] == 0] + [len(records)]
    return (records[first:end] for first, end in pairwise(starts))


def _task(record: Record) -> Task:
    return Task(
        task_id=record["task_id"],
        prompt=record["prompt"],
        prompt_ids=tuple(record["prompt_ids"]),
        answer=record["answer"],
    )


def _rollout(record: Record) -> Rollout:
    completion = Completion(
        token_ids=tuple(record["token_ids"]),
        logprobs=_unpacked(record["logprobs"]),
        finish_reason=record["finish_reason"],
        text=record["completion"],
        policy_version=record["policy_version"],
        weight_changes=tuple(WeightChange(**change) for change in record["weight_changes"]),
    )
    return Rollout(
        completion=completion,
        rewards=record["rewards"],
        reward=record["reward"],
        advantage=record["advantage"],
        dropped=record["rollout_dropped"],
        notes=record["notes"],
    )


def _packed(values: Sequence[float]) -> dict[str, str]:
    """Float32 where no value loses a bit by it, as those of every engine that computes in it."""
    for name, code in _TYPES.items():
        packed = array(code, values)
        if name == "float64" or packed.tolist() == list(values):
            break
    if sys.byteorder == "big":
        packed.byteswap()
    return {name: base64.b64encode(packed.tobytes()).decode()}


def _unpacked(written: Mapping[str, str]) -> tuple[float, ...]:
    ((name, text),) = written.items()
    values = array(_TYPES[name])
    values.frombytes(base64.b64decode(text))
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values)
