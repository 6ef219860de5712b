"""Groups and batches from what a run has written of them: lines of rollouts, and what a journal says of a step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise

from paceline.metrics.definitions import Record
from paceline.rewards.scoring.grading import Tally
from paceline.rewards.scoring.scores import Scores
from paceline.training.rollouts.lines import unpacked_floats
from paceline.training.rollouts.sampler import RolloutBatch
from paceline.types import Completion, Rollout, RolloutGroup, Task, WeightChange


def restored_groups(records: Sequence[Record]) -> tuple[RolloutGroup, ...]:
    """The groups that `restorable_lines` was given; of their tasks only what a learner or a reader needs."""
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
        "rewards": {
            name: {"seconds": scores.seconds[name], "failed": scores.failed[name], **asdict(scores.tallies[name])}
            for name in scores.values
        },
        "formed": scores.formed,
        "first_failures": dict(scores.first_failures),
        "policy_versions": sorted(
            {version for group in batch.groups for rollout in group.rollouts for version in _versions(rollout)}
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
            tallies={name: _tally(one) for name, one in of_functions.items()},
            # journals of earlier versions have no verdicts on format
            formed=tuple(about["formed"]) if "formed" in about else (None,) * len(rollouts),
        ),
        refills=about["refills"],
        missing=about["missing"],
        generate_seconds=about["generate_seconds"],
        reward_seconds=about["reward_seconds"],
    )


def _tally(of_function: Record) -> Tally:
    """Journals of earlier versions have none of these."""
    return Tally(**{field: of_function[field] for field in Tally.__slots__ if field in of_function})


def _versions(rollout: Rollout) -> Iterator[int]:
    completion = rollout.completion
    yield completion.policy_version
    for change in completion.weight_changes:
        yield change.policy_version


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
        logprobs=unpacked_floats(record["logprobs"]),
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
