"""Placement of sampling and training: `use_vllm`, its device and a launcher, combined."""

from collections.abc import Mapping

from paceline.compat.commands.flags import GivenFlags, number
from paceline.compat.commands.launching import Started
from paceline.compat.commands.translation import Note, Translation
from paceline.config.reading import find_option
from paceline.errors import ConfigError


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
        options["vllm_gpu_share"] = share
    if apart:
        text = (
            f"a producer samples on {tensor} device{'s' * (tensor > 1)} of its own and {start.ranks} "
            f"process{'es' * (start.ranks > 1)} train, as actors of Ray; --num-producers takes more of them"
        )
        options |= {"cluster": True, "num_producers": 1, "num_consumers": start.ranks}
        found = Translation(options=options, notes=(Note(kind="changed", about=flag, text=text),))
        return found + _without_meeting_place(start)
    if start.ranks == 1:
        return Translation(options=options)
    text = (
        f"vLLM beside the trainer in each of {start.ranks} processes is not offered: the built-in engine samples in "
        f"all of them on the trained weights; --cluster --num-consumers {start.ranks} --engine vllm has vLLM on "
        "devices of its own"
    )
    return _ranks(start) + Translation(notes=(Note(kind="missing", about=flag, text=text),))


def _ranks(start: Started) -> Translation:
    return Translation(launch=start.torchrun)


def _without_meeting_place(start: Started) -> Translation:
    """Note on launcher flags that mean nothing to actors."""
    flags = " ".join(word for word in start.torchrun[2:] if word.startswith("--"))
    if not flags:
        return Translation()
    text = "actors of Ray find each other; machines are joined by `ray start` and --ray-address"
    return Translation(notes=(Note(kind="idle", about=flags, text=text),))


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
    return Translation(notes=(Note(kind="idle", about=f"--{flag}", text=text),))
