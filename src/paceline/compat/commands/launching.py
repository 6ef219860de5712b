"""Launchers in front of another tool's command: torchrun, accelerate, deepspeed, variables.

All of them reduce to a few numbers, which become arguments of our own `torchrun`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import yaml

from paceline.compat.commands.translation import ForeignCommand, Note
from paceline.config.reading import suggest
from paceline.errors import ConfigError

PYTHON = re.compile(r"python[\d.]*")
TORCHRUN: Mapping[str, str] = {
    "nproc_per_node": "processes",
    "nnodes": "machines",
    "node_rank": "machine",
    "master_addr": "address",
    "master_port": "port",
}
ACCELERATE: Mapping[str, str] = {
    "num_processes": "all_processes",
    "num_machines": "machines",
    "machine_rank": "machine",
    "main_process_ip": "address",
    "main_process_port": "port",
    "zero_stage": "zero_stage",
    "config_file": "file",
    "accelerate_config": "file",
}
DEEPSPEED: Mapping[str, str] = {
    "num_gpus": "processes",
    "num_nodes": "machines",
    "node_rank": "machine",
    "master_addr": "address",
    "master_port": "port",
}
NUMBERS_OF: Mapping[str, Mapping[str, str]] = {"torchrun": TORCHRUN, "accelerate": ACCELERATE, "deepspeed": DEEPSPEED}
"""Flags of each launcher, with the number that each sets."""
WITHOUT_EFFECT: Mapping[str, tuple[str, ...]] = {
    "torchrun": (
        *("standalone", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "max_restarts", "log_dir", "redirects", "tee"),
        *("no_python", "run_path", "monitor_interval", "start_method", "role", "local_addr"),
    ),
    "accelerate": (
        *("multi_gpu", "use_deepspeed", "use_fsdp", "mixed_precision", "dynamo_backend", "gpu_ids", "same_network"),
        *("rdzv_backend", "num_cpu_threads_per_process", "deepspeed_multinode_launcher", "debug", "module"),
    ),
    "deepspeed": ("hostfile", "include", "exclude", "launcher"),
}
SWITCHES = frozenset(
    {"standalone", "no_python", "run_path", "multi_gpu", "use_deepspeed", "use_fsdp", "same_network", "debug", "module"}
)
"""Flags of launchers without a value."""
VARIABLES: Mapping[str, str] = {
    "NPROC_PER_NODE": "processes",
    "NNODES": "machines",
    "NODE_RANK": "machine",
    "MASTER_ADDR": "address",
    "MASTER_PORT": "port",
}
PROFILES: Mapping[str, tuple[int, int]] = {
    "single_gpu": (1, 0),
    "multi_gpu": (8, 0),
    "zero1": (8, 1),
    "zero2": (8, 2),
    "zero3": (8, 3),
    "fsdp1": (8, 3),
    "fsdp2": (8, 3),
}
"""TRL's accelerate configurations: number of processes, and what they shard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """Launch settings of a command."""

    words: tuple[str, ...]
    """Command behind the launcher."""
    processes: int = 1
    """Processes per machine."""
    machines: int = 1
    torchrun: tuple[str, ...] = ()
    """Arguments for our own launcher."""
    zero_stage: int | None = None
    notes: tuple[Note, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that belong to no launcher."""

    @property
    def ranks(self) -> int:
        """Processes on all machines."""
        return self.processes * self.machines


def started(command: ForeignCommand) -> Started:
    """Split a command from its launcher, whose settings become numbers.

    Raises:
        ConfigError: a launcher's flag that is not known, or a number that is none.
    """
    settings = {VARIABLES[name]: value for name, value in command.environment.items() if name in VARIABLES and value}
    rest = tuple((name, value) for name, value in command.environment.items() if name not in VARIABLES)
    launcher, words = _launcher(command.words)
    notes: list[Note] = []
    if launcher is not None:
        found, words, notes = _flags(launcher, words)
        settings |= found
    if launcher == "accelerate" and not {"all_processes", "file"} & settings.keys():
        devices = visible_devices(command)
        settings["all_processes"] = str(devices)
        text = (
            f"no number of processes is given: one for each of the {devices} of CUDA_VISIBLE_DEVICES"
            if devices > 1
            else "no number of processes is given: one is taken; name it with --num_processes"
        )
        notes.append(Note("settled", "accelerate launch", text))
    return replace(numbers(settings, command, rest), words=tuple(words), notes=tuple(notes))


def visible_devices(command: ForeignCommand) -> int:
    """Number of devices named by the command's environment; 1 if it names none."""
    named = command.environment.get("CUDA_VISIBLE_DEVICES", "")
    return max(1, len([device for device in named.split(",") if device.strip()]))


def numbers(settings: Mapping[str, str], command: ForeignCommand, rest: tuple[tuple[str, str], ...] = ()) -> Started:
    """Settings by name, as numbers."""
    processes, stage = _file(settings["file"], command) if "file" in settings else (1, None)
    machines = _count("machines", settings.get("machines", "1"))
    if "all_processes" in settings:
        processes = _count("num_processes", settings["all_processes"]) // machines
    elif "file" in settings:
        processes //= machines
    if "processes" in settings:
        processes = _count("nproc_per_node", settings["processes"])
    if "zero_stage" in settings:
        stage = _count("zero_stage", settings["zero_stage"], least=0)
    ranks = processes * machines
    return Started(
        words=(),
        processes=processes,
        machines=machines,
        torchrun=_torchrun(settings, processes, machines) if ranks > 1 else (),
        zero_stage=stage or None,
        environment=rest,
    )


def _torchrun(settings: Mapping[str, str], processes: int, machines: int) -> tuple[str, ...]:
    words = ["--nproc-per-node", str(processes)]
    if machines > 1:
        words += ["--nnodes", str(machines), "--node-rank", settings.get("machine", "0")]
    for name, flag in (("address", "--master-addr"), ("port", "--master-port")):
        if name in settings:
            words += [flag, settings[name]]
    return tuple(words)


def _launcher(words: Sequence[str]) -> tuple[str | None, list[str]]:
    names = [PurePosixPath(word).name for word in words[:3]]
    if names and PYTHON.fullmatch(names[0]) and names[1:2] == ["-m"]:
        if names[2:] in (["torch.distributed.run"], ["torch.distributed.launch"]):
            return "torchrun", list(words[3:])
        if names[2:] == ["accelerate.commands.launch"]:
            return "accelerate", list(words[3:])
    if names[:1] == ["torchrun"] or names[:1] == ["deepspeed"]:
        return names[0], list(words[1:])
    if names[:2] == ["accelerate", "launch"]:
        return "accelerate", list(words[2:])
    return None, list(words)


def _flags(launcher: str, words: list[str]) -> tuple[dict[str, str], list[str], list[Note]]:
    """Flags of a launcher, up to the program that it starts."""
    known, idle = NUMBERS_OF[launcher], WITHOUT_EFFECT[launcher]
    found, notes, at = dict[str, str](), list[Note](), 0
    while at < len(words) and words[at].startswith("--"):
        flag, equals, value = words[at].partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if name not in known and name not in idle:
            near = suggest(name, (*known, *idle), form=lambda right: f"--{right}", otherwise="leave it out")
            raise ConfigError(f"{launcher} has no flag {flag} that is known here; {near}")
        at += 1
        if not equals and name not in SWITCHES:
            if at == len(words):
                raise ConfigError(f"{flag} needs a value; write it behind the flag")
            value, at = words[at], at + 1
        if name in known:
            found[known[name]] = value
        else:
            text = "the layout and precision of a run are options of its own here"
            notes.append(Note("idle", f"{launcher} --{name}", text))
    return found, words[at:], notes


def _count(name: str, text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {text!r}")
    return int(text)


def _file(name: str, command: ForeignCommand) -> tuple[int, int | None]:
    """Processes and sharding from a profile or a configuration file of accelerate."""
    if name in PROFILES:
        return PROFILES[name]
    if not name.endswith((".yaml", ".yml", ".json")):
        raise ConfigError(
            f"{name} must be a file of accelerate's, or one of {', '.join(PROFILES)}; "
            f"{suggest(name, PROFILES, otherwise='give its path')}"
        )
    try:
        values = yaml.safe_load(command.read(name))
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML ({' '.join(str(error).split())}); mend it") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{name} must hold lines of `name: value`; give accelerate's own file")
    slices = values.get("deepspeed_config")
    stage = slices.get("zero_stage") if isinstance(slices, dict) else None
    if values.get("distributed_type") == "FSDP":
        stage = 3
    processes = str(values["num_processes"]) if "num_processes" in values else "1"
    return _count(f"{name}: num_processes", processes), stage
