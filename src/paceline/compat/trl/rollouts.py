"""A trainer's `rollout_func` in place of the engine: what it returns, as completions.

It is called with one prompt per completion, those of a group next to each other, and returns a dict:

    prompt_ids, completion_ids   a list of tokens for each
    logprobs                     of the tokens that the model sampled; those of others are left out where they are given
    env_mask                     optional: 1 for a token that the model sampled, 0 for one that it read
    any other key                for reward functions: a list has one entry per completion, anything else is for all
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from paceline.compat.trl.environments import ROW
from paceline.engines import Engine, TrainedEngine
from paceline.episodes.conversations import Completed, Drawn
from paceline.errors import ConfigError
from paceline.types import FinishReason, Span, Task, Trajectory, Turn

REQUIRED = ("completion_ids", "logprobs", "prompt_ids")
NAME = "rollout_func"
WHOLE = "paceline_whole"
"""Column of a task with the text and the tokens of its completion, all that the function gave."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutFunction:
    """A `Completer` around a function of TRL's kind."""

    function: Callable[[list[Any]], Any]
    tokenizer: PreTrainedTokenizerBase
    ends: frozenset[int]
    """Tokens that end a completion."""
    positions: int | None
    """Tokens that the model can see, if known."""

    def __call__(self, engine: Engine, drawn: Drawn, *, num_generations: int, purpose: str) -> list[Completed]:
        """Complete each task `num_generations` times.

        Raises:
            ConfigError: what the function returns is not as described above.
        """
        entries = [task for task, _ in drawn for _ in range(num_generations)]
        output = self.function([copy.deepcopy(_prompt(task)) for task in entries])
        lists = checked_lists(output, len(entries))
        extras = extra_fields(output)
        version = cast(TrainedEngine, engine).policy_version
        results = list[Completed]()
        for first in range(0, len(entries), num_generations):
            places = range(first, first + num_generations)
            parts = [self._part(at, lists) for at in places]
            task, prompt_ids = entries[first], parts[0].prompt_ids
            begun = replace(
                task,
                prompt=str(self.tokenizer.decode(list(prompt_ids))),
                prompt_ids=prompt_ids,
                row_prompt_ids=None if prompt_ids == task.prompt_ids else task.prompt_ids,
            )
            trajectories = tuple(self._trajectory(part, prompt_ids, version) for part in parts)
            asked = tuple(
                self._asked(begun, part, _of_completion(extras, at)) for at, part in zip(places, parts, strict=True)
            )
            results.append(Completed(task=begun, trajectories=trajectories, shown_tasks=asked))
        return results

    def _part(self, at: int, lists: Mapping[str, list[Any]]) -> "_Part":
        """Read one completion, and check it."""
        prompt, ids = (_whole(lists[name][at], name, at) for name in ("prompt_ids", "completion_ids"))
        mask = (
            [1] * len(ids) if "env_mask" not in lists else [int(bool(flag)) for flag in _plain(lists["env_mask"][at])]
        )
        if len(mask) != len(ids):
            raise ConfigError(f"env_mask of completion {at} must have {len(ids)} numbers, got {len(mask)}")
        if 1 not in mask:
            raise ConfigError(
                f"rollout_func must give each completion a token that the model sampled, got none among the {len(ids)} "
                f"of completion {at}"
            )
        values = lists["logprobs"][at]
        logprobs = [] if values is None else _plain(values)
        if len(logprobs) == len(ids):
            logprobs = [value for value, is_sampled in zip(logprobs, mask, strict=True) if is_sampled]
        if len(logprobs) != sum(mask) or not all(
            isinstance(value, int | float) and math.isfinite(value) for value in logprobs
        ):
            raise ConfigError(
                f"rollout_func must give one finite number per token in `logprobs`, got {str(values)[:60]} for "
                f"completion {at} of {len(ids)} tokens; ask what samples them for the logprob of each sampled token"
            )
        if self.positions is not None and len(prompt) + len(ids) > self.positions:
            raise ConfigError(
                f"rollout_func must keep a prompt with its completion within the model's {self.positions} positions, "
                f"got {len(prompt)} and {len(ids)} tokens for completion {at}"
            )
        first = mask.index(1)
        return _Part(
            # what the model read before its first token is the prompt's end, and what it did not read has no place
            prompt_ids=(*prompt, *ids[:first]),
            ids=ids,
            runs=tuple((bool(key), len(list(run))) for key, run in groupby(mask[first:])),
            first=first,
            logprobs=tuple(map(float, logprobs)),
        )

    def _trajectory(self, part: "_Part", prompt_ids: tuple[int, ...], version: int) -> Trajectory:
        runs = part.runs if part.runs[-1][0] else part.runs[:-1]
        spans, turns, start = [Span(by="prompt", tokens=part.prompt_ids)], list[Turn](), part.first
        logprobs = iter(part.logprobs)
        for is_sampled, length in runs:
            tokens = part.ids[start : start + length]
            text = self._text(tokens)
            if is_sampled:
                spans.append(Span(by="policy", tokens=tokens, logprobs=tuple(islice(logprobs, length))))
                turns.append(Turn(finish_reason="stop", message={"role": "assistant", "content": text}))
            else:
                spans.append(Span(by="environment", tokens=tokens))
                turns[-1] = replace(turns[-1], observation=({"role": "tool", "content": text},))
            start += length
        reason: FinishReason = "stop" if part.ids[-1] in self.ends else "length"
        turns[-1] = replace(turns[-1], finish_reason=reason)
        is_plain = len(turns) == 1 and part.prompt_ids == prompt_ids
        return Trajectory(
            spans=tuple(spans),
            finish_reason=reason,
            text="\n".join(str(turn.message["content"]) for turn in turns),
            policy_version=version,
            environment=None if is_plain else NAME,
            turns=() if is_plain else tuple(turns),
            end=None if is_plain else "done" if reason == "stop" else "length",
        )

    def _asked(self, task: Task, part: "_Part", extras: Mapping[str, Any]) -> Task:
        row = {ROW: {**cast(Any, task.columns[ROW]), **extras}} if ROW in task.columns else {}
        whole = (self._text(part.ids), list(part.ids))
        return replace(task, columns={**task.columns, **extras, **row, WHOLE: whole})

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def _prompt(task: Task) -> Any:
    """Prompt as the program's row has it; of rows at an address, the messages or the text that the model reads."""
    if ROW in task.columns:
        return cast(Any, task.columns[ROW])["prompt"]
    return task.prompt if task.messages is None else [dict(message) for message in task.messages]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """One completion as it was returned."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    runs: tuple[tuple[bool, int], ...]
    """From the first sampled token on, runs of sampled (True) and of read tokens, with their lengths."""
    first: int
    """Index of the first sampled token."""
    logprobs: tuple[float, ...]


def extra_fields(output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a rollout function beside the fields with a meaning here."""
    return {name: value for name, value in output.items() if name not in (*REQUIRED, "env_mask")}


def checked_lists(output: Any, size: int) -> Mapping[str, list[Any]]:
    """Check the lists of one entry per completion."""
    if not isinstance(output, Mapping):
        raise ConfigError(f"rollout_func must return a dict, got a {type(output).__name__}")
    if missing := [name for name in REQUIRED if name not in output]:
        raise ConfigError(
            f"rollout_func must return keys {missing} in its output dict, got {', '.join(map(str, output))}"
        )
    names = [*REQUIRED, *(["env_mask"] if output.get("env_mask") is not None else [])]
    lists = {name: _plain(output[name]) for name in names if output[name] is not None}
    for name in names:
        if name not in lists or len(lists[name]) != size:
            got = "None" if name not in lists else f"{len(lists[name])}"
            raise ConfigError(
                f"rollout_func must return one entry per prompt that it is given in `{name}`, {size} here, got {got}; "
                "each prompt comes num_generations times"
            )
    return lists


def _plain(values: Any) -> list[Any]:
    """Return an array, a tensor or a sequence as a list."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _whole(values: Any, name: str, at: int) -> tuple[int, ...]:
    ids = _plain(values)
    if not ids or not all(isinstance(token, int) and token >= 0 for token in ids):
        raise ConfigError(f"rollout_func must give tokens in `{name}`, got {str(ids)[:60]} for completion {at}")
    return tuple(ids)


def _of_completion(extras: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return what reward functions get of one completion: an entry of each list, as TRL hands them out."""
    return {
        name: values[at] if isinstance(values, list) else values
        for name, values in extras.items()
        if not isinstance(values, list) or at < len(values)
    }
