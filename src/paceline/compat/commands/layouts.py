"""Other tools' names for parallel layouts, as flags of `paceline train`.

--deepspeed zero3         --zero-stage 3            ms-swift; also zero0, zero1, zero2, and _offload behind 2 and 3
--fsdp2                   --zero-stage 3            PyTorch
--fsdp full_shard         --zero-stage 3            transformers; shard_grad_op is stage 2, no_shard 0
--tp 2, --tp-size 2       --tensor-parallel 2       also --tensor-parallel-size
--pp 2, --pp-size 2       --pipeline-parallel 2     also --pipeline-parallel-size
--cp 2, --cp-size 2       --context-parallel 2      also --context-parallel-size
--sequence-parallel-size  --context-parallel        ms-swift; verl: --ulysses-sequence-parallel-size
"""

import json
from collections.abc import Iterable, Iterator, Mapping

from paceline.compat.commands.flags import FlagWords, GivenFlags, number
from paceline.compat.commands.launching import Started
from paceline.compat.commands.translation import Note, ReadText, Translation
from paceline.config.reading import find_option, option_name, parse_value, suggest
from paceline.errors import ConfigError

DEEPSPEED: Mapping[str, FlagWords] = {
    **{f"zero{stage}": ("--zero-stage", str(stage)) for stage in range(4)},
    **{f"zero{stage}_offload": ("--zero-stage", str(stage), "--offload", "parameters") for stage in (2, 3)},
}
FSDP: Mapping[str, FlagWords] = {
    "full_shard": ("--zero-stage", "3"),
    "shard_grad_op": ("--zero-stage", "2"),
    "no_shard": ("--zero-stage", "0"),
}
VALUES = {"--deepspeed": DEEPSPEED, "--fsdp": FSDP}
"""Flags whose value is a name of a layout."""
NUMBERS = {
    **dict.fromkeys(("--tp", "--tp-size", "--tensor-parallel-size"), "--tensor-parallel"),
    **dict.fromkeys(("--pp", "--pp-size", "--pipeline-parallel-size"), "--pipeline-parallel"),
    **dict.fromkeys(
        (
            *("--cp", "--cp-size", "--context-parallel-size"),
            *("--sequence-parallel-size", "--ulysses-sequence-parallel-size"),
        ),
        "--context-parallel",
    ),
}
"""Flags whose value is a number, as in ours."""


def in_our_words(argv: Iterable[str]) -> list[str]:
    """Replace layout flags in argv by ours.

    >>> in_our_words(["--deepspeed", "zero2", "--seed", "1"])
    ['--zero-stage', '2', '--seed', '1']

    Raises:
        ConfigError: a layout that none of the tools has under this name.
    """
    words, found = iter(argv), list[str]()
    for word in words:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag == "--fsdp2" and not equals:
            found += FSDP["full_shard"]
        elif flag in NUMBERS:
            found += [f"{NUMBERS[flag]}{equals}{value}"]
        elif flag in VALUES:
            found += _layout(flag, value if equals else _next(flag, words))
        else:
            found.append(word)
    return found


def _next(flag: str, words: Iterator[str]) -> str:
    value = next(words, None)
    if value is None:
        raise ConfigError(f"{flag} needs a value, such as {next(iter(VALUES[flag]))}")
    return value


def _layout(flag: str, value: str) -> FlagWords:
    known = VALUES[flag]
    if value not in known:
        near = suggest(value, known, otherwise="a file's other settings are options of their own here")
        raise ConfigError(f"{flag} must be one of {', '.join(known)}, got {value!r}; {near}")
    return known[value]


def slices(flag: str, value: str, read: ReadText) -> dict[str, object]:
    """Options behind `--deepspeed` or `--fsdp`, from a name or from DeepSpeed's own file.

    Raises:
        ConfigError: an unknown name, or a file that does not say which stage it is of.
    """
    if value.endswith(".json"):
        return _from_file(flag, value, read)
    first = value.split()[0] if value.split() else value
    words = FSDP["full_shard"] if flag == "--fsdp" and first == "fsdp2" else _layout(flag, first)
    names = [option_name(word.removeprefix("--")) for word in words[::2]]
    return {name: parse_value(find_option(name), word) for name, word in zip(names, words[1::2], strict=True)}


def _from_file(flag: str, path: str, read: ReadText) -> dict[str, object]:
    try:
        found = json.loads(read(path))
    except ValueError:
        raise ConfigError(f"{flag} {path} is not JSON; mend it, or give one of {', '.join(VALUES[flag])}") from None
    settings = found.get("zero_optimization") if isinstance(found, dict) else None
    stage = settings.get("stage") if isinstance(settings, dict) else None
    if not isinstance(settings, dict) or stage not in (0, 1, 2, 3):
        raise ConfigError(f"{flag} {path} must name a stage of 0 to 3 in zero_optimization, got {stage!r}")
    moved = [settings[name] for name in ("offload_param", "offload_optimizer") if name in settings]
    away = any(isinstance(one, dict) and one.get("device") not in (None, "none") for one in moved)
    return {"zero_stage": stage, **({"offload": ("parameters",)} if away and stage > 1 else {})}


def placed(
    start: Started, *, vllm: bool, apart: bool, share: float | None, tensor: int, flag: str = "--use_vllm"
) -> Translation:
    """Options for engine, processes and launcher.

    Args:
        start: launch settings of the command.
        vllm: True if it samples with vLLM.
        apart: True if vLLM has devices of its own.
        share: vLLM's share of a device's memory; None for the default.
        tensor: vLLM's tensor-parallel size.
        flag: subject of the notes.
    """
    if not vllm:
        return _ranks(start)
    options: dict[str, object] = {"engine": "vllm", "vllm_tensor_parallel": tensor}
    if share is not None:
        options["vllm_memory"] = share
    if apart:
        text = (
            f"a producer samples on {tensor} device{'s' * (tensor > 1)} of its own and {start.ranks} "
            f"process{'es' * (start.ranks > 1)} train, as actors of Ray; --num-producers takes more of them"
        )
        options |= {"cluster": True, "num_producers": 1, "num_consumers": start.ranks}
        found = Translation(options=options, notes=(Note("changed", flag, text),))
        return found + _without_meeting_place(start)
    if start.ranks == 1:
        return Translation(options=options)
    text = (
        f"vLLM beside the trainer in each of {start.ranks} processes is not offered: the built-in engine samples in "
        f"all of them on the trained weights; --cluster --num-consumers {start.ranks} --engine vllm has vLLM on "
        "devices of its own"
    )
    return _ranks(start) + Translation(notes=(Note("missing", flag, text),))


def _ranks(start: Started) -> Translation:
    return Translation(launch=start.torchrun)


def _without_meeting_place(start: Started) -> Translation:
    """Note on launcher flags that mean nothing to actors."""
    flags = " ".join(word for word in start.torchrun[2:] if word.startswith("--"))
    if not flags:
        return Translation()
    text = "actors of Ray find each other; machines are joined by `ray start` and --cluster HOST:PORT"
    return Translation(notes=(Note("idle", flags, text),))


def model_length(given: GivenFlags, flag: str, options: Mapping[str, object]) -> Translation:
    """Note on a flag for vLLM's maximum length, which follows from `options` here.

    Raises:
        ConfigError: it is below the longest prompt and completion, which it would cut.
    """
    most = number(given, flag, int)
    if most is None:
        return Translation()
    names = ("max_prompt_length", "max_completion_length")
    prompt, completion = (int(str(options.get(name, find_option(name).default))) for name in names)
    if most < prompt + completion:
        raise ConfigError(
            f"--{flag} must be at least the longest prompt and completion, {prompt} and {completion} tokens, got "
            f"{most:g}; shorten one of them, by --max_completion_length for example"
        )
    text = f"the greatest length is that of the longest prompt and completion, {prompt + completion} tokens"
    return Translation(notes=(Note("idle", f"--{flag}", text),))
