"""A step's rollouts as lines of JSON from which `restoring` makes them again, bit for bit, without an engine.

A line is what `rollout_records` has of a rollout and, beside it, what only a learner needs:

    token_ids     the completion's tokens
    logprobs      as the engine reported them: little-endian floats in base64, of the narrowest type that holds them
    group_dropped, rollout_dropped   why its group, or it alone, is not trained on
    prompt_ids    in the first rollout of a group

They are put together here and not by an encoder of whole records: that takes half as long again, and a run waits for
its journal. What rollouts share is encoded once.
"""

import base64
import json
import math
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache

from paceline.types import Completion, Rollout, RolloutGroup

_TYPES = {"float32": "f", "float64": "d"}
"""Of logprobs, by their names in a line: the codes that `array` has for them."""

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_word = lru_cache(maxsize=256)(_json)
"""For the few that many rollouts have: names of functions, reasons."""


def restorable_lines(groups: Sequence[RolloutGroup]) -> Iterator[str]:
    """One line per rollout with its newline, group after group, samples numbered from 0; made when it is asked for.

    Raises:
        ValueError: a reward or an advantage is not finite; the message names it.
    """
    for group in groups:
        task = group.task
        named, dropped = f'{{"task_id":{_json(task.task_id)},"sample":', _json(group.dropped)
        asked = f'"prompt":{_json(task.prompt)},"answer":{_json(task.answer)},"prompt_tokens":{len(task.prompt_ids)}'
        prompt_ids = f',"prompt_ids":{[*task.prompt_ids]}'
        for sample, rollout in enumerate(group.rollouts):
            completion, alone = rollout.completion, _word(rollout.dropped)
            why = alone if rollout.dropped else dropped
            width, logprobs = _packed(completion.logprobs)
            yield (
                f"{named}{sample},{asked},{_about_completion(completion)},{_about_reward(rollout)},"
                f'"dropped":{why},"group_dropped":{dropped},"rollout_dropped":{alone},'
                f'"token_ids":{[*completion.token_ids]},"logprobs":{{"{width}":"{logprobs}"}}{prompt_ids}}}\n'
            )
            prompt_ids = ""


def _about_completion(one: Completion) -> str:
    changes = _json([asdict(change) for change in one.weight_changes]) if one.weight_changes else "[]"
    return (
        f'"completion":{_json(one.text)},"completion_tokens":{len(one.token_ids)},'
        f'"finish_reason":{_word(one.finish_reason)},"policy_version":{one.policy_version},"weight_changes":{changes}'
    )


def _about_reward(rollout: Rollout) -> str:
    rewards = ",".join([f"{_word(name)}:{_number(name, value)}" for name, value in rollout.rewards.items()])
    notes = _json(dict(rollout.notes)) if rollout.notes else "{}"
    reward, advantage = _number("reward", rollout.reward), _number("advantage", rollout.advantage)
    return f'"rewards":{{{rewards}}},"reward":{reward},"notes":{notes},"advantage":{advantage}'


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "null"
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number to be recorded, got {value}")
    return repr(value) if type(value) is float else _json(value)


def packed_floats(values: Sequence[float]) -> dict[str, str]:
    """Little-endian in base64 under the name of their type: float32 where no value loses a bit by it.

    None does of those of an engine that computes in it.
    """
    name, text = _packed(values)
    return {name: text}


def _packed(values: Sequence[float]) -> tuple[str, str]:
    for name, code in _TYPES.items():
        packed = array(code, values)
        if name == "float64" or packed.tolist() == list(values):
            break
    if sys.byteorder == "big":
        packed.byteswap()
    return name, base64.b64encode(packed).decode()


def unpacked_floats(written: Mapping[str, str]) -> tuple[float, ...]:
    """What `packed_floats` was given."""
    ((name, text),) = written.items()
    values = array(_TYPES[name])
    values.frombytes(base64.b64decode(text))
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values)
