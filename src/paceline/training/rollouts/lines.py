"""A step's rollouts as lines of JSON from which `restoring` makes them again, bit for bit, without an engine.

A line is what `rollout_records` has of a rollout and, beside it, what only a learner needs:

    token_ids     the completion's tokens
    logprobs      as the engine reported them: little-endian floats in base64, of the narrowest type that holds them
    group_dropped, rollout_dropped   why its group, or it alone, is not trained on
    prompt_ids    in the first rollout of a group

orjson encodes them: a run waits for its journal, and Python's own encoder takes more than twice as long.
"""

import base64
import math
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence

import orjson

from paceline.checkpoints.run_files import json_line
from paceline.training.rollouts.records import rollout_record
from paceline.types import Rollout, RolloutGroup

_TYPES = {"float32": "f", "float64": "d"}
"""Number types of logprobs: name in a line to the type code of `array`."""


def restorable_lines(groups: Sequence[RolloutGroup]) -> Iterator[bytes]:
    """One line per rollout with its newline, group after group, samples numbered from 0; made when it is asked for.

    Raises:
        ValueError: a reward or an advantage is not finite; the message names it.
    """
    for group in groups:
        for sample, rollout in enumerate(group.rollouts):
            _refuse_not_finite(rollout)
            record = rollout_record(group, sample)
            record["group_dropped"], record["rollout_dropped"] = group.dropped, rollout.dropped
            record["token_ids"] = rollout.completion.token_ids
            record["logprobs"] = packed_floats(rollout.completion.logprobs)
            if sample == 0:
                record["prompt_ids"] = group.task.prompt_ids
            yield _line(record)


def _line(record: Mapping[str, object]) -> bytes:
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # half of a surrogate pair, for which it has no form
        return json_line(record)


def _refuse_not_finite(rollout: Rollout) -> None:
    """orjson would write null."""
    for name, value in (*rollout.rewards.items(), ("reward", rollout.reward), ("advantage", rollout.advantage)):
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number to be recorded, got {value}")


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


def unpacked_floats(written: Mapping[str, str]) -> tuple[float, ...]:
    """What `packed_floats` was given."""
    ((name, text),) = written.items()
    values = array(_TYPES[name])
    values.frombytes(base64.b64decode(text))
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values)
