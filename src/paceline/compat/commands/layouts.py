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
from collections.abc import Iterable, Mapping

from paceline.compat.commands.flags import Flags, is_on, number, value_of
from paceline.compat.commands.launching import Started
from paceline.compat.commands.translation import ReadText, Translation, as_words
from paceline.compat.layouts import DEEPSPEED, FSDP, named, of_deepspeed
from paceline.config.reading import find_option
from paceline.errors import ConfigError

VALUES = {"--deepspeed": DEEPSPEED, "--fsdp": FSDP}
"""Flags whose value is a name of a layout, with its options."""
OWN_OPTIONS = "a file's other settings are options of their own here"
NUMBERS = {
    **dict.fromkeys(("--tp", "--tp-size", "--tensor-parallel-size"), "--tensor-parallel"),
    **dict.fromkeys(("--pp", "--pp-size", "--pipeline-parallel-size"), "--pipeline-parallel"),
    **dict.fromkeys(("--cp", "--cp-size", "--context-parallel-size"), "--context-parallel"),
    **dict.fromkeys(("--sequence-parallel-size", "--ulysses-sequence-parallel-size"), "--context-parallel"),
}
"""Flags whose value is a number, as in ours."""


def translate_layout_flags(argv: Iterable[str]) -> list[str]:
    """Replace layout flags in argv by ours; ConfigError for a layout that none of the tools has under this name.

    >>> translate_layout_flags(["--deepspeed", "zero2", "--seed", "1"])
    ['--zero-stage', '2', '--seed', '1']
    """
    words, translated = iter(argv), list[str]()
    for word in words:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag == "--fsdp2" and not equals:
            translated += as_words(FSDP["full_shard"])
        elif flag in NUMBERS:
            translated += [f"{NUMBERS[flag]}{equals}{value}"]
        elif flag in VALUES:
            name = value if equals else next(words, None)
            if name is None:
                raise ConfigError(f"{flag} needs a value, such as {next(iter(VALUES[flag]))}")
            translated += as_words(named(flag, name, VALUES[flag], otherwise=OWN_OPTIONS))
        else:
            translated.append(word)
    return translated


def sharding(flags: Flags, start: Started) -> dict[str, object]:
    """Options behind `--deepspeed`, `--fsdp` or the launcher; ConfigError for an unknown name or a missing stage."""
    options: dict[str, object] = {}
    for name in ("deepspeed", "fsdp"):
        flag, value = f"--{name}", value_of(flags, name)
        if value and value.endswith(".json"):
            options |= _from_file(flag, value, start.read)
        elif value:
            first = value.split()[0] if value.split() else value
            word = "full_shard" if (flag, first) == ("--fsdp", "fsdp2") else first
            options |= named(flag, word, VALUES[flag], otherwise=OWN_OPTIONS)
    if start.zero_stage is not None:
        options.setdefault("zero_stage", start.zero_stage)
    return options


def _from_file(flag: str, path: str, read: ReadText) -> Mapping[str, object]:
    try:
        settings = json.loads(read(path))
    except ValueError:
        raise ConfigError(f"{flag} {path} is not JSON; mend it, or give one of {', '.join(VALUES[flag])}") from None
    return of_deepspeed(f"{flag} {path}", settings)


def add_processes(flags: Flags, start: Started, translation: Translation, *, apart: bool) -> None:
    """Add the options for engine, processes and launcher; `apart`: vLLM has separate devices."""
    share = number(flags, "vllm_gpu_memory_utilization")
    tensor = int(number(flags, "vllm_tensor_parallel_size", int) or 1)
    vllm = is_on(flags, "use_vllm")
    is_own = start.ranks > 1 and not apart  # every process has one in itself
    if vllm:
        translation.decide(engine="vllm", vllm_tensor_parallel=1 if is_own else tensor)
        if share is not None:
            translation.decide(vllm_memory=share)
    if not (vllm and apart):
        translation.launch = start.torchrun
        if vllm and is_own and tensor > 1:
            text = (
                f"each of the {start.ranks} processes has a vLLM of its own, on its own device; in the samplers of "
                f"--cluster it may be spread over {tensor}"
            )
            translation.note("changed", "--vllm_tensor_parallel_size", text)
        return
    translation.decide(cluster=True, num_producers=1, num_consumers=start.ranks)
    text = (
        f"a sampler computes on {tensor} device{'s' * (tensor > 1)} of its own and {start.ranks} "
        f"process{'es' * (start.ranks > 1)} train, as actors of Ray; --num-producers takes more of them"
    )
    translation.note("changed", "--use_vllm", text)
    if machine_flags := " ".join(word for word in start.torchrun[2:] if word.startswith("--")):
        text = "actors of Ray find each other; machines are joined by `ray start` and --cluster HOST:PORT"
        translation.note("idle", machine_flags, text)


def check_length(flags: Flags, flag: str, options: Mapping[str, object], translation: Translation) -> None:
    """Note a flag for vLLM's maximum length, which `options` decide here; ConfigError if no prompt had room in it."""
    most = number(flags, flag, int) if is_on(flags, "use_vllm") else None
    if most is None:
        return
    names = ("max_prompt_length", "max_completion_length")
    prompt, completion = (int(str(options.get(name, find_option(name).default))) for name in names)
    if most <= completion:
        raise ConfigError(
            f"--{flag} must be above the longest completion, {completion} tokens, got {most:g}; raise it, or lower "
            "--max_completion_length"
        )
    if most < prompt + completion:
        text = (
            f"bounded prompt and completion together by {most:g} tokens, so a long prompt shortened its completions; "
            f"here each has its own bound, {prompt} and {completion} tokens"
        )
        translation.note("changed", f"--{flag}", text)
        return
    text = f"the greatest length is that of the longest prompt and completion, {prompt + completion} tokens"
    translation.note("idle", f"--{flag}", text)
