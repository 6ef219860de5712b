"""A step's rollouts as lines of JSON, and groups and batches from these, bit for bit, without an engine.

A line is what `rollout_records` has of a rollout and, beside it, what only a learner needs:

    token_ids     the completion's tokens
    logprobs      as the engine reported them: little-endian floats in base64, of the narrowest type that holds them
    group_dropped, rollout_dropped   why its group, or it alone, is not trained on
    prompt_ids    in the first rollout of a group
    episode       of a conversation, its turns and what the environment answered: nothing is asked of one again

orjson encodes them: a run waits for its journal, and Python's own encoder takes more than twice as long.
"""

import base64
import math
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise

import orjson

from paceline.checkpoints.run_files import json_line
from paceline.metrics.definitions import Record
from paceline.rewards.scoring.grading import Tally
from paceline.rewards.scoring.scores import Scores
from paceline.training.rollouts.records import rollout_record
from paceline.training.rollouts.sampler import RolloutBatch
from paceline.types import Completion, Episode, Rollout, RolloutGroup, Task, Turn, WeightChange

_TYPES = {"float32": "f", "float64": "d"}
"""Number types of logprobs: name in a line to the type code of `array`."""


def restorable_lines(groups: Sequence[RolloutGroup]) -> Iterator[bytes]:
    """One line per rollout with its newline, group after group, samples numbered from 0; made when it is asked for.

    Raises:
        ValueError: a reward or an advantage is not finite; the message names it.
    """
    for group in groups:
        for sample, rollout in enumerate(group.rollouts):
            numbers = (*rollout.rewards.items(), ("reward", rollout.reward), ("advantage", rollout.advantage))
            for name, value in numbers:  # orjson would write null
                if value is not None and not math.isfinite(value):
                    raise ValueError(f"{name} must be a finite number to be recorded, got {value}")
            record = rollout_record(group, sample)
            record["group_dropped"], record["rollout_dropped"] = group.dropped, rollout.dropped
            record["token_ids"] = rollout.completion.token_ids
            record["logprobs"] = packed_floats(rollout.completion.logprobs)
            if sample == 0:
                record["prompt_ids"] = group.task.prompt_ids
            try:
                yield orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
            except orjson.JSONEncodeError:  # half of a surrogate pair, for which it has no form
                yield json_line(record)


def packed_floats(values: Sequence[float]) -> dict[str, str]:
    """Little-endian in base64 under the name of their type: float32 where no value loses a bit by it.

    None does of those of an engine that computes in it.
    """
    for name, code in _TYPES.items():
        packed = array(code, values)
        if name == "float64" or packed.tolist() == list(values):
            break
    if sys.byteorder == "big":
        packed.byteswap()
    return {name: base64.b64encode(packed).decode()}


def restored_groups(records: Sequence[Record]) -> tuple[RolloutGroup, ...]:
    """The groups that `restorable_lines` was given; of their tasks only what a learner or a reader needs."""
    starts = [at for at, record in enumerate(records) if record["sample"] == 0] + [len(records)]
    return tuple(
        RolloutGroup(
            task=Task(
                task_id=records[first]["task_id"],
                prompt=records[first]["prompt"],
                prompt_ids=tuple(records[first]["prompt_ids"]),
                answer=records[first]["answer"],
            ),
            rollouts=tuple(map(_rollout, records[first:end])),
            dropped=records[first]["group_dropped"],
        )
        for first, end in pairwise(starts)
    )


def _rollout(record: Record) -> Rollout:
    ((name, text),) = record["logprobs"].items()
    logprobs = array(_TYPES[name])
    logprobs.frombytes(base64.b64decode(text))
    if sys.byteorder == "big":
        logprobs.byteswap()
    completion = Completion(
        token_ids=tuple(record["token_ids"]),
        logprobs=tuple(logprobs),
        finish_reason=record["finish_reason"],
        text=record["completion"],
        policy_version=record["policy_version"],
        weight_changes=tuple(WeightChange(**change) for change in record["weight_changes"]),
        episode=_episode(record["episode"]) if "episode" in record else None,
    )
    return Rollout(
        completion=completion,
        rewards=record["rewards"],
        reward=record["reward"],
        advantage=record["advantage"],
        turn_advantages=tuple(record["turn_advantages"]) if "turn_advantages" in record else None,
        dropped=record["rollout_dropped"],
        notes=record["notes"],
    )


def _episode(record: Record) -> Episode:
    turns = tuple(
        Turn(
            **{
                **turn,
                "prompt_ids": None if turn["prompt_ids"] is None else tuple(turn["prompt_ids"]),
                "answer": tuple(turn["answer"]),
            }
        )
        for turn in record["turns"]
    )
    return Episode(**{**record, "turns": turns, "notes": tuple(record["notes"]), "printed": tuple(record["printed"])})


def batch_about(batch: RolloutBatch) -> dict[str, object]:
    """What is not in the records of a step's groups."""
    scores = batch.scores
    completions = [rollout.completion for group in batch.groups for rollout in group.rollouts]
    versions = {version for one in completions for version, tokens in one.tokens_by_version if tokens}
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
        "policy_versions": sorted(versions),
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
            tallies={
                name: Tally(**{field: one[field] for field in Tally.__slots__}) for name, one in of_functions.items()
            },
            formed=tuple(about["formed"]),
            environments=frozenset(episode.environment for one in rollouts if (episode := one.completion.episode)),
        ),
        refills=about["refills"],
        missing=about["missing"],
        generate_seconds=about["generate_seconds"],
        reward_seconds=about["reward_seconds"],
    )
