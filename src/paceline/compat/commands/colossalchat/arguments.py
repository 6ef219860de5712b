"""Flags of ColossalChat's two scripts with their defaults, and argv parsed as the scripts parse it, by argparse.

`-t 4`, `-t4`, `-t=4` and `--num-train 4` are one flag. An ambiguous abbreviation is refused, and of a repeated flag
the last counts.
"""

import argparse
import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import NoneType
from typing import Any, NoReturn

from paceline.compat.commands.launching import PYTHON
from paceline.compat.commands.translation import Translation
from paceline.config.reading import suggest
from paceline.errors import ConfigError

PLAIN = "rl_example.py"
ZERO_BUBBLE = "rl_example_zero_bubble.py"
SCRIPTS = (PLAIN, ZERO_BUBBLE)


def _flag(short: str, default: object) -> Any:
    return dataclasses.field(default=default, metadata={"short": short})


@dataclass(frozen=True, kw_only=True, slots=True)
class ColossalChatArguments:
    """Arguments of the scripts under their own names and defaults; `batches.py` explains what the sizes count."""

    model: str = _flag("m", "Qwen/Qwen2.5-7B")
    checkpoint_path: str | None = _flag("cp", None)
    dataset: str = _flag("d", "data.jsonl")
    eval_dataset: str | None = _flag("ed", None)
    project: str = _flag("p", "GRPO")
    num_episodes: int = _flag("e", 1)
    num_trainers: int = _flag("t", 2)
    num_inferencer: int = _flag("i", 2)
    num_generations: int = _flag("g", 8)
    inference_batch_size: int = _flag("ibs", 64)
    inference_microbatch_size: int = _flag("imbs", 8)
    train_batch_size: int = _flag("tbs", 32)
    train_minibatch_size: int = _flag("tMbs", 8)
    train_microbatch_size: int = _flag("tmbs", 2)
    tensor_parallel_size: int = _flag("tp", 1)
    pipeline_parallel_size: int = _flag("pp", 1)
    zero_stage: int = _flag("zero", 0)
    ray_dir: str | None = None
    master_address: str | None = None
    master_port: int = 29506
    backend: str = _flag("b", "transformers")
    temperature: float = _flag("temp", 1.0)
    top_k: int | None = _flag("topk", None)
    top_p: float = _flag("topp", 1.0)
    system_prompt: str | None = _flag("s", None)
    max_new_tokens: int = _flag("mnt", 3584)
    max_prompt_tokens: int = _flag("mpt", 512)
    producer_tensor_parallel_size: int = _flag("ptp", 1)
    algo: str = _flag("a", "GRPO")
    learning_rate: float = _flag("lr", 1e-6)
    kl_coeff: float = _flag("kl", 0.01)
    reward_type: str = _flag("rt", "think_answer_tags")
    code_verifier_api_url: str | None = _flag("cv", None)
    eval_interval: int = _flag("ei", -1)
    n_behind: int = _flag("nb", 0)
    save_interval: int = _flag("si", 100)
    save_dir: str = _flag("sd", "./model")
    eval_save_dir: str = _flag("esd", "./eval")
    rollout_save_dir: str = _flag("rsd", "./rollouts")
    enable_profiling: bool = False
    data_actor_buffer_size_limit: int = _flag("cbsl", -1)
    tokenizer_path: str | None = None
    script: str = PLAIN
    """Script that the command runs; not a flag."""
    explicit: frozenset[str] = frozenset()
    """Names of the arguments that the command gives; not a flag."""

    @property
    def groups(self) -> int:
        """Number of model replicas over the trainers; tensor- and pipeline-parallel trainers share a replica."""
        return self.num_trainers // (self.tensor_parallel_size * self.pipeline_parallel_size)

    @property
    def prompts_per_round(self) -> int:
        """Prompts that all producers sample between two weight transfers."""
        return self.inference_batch_size * self.num_inferencer

    @property
    def prompts_per_update(self) -> int:
        """Prompts of one update, over all replicas."""
        return self.train_batch_size * self.groups

    @property
    def updates_per_round(self) -> int:
        """Optimiser steps between two weight transfers."""
        return self.prompts_per_round // self.prompts_per_update


FIELDS = tuple(
    field.name for field in dataclasses.fields(ColossalChatArguments) if field.name not in ("script", "explicit")
)
SHORT: Mapping[str, str] = {
    field.name: field.metadata["short"] for field in dataclasses.fields(ColossalChatArguments) if field.metadata
}
KINDS: Mapping[str, type] = {
    name: next(arm for arm in typing.get_args(hint) or (hint,) if arm is not NoneType)
    for name, hint in typing.get_type_hints(ColossalChatArguments).items()
}
CHOICES: Mapping[str, tuple[str, ...]] = {
    "backend": ("transformers", "vllm"),
    "algo": ("DAPO", "GRPO", "REINFORCE_PPB", "RLOO"),
    "reward_type": ("think_answer_tags", "boxed", "code"),
}
LACKING: Mapping[str, tuple[str, ...]] = {
    PLAIN: ("data_actor_buffer_size_limit", "tokenizer_path"),
    ZERO_BUBBLE: ("checkpoint_path", "code_verifier_api_url", "n_behind"),
}
"""Flags that a script does not have."""
AGENT_FLAGS = ("-ct", "--chat-template", "-pdp", "--producer-data-parallel-size", "--agentic-type")
AGENT_BACKENDS = ("async-vllm", "async-agentic-vllm")
NO_AGENTS = (
    "belongs to the branch for agents, whose tools and budgets are set in its Python files; give the tools to the "
    "translated command as --environment file.py:NAME"
)


def script_of(words: Sequence[str]) -> str | None:
    """Name of the Python script that a command runs; None if it runs something else."""
    if words and PYTHON.fullmatch(PurePosixPath(words[0]).name):
        words = words[next((i for i, word in enumerate(words) if i and not word.startswith("-")), len(words)) :]
    return PurePosixPath(words[0]).name if words else None


def flag(name: str) -> str:
    """Short spelling of an argument, else the long one.

    >>> flag("train_batch_size"), flag("master_port")
    ('-tbs', '--master-port')
    """
    return f"-{SHORT[name]}" if name in SHORT else long_flag(name)


def long_flag(name: str) -> str:
    """Long spelling of an argument, with hyphens."""
    return f"--{name.replace('_', '-')}"


def read(words: Sequence[str], translation: Translation) -> ColossalChatArguments:
    """Parse a script's command line, noting repeated flags; ConfigError for a flag or value that it does not take."""
    script = script_of(words)
    assert script in SCRIPTS
    start = next(i for i, word in enumerate(words) if PurePosixPath(word).name == script)
    texts = _parse(script, words[start + 1 :])
    values: dict[str, Any] = {"eval_interval": 100} if script == ZERO_BUBBLE else {}
    values |= {name: _value(name, occurrences[-1]) for name, occurrences in texts.items()}
    for name, occurrences in texts.items():
        if len(set(occurrences)) > 1:
            translation.note("settled", flag(name), f"given as {', '.join(occurrences)}; the last counts")
    return ColossalChatArguments(script=script, explicit=frozenset(texts), **values)


class _Parser(argparse.ArgumentParser):
    """An argparse parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog} refuses this command line: {message}")


def _parse(script: str, words: Sequence[str]) -> dict[str, list[str]]:
    hyphenated = []
    for word in words:
        name, equals, value = word.partition("=")
        # the parser knows long flags with hyphens alone
        name = name.replace("_", "-") if name.startswith("--") else name
        if name in AGENT_FLAGS:
            raise ConfigError(f"{name} {NO_AGENTS}; leave it out")
        hyphenated.append(name + equals + value)
    parser = _Parser(prog=script, add_help=False, argument_default=argparse.SUPPRESS)
    known = list[str]()
    for name in FIELDS:
        if name not in LACKING[script]:
            spellings = dict.fromkeys((flag(name), long_flag(name)))
            if KINDS[name] is bool:
                parser.add_argument(*spellings, dest=name, action="append_const", const="true")
            else:
                parser.add_argument(*spellings, dest=name, action="append")
            known += spellings
    namespace, unknown = parser.parse_known_args(hyphenated)
    if unknown and not unknown[0].startswith("-"):
        raise ConfigError(f"{script}: {unknown[0]!r} belongs to no flag; put quotes around a value with spaces")
    if unknown:
        near = suggest(unknown[0].partition("=")[0], known, otherwise="leave it out")
        raise ConfigError(f"{script} has no flag {unknown[0]}; {near}")
    return vars(namespace)


def _value(name: str, text: str) -> object:
    kind = KINDS[name]
    if name in CHOICES and text not in CHOICES[name]:
        if name == "backend" and text in AGENT_BACKENDS:
            raise ConfigError(f"-b {text} {NO_AGENTS}; give -b vllm")
        raise ConfigError(f"{flag(name)} must be one of {', '.join(CHOICES[name])}, got {text!r}")
    if kind is bool:
        return True
    try:
        value = kind(text)
    except ValueError:
        rule = "a whole number, such as 8" if kind is int else "a number, such as 1e-6"
        raise ConfigError(f"{flag(name)} must be {rule}, got {text!r}") from None
    if kind is float and not math.isfinite(value):
        raise ConfigError(f"{flag(name)} must be a finite number, got {text!r}")
    return value
