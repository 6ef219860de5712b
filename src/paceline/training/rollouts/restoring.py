"""A step's rollouts as lines of JSON, and groups and batches from these, bit for bit, without an engine.

A line is what `rollout_records` has of a rollout and, beside it, what only a learner needs:

    token_ids     tokens of the policy and of its environment, without prompts
    logprobs      as the engine reported them: little-endian floats in base64, of the narrowest type that holds them
    group_dropped, rollout_dropped   why its group, or it alone, is not trained on
    prompt_ids    in the first rollout of a group, beside the hashes and places of the prompt's `images`
    routes        experts that the engine's routers chose for the tokens behind the first prompt, where it noted them
    prompt_routes of the first prompt, in the first rollout of a group and where they differ from that one's
    episode       of a conversation, its turns with the observations behind them: no environment is asked again

orjson encodes them: a run waits for its journal, and Python's own encoder takes more than twice as long.
"""

import base64
import math
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise

import orjson

from paceline.checkpoints.digests import image_names, prompts_digest
from paceline.checkpoints.run_files import json_line
from paceline.metrics.definitions import Record
from paceline.rewards.scoring.grading import Tally
from paceline.rewards.scoring.scores import Scores
from paceline.training.rollouts.records import EPISODE_FIELDS, TURN_FIELDS, rollout_record
from paceline.training.rollouts.rounds import RolloutBatch, WeightTransfer
from paceline.types import Media, Rollout, RolloutGroup, Span, Task, Trajectory, Turn, WeightChange, routes_of

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
            record["token_ids"] = rollout.trajectory.completion_ids
            record["logprobs"] = packed_floats(rollout.trajectory.logprobs)
            prompt, *behind = rollout.trajectory.spans
            if routes := routes_of(behind):
                record["routes"] = base64.b64encode(routes).decode()
            if sample == 0:
                record["prompt_ids"] = group.task.prompt_ids
            if prompt.routes and (sample == 0 or prompt.routes != group.rollouts[0].trajectory.spans[0].routes):
                record["prompt_routes"] = base64.b64encode(prompt.routes).decode()
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
    starts = [index for index, record in enumerate(records) if record["sample"] == 0] + [len(records)]
    groups = list[RolloutGroup]()
    for first, end in pairwise(starts):
        task = Task(
            task_id=records[first]["task_id"],
            prompt=records[first]["prompt"],
            prompt_ids=tuple(records[first]["prompt_ids"]),
            answer=records[first]["answer"],
            media=tuple(Media(**image) for image in records[first].get("images", ())),
        )
        shared = records[first].get("prompt_routes", "")
        rollouts = tuple(_rollout(record, task, shared) for record in records[first:end])
        groups.append(RolloutGroup(task=task, rollouts=rollouts, dropped=records[first]["group_dropped"]))
    return tuple(groups)


def _rollout(record: Record, task: Task, prompt_routes: str) -> Rollout:
    trajectory = _trajectory(record, task)
    if "routes" in record:
        trajectory = _with_routes(trajectory, record["routes"], record.get("prompt_routes", prompt_routes))
    return Rollout(
        trajectory=trajectory,
        rewards=record["rewards"],
        reward=record["reward"],
        advantage=record["advantage"],
        turn_advantages=tuple(record["turn_advantages"]) if "turn_advantages" in record else None,
        dropped=record["rollout_dropped"],
        notes=record["notes"],
    )


def _with_routes(trajectory: Trajectory, packed: str, packed_prompt: str) -> Trajectory:
    """Return the trajectory with its spans' routes."""
    prompt, *behind = trajectory.spans
    routes = base64.b64decode(packed)
    width, start = len(routes) // sum(len(span.tokens) for span in behind), 0
    spans = [replace(prompt, routes=base64.b64decode(packed_prompt))]
    for span in behind:
        spans.append(replace(span, routes=routes[start : start + width * len(span.tokens)]))
        start += width * len(span.tokens)
    return replace(trajectory, spans=tuple(spans))


def _trajectory(record: Record, task: Task) -> Trajectory:
    """Return the trajectory of a record: turns say how its tokens are cut into spans."""
    ((name, text),) = record["logprobs"].items()
    packed = array(_TYPES[name])
    packed.frombytes(base64.b64decode(text))
    if sys.byteorder == "big":
        packed.byteswap()
    token_ids, logprobs = tuple(record["token_ids"]), tuple(packed)
    spans = [Span(by="prompt", tokens=task.prompt_ids, media=task.media)]
    episode: Record | None = record.get("episode")
    if episode is None:
        spans.append(Span(by="policy", tokens=token_ids, logprobs=logprobs))
    for number, turn in enumerate(() if episode is None else episode["turns"]):
        if turn["prompt_ids"] is not None:
            prompt = Span(by="prompt", tokens=tuple(turn["prompt_ids"]))
            spans = [prompt] if number == 0 else [*spans, prompt]
        count, observed = turn["sampled"], turn["sampled"] + turn["observed"]
        spans.append(Span(by="policy", tokens=token_ids[:count], logprobs=logprobs[:count]))
        if turn["observed"]:
            spans.append(Span(by="environment", tokens=token_ids[count:observed]))
        token_ids, logprobs = token_ids[observed:], logprobs[count:]
    about = {} if episode is None else {name: episode[name] for name in EPISODE_FIELDS}
    for name in ("notes", "printed"):
        about[name] = tuple(about.get(name, ()))
    return Trajectory(
        spans=tuple(spans),
        finish_reason=record["finish_reason"],
        text=record["completion"],
        policy_version=record["policy_version"],
        weight_changes=tuple(WeightChange(**change) for change in record["weight_changes"]),
        turns=() if episode is None else tuple(map(_turn, episode["turns"])),
        **about,
    )


def _turn(record: Record) -> Turn:
    fields = {name: record[name] for name in TURN_FIELDS}
    return Turn(**{**fields, "observation": tuple(record["observation"])})


def batch_about(batch: RolloutBatch) -> dict[str, object]:
    """Return the journal's entry of a step: what is not in the records of its groups."""
    scores = batch.scores
    trajectories = [rollout.trajectory for group in batch.groups for rollout in group.rollouts]
    versions = {version for trajectory in trajectories for version, tokens in trajectory.tokens_by_version if tokens}
    return {
        "position": batch.position,
        "groups": len(batch.groups),
        "prompts": prompts_digest(group.task for group in batch.groups),
        **({"images": images} if (images := image_names(group.task for group in batch.groups)) else {}),
        "seconds": batch.seconds,
        "weights": {"seconds": batch.transfer.seconds, "bytes": batch.transfer.nbytes},
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
    of_functions, weights = about["rewards"], about["weights"]
    return RolloutBatch(
        groups=tuple(groups),
        scores=Scores(
            values={name: tuple(rollout.rewards[name] for rollout in rollouts) for name in of_functions},
            failed={name: tuple(function["failed"]) for name, function in of_functions.items()},
            seconds={name: function["seconds"] for name, function in of_functions.items()},
            first_failures=about["first_failures"],
            notes={name: tuple(rollout.notes.get(name) for rollout in rollouts) for name in of_functions},
            tallies={
                name: Tally(**{field: function[field] for field in Tally.__slots__})
                for name, function in of_functions.items()
            },
            formed=tuple(about["formed"]),
            environments=frozenset(
                name for rollout in rollouts if (name := rollout.trajectory.environment) is not None
            ),
        ),
        refills=about["refills"],
        missing=about["missing"],
        generate_seconds=about["generate_seconds"],
        reward_seconds=about["reward_seconds"],
        position=about["position"],
        seconds=about["seconds"],
        transfer=WeightTransfer(seconds=weights["seconds"], nbytes=weights["bytes"]),
    )
