"""Flags of the scripts with defaults, and argv parsed as the scripts parse it.

Both use Python's argparse. `-t 4`, `-t4`, `-t=4` and `--num-train 4` are one flag. An ambiguous abbreviation is
refused, and of a repeated flag the last counts.
"""

import argparse
import dataclasses
import functools
import math
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NoReturn

from paceline.compat.commands.translation import Note
from paceline.config.reading import suggest
from paceline.errors import ConfigError

PYTHON = re.compile(r"python[\d.]*")
PLAIN = "rl_example.py"
ZERO_BUBBLE = "rl_example_zero_bubble.py"
SCRIPTS = (PLAIN, ZERO_BUBBLE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ColossalChatArguments:
    """Arguments of the scripts under their own names and defaults; `batches` explains what the sizes count."""

    model: str = "Qwen/Qwen2.5-7B"
    checkpoint_path: str | None = None
    dataset: str = "data.jsonl"
    eval_dataset: str | None = None
    project: str = "GRPO"
    num_episodes: int = 1
    num_trainers: int = 2
    num_inferencer: int = 2
    num_generations: int = 8
    inference_batch_size: int = 64
    inference_microbatch_size: int = 8
    train_batch_size: int = 32
    train_minibatch_size: int = 8
    train_microbatch_size: int = 2
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    zero_stage: int = 0
    ray_dir: str | None = None
    master_address: str | None = None
    master_port: int = 29506
    backend: str = "transformers"
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    system_prompt: str | None = None
    max_new_tokens: int = 3584
    max_prompt_tokens: int = 512
    producer_tensor_parallel_size: int = 1
    algo: str = "GRPO"
    learning_rate: float = 1e-6
    kl_coeff: float = 0.01
    reward_type: str = "think_answer_tags"
    code_verifier_api_url: str | None = None
    eval_interval: int = -1
    n_behind: int = 0
    save_interval: int = 100
    save_dir: str = "./model"
    eval_save_dir: str = "./eval"
    rollout_save_dir: str = "./rollouts"
    enable_profiling: bool = False
    data_actor_buffer_size_limit: int = -1
    tokenizer_path: str | None = None


FIELDS = tuple(field.name for field in dataclasses.fields(ColossalChatArguments))
SHORT: Mapping[str, str] = {
    "model": "m",
    "checkpoint_path": "cp",
    "dataset": "d",
    "eval_dataset": "ed",
    "project": "p",
    "num_episodes": "e",
    "num_trainers": "t",
    "num_inferencer": "i",
    "num_generations": "g",
    "inference_batch_size": "ibs",
    "inference_microbatch_size": "imbs",
    "train_batch_size": "tbs",
    "train_minibatch_size": "tMbs",
    "train_microbatch_size": "tmbs",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "zero_stage": "zero",
    "backend": "b",
    "temperature": "temp",
    "top_k": "topk",
    "top_p": "topp",
    "system_prompt": "s",
    "max_new_tokens": "mnt",
    "max_prompt_tokens": "mpt",
    "producer_tensor_parallel_size": "ptp",
    "algo": "a",
    "learning_rate": "lr",
    "kl_coeff": "kl",
    "reward_type": "rt",
    "code_verifier_api_url": "cv",
    "eval_interval": "ei",
    "n_behind": "nb",
    "save_interval": "si",
    "save_dir": "sd",
    "eval_save_dir": "esd",
    "rollout_save_dir": "rsd",
    "data_actor_buffer_size_limit": "cbsl",
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
DEFAULTS: Mapping[str, Mapping[str, object]] = {PLAIN: {}, ZERO_BUBBLE: {"eval_interval": 100}}
"""A script's own defaults."""
OF_AGENTS = ("-ct", "--chat-template", "-pdp", "--producer-data-parallel-size", "--agentic-type")
AGENT_BACKENDS = ("async-vllm", "async-agentic-vllm")
NO_AGENTS = "is for agents with tools, and conversations of several turns are not offered here"


@dataclass(frozen=True, kw_only=True, slots=True)
class ColossalChatCommand:
    """A parsed command."""

    arguments: ColossalChatArguments
    given: frozenset[str]
    """Fields given in the command."""
    script: str
    repeated: tuple[Note, ...] = ()
    """Notes on flags given more than once."""


def script_of(words: Sequence[str]) -> str | None:
    """Name of the Python script that a command runs; None if it runs something else."""
    if words and PYTHON.fullmatch(PurePosixPath(words[0]).name):
        words = words[next((at for at, word in enumerate(words) if at and not word.startswith("-")), len(words)) :]
    return PurePosixPath(words[0]).name if words else None


def flag(name: str) -> str:
    """Short spelling of an argument, else the long one.

    >>> flag("train_batch_size"), flag("master_port")
    ('-tbs', '--master-port')
    """
    return f"-{SHORT[name]}" if name in SHORT else long_flag(name)


def long_flag(name: str) -> str:
    """Long spelling, with hyphens."""
    return f"--{name.replace('_', '-')}"


def read(words: Sequence[str]) -> ColossalChatCommand:
    """Parse a script's command line.

    Raises:
        ConfigError: a flag or a value that the script does not take.
    """
    script = script_of(words)
    assert script in SCRIPTS
    start = next(at for at, word in enumerate(words) if PurePosixPath(word).name == script)
    texts = _parse(script, _spelt_alike(words[start + 1 :]))
    values = {name: _value(name, given[-1]) for name, given in texts.items()}
    repeated = tuple(
        Note("settled", flag(name), f"given as {', '.join(given)}; the last counts")
        for name, given in texts.items()
        if len(set(given)) > 1
    )
    arguments = ColossalChatArguments(**{**DEFAULTS[script], **values})  # type: ignore[arg-type]
    return ColossalChatCommand(arguments=arguments, given=frozenset(texts), script=script, repeated=repeated)


class _Parser(argparse.ArgumentParser):
    """An argparse parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog} refuses this command line: {message}")


def _parse(script: str, words: Sequence[str]) -> dict[str, list[str]]:
    """All values of each flag, in order."""
    for word in words:
        if word.partition("=")[0] in OF_AGENTS:
            raise ConfigError(f"{word.partition('=')[0]} {NO_AGENTS}; leave it out")
    parser = _Parser(prog=script, add_help=False, argument_default=argparse.SUPPRESS)
    names = [name for name in FIELDS if name not in LACKING[script]]
    for name in names:
        spellings = ([f"-{SHORT[name]}"] if name in SHORT else []) + [long_flag(name)]
        if _kind(name) is bool:
            parser.add_argument(*spellings, dest=name, action="append_const", const="true")
        else:
            parser.add_argument(*spellings, dest=name, action="append")
    namespace, unknown = parser.parse_known_args(words)
    if unknown:
        raise ConfigError(_unknown(script, unknown[0], names))
    return vars(namespace)


def _spelt_alike(words: Sequence[str]) -> list[str]:
    """Spell long flags with hyphens."""
    parts = (word.partition("=") for word in words)
    return [
        name.replace("_", "-") + rest + value if name[:2] == "--" else name + rest + value
        for name, rest, value in parts
    ]


def _unknown(script: str, word: str, names: Sequence[str]) -> str:
    if not word.startswith("-"):
        return f"{script}: {word!r} stands alone; put quotes around a value with spaces"
    known = dict.fromkeys(spelling for name in names for spelling in (flag(name), long_flag(name)))
    near = suggest(word.partition("=")[0], known, otherwise="leave it out")
    return f"{script} has no flag {word}; {near}"


@functools.cache
def _kind(name: str) -> type:
    hint = typing.get_type_hints(ColossalChatArguments)[name]
    arms: tuple[type, ...] = typing.get_args(hint) or (hint,)
    return next(arm for arm in arms if arm is not type(None))


def _value(name: str, text: str) -> object:
    kind = _kind(name)
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
