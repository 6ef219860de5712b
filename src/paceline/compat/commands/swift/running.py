"""Placement in ms-swift: processes, sharding, vLLM's device, and rules that their numbers must satisfy."""

from paceline.compat.commands.devices import placed
from paceline.compat.commands.flags import GivenFlags, is_on, number, one
from paceline.compat.commands.launching import Started, visible_devices
from paceline.compat.commands.layouts import slices
from paceline.compat.commands.translation import ForeignCommand, Note, Translation
from paceline.errors import ConfigError


def running(given: GivenFlags, start: Started, command: ForeignCommand, *, repair: bool) -> tuple[Translation, Started]:
    """Options for engine, processes and sharding, and a launch with as many processes as devices.

    Raises:
        ConfigError: vLLM's device is one that trains, or is not there, without `repair`.
    """
    vllm, mode = is_on(given, "use_vllm"), one(given, "vllm_mode")
    if mode not in (None, "server", "colocate"):
        raise ConfigError(f"--vllm_mode must be server or colocate, got {mode!r}")
    notes = list[Note]()
    apart = mode == "server"
    if vllm and mode is None and "vllm_device" in given:
        start, apart, notes = _own_device(given, start, command, repair=repair)
    behind = is_on(given, "async_generate")
    if behind and not (vllm and mode == "server"):
        raise ConfigError("--async_generate must be left out without --use_vllm true --vllm_mode server")
    where = placed(
        start,
        vllm=vllm,
        apart=apart,
        share=number(given, "vllm_gpu_memory_utilization"),
        tensor=int(number(given, "vllm_tensor_parallel_size", int) or 1),
    )
    options: dict[str, object] = {"max_staleness": 1} if behind else {}
    for name in ("deepspeed", "fsdp"):
        if value := one(given, name):
            options |= slices(f"--{name}", value, command.read)
    if start.zero_stage is not None and "zero_stage" not in options:
        options["zero_stage"] = start.zero_stage
    if (tensor := number(given, "deepspeed_autotp_size", int)) is not None:
        options["tensor_parallel"] = int(tensor)
    if (parts := number(given, "sequence_parallel_size", int)) is not None:
        options["context_parallel"] = _context(int(parts), start.ranks)
    options |= _engine(given, vllm=vllm and "engine" in where.options)
    idle = tuple(
        Note(kind="idle", about=f"--{name}", text="use_vllm is off")
        for name in given
        if name.startswith("vllm_") and not vllm
    )
    return where + Translation(options=options, notes=(*notes, *idle)), start


def _context(parts: int, ranks: int) -> int:
    if parts < 1 or ranks % parts:
        raise ConfigError(
            f"--sequence_parallel_size must divide the number of processes that train, {ranks}, got {parts}; start "
            "more by NPROC_PER_NODE"
        )
    return parts


def _engine(given: GivenFlags, *, vllm: bool) -> dict[str, object]:
    options: dict[str, object] = {}
    if vllm and "vllm_enforce_eager" in given:
        options["vllm_eager"] = str(is_on(given, "vllm_enforce_eager")).lower()
    if (most := number(given, "vllm_max_num_seqs", int)) is not None:
        options["concurrent_sequences"] = int(most)
    return options


def _own_device(
    given: GivenFlags, start: Started, command: ForeignCommand, *, repair: bool
) -> tuple[Started, bool, list[Note]]:
    """Meaning of version 1's `--vllm_device`: the first device that does not train."""
    device, devices = one(given, "vllm_device") or "auto", visible_devices(command)
    if device != "auto":
        index = device.rpartition(":")[2]
        apart = index.isdecimal() and int(index) >= start.processes
        text = f"is {'none of those that train' if apart else 'one of those that train, which it shares'}"
        return start, apart, [Note(kind="changed", about=f"--vllm_device {device}", text=text)]
    if devices > start.processes:
        text = f"device {start.processes}, the first that does not train, is the producer's"
        return start, True, [Note(kind="changed", about="--vllm_device auto", text=text)]
    rule = (
        f"auto is device {start.processes}, and CUDA_VISIBLE_DEVICES has {devices} device{'s' * (devices > 1)}, of "
        f"which {start.processes} train{'s' * (start.processes == 1)}"
    )
    if start.processes == 1:
        text = f"{rule}: its first version could not start so; here vLLM shares the device with the trainer"
        return start, False, [Note(kind="mended", about="--vllm_device auto", text=text)]
    fewer = start.processes - 1
    if not repair:
        raise ConfigError(
            f"ms-swift refuses these numbers itself: --vllm_device {rule}. The nearest that fit: "
            f"NPROC_PER_NODE={fewer}, or give `paceline translate --repair`"
        )
    text = f"{rule}: taken as NPROC_PER_NODE={fewer}"
    settled = Started(
        words=start.words,
        processes=fewer,
        machines=start.machines,
        torchrun=("--nproc-per-node", str(fewer), *start.torchrun[2:]),
        zero_stage=start.zero_stage,
        notes=start.notes,
        environment=start.environment,
    )
    return settled, True, [Note(kind="settled", about="--vllm_device auto", text=text)]
