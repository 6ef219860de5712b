"""Words in front of another tool's command: wrappers (env, nohup, srun, `uv run`), and launchers with their variables.

Launchers (torchrun, accelerate, deepspeed) reduce to a few numbers, which become arguments of our own `torchrun`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import yaml

from paceline.compat.commands.evaluating import ASSIGNMENT
from paceline.compat.commands.translation import ForeignCommand, Note, ReadText
from paceline.config.reading import suggest
from paceline.errors import ConfigError

WRAPPERS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("env",): ("-u", "--unset", "-C", "--chdir"),
    ("nohup",): (),
    ("time",): ("-f", "-o"),
    ("exec",): (),
    ("setsid",): (),
    ("nice",): ("-n",),
    ("sudo",): ("-u", "-g"),
    ("timeout",): ("-k", "-s"),
    ("taskset",): (),
    ("numactl",): ("-C", "-N", "-m"),
    ("stdbuf",): ("-i", "-o", "-e"),
    ("uv", "run"): (
        *("-p", "--python", "--with", "--with-editable", "--with-requirements", "--extra", "--group", "--env-file"),
        *("--package", "--project", "--directory", "--index", "--index-url", "--extra-index-url"),
    ),
    ("poetry", "run"): (),
    ("pipenv", "run"): (),
    ("pixi", "run"): ("-e", "--environment"),
    ("conda", "run"): ("-n", "--name", "-p", "--prefix", "--cwd"),
    ("srun",): (
        *("-N", "--nodes", "-n", "--ntasks", "-p", "--partition", "-c", "--cpus-per-task", "-t", "--time", "-J"),
        *("--job-name", "-w", "--nodelist", "-x", "--exclude", "-A", "--account", "-q", "--qos", "-o", "--output"),
        *("-e", "--error", "-G", "--gpus", "--gres", "--gpus-per-node", "--gpus-per-task", "--ntasks-per-node"),
        *("--mem", "--export", "--jobid", "-D", "--chdir", "--container-image", "--container-mounts", "--mpi"),
    ),
}
"""Words that start each wrapper, with its flags that take the next word as their value."""
WITH_OPERAND = ("timeout", "taskset")
"""Wrappers with a word between their flags and the command: a duration, the cores."""
PLAIN_WRAPPERS = ("env", "nohup", "time", "exec")
"""Wrappers that neither choose packages nor machines."""


def unwrapped(words: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return a command with the assignments before it, without its wrappers, and the wrappers that a user may miss.

    >>> unwrapped(["A=1", "srun", "-N", "2", "env", "B=2", "trl", "grpo"])
    (('A=1', 'B=2', 'trl', 'grpo'), ['srun'])
    >>> unwrapped(["timeout", "-k", "9", "2h", "taskset", "-c", "0-3", "trl", "grpo"])
    (('trl', 'grpo'), ['timeout', 'taskset'])
    """
    assignments, missed, rest = list[str](), list[str](), list(words)
    while True:
        while rest and ASSIGNMENT.match(rest[0]):
            assignments.append(rest.pop(0))
        names = tuple(PurePosixPath(word).name for word in rest[:2])
        start = next((prefix for prefix in WRAPPERS if names[: len(prefix)] == prefix), None)
        if start is None:
            return (*assignments, *rest), missed
        rest = rest[len(start) :]
        while rest and rest[0].startswith("-"):
            rest = rest[2 if rest[0] in WRAPPERS[start] else 1 :]
        rest = rest[1 if start[0] in WITH_OPERAND else 0 :]
        missed += [] if start[0] in PLAIN_WRAPPERS else [" ".join(start)]


PYTHON = re.compile(r"python[\d.]*")
LAUNCHERS: Mapping[tuple[str, ...], str] = {
    ("torchrun",): "torchrun",
    ("python", "-m", "torch.distributed.run"): "torchrun",
    ("python", "-m", "torch.distributed.launch"): "torchrun",
    ("accelerate", "launch"): "accelerate",
    ("python", "-m", "accelerate.commands.launch"): "accelerate",
    ("deepspeed",): "deepspeed",
}
"""Words that start each launcher."""
MEETING = {"node_rank": "machine", "master_addr": "address", "master_port": "port"}
TORCHRUN: Mapping[str, str] = {"nproc_per_node": "processes", "nnodes": "machines", **MEETING}
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
NUMBERS_OF: Mapping[str, Mapping[str, str]] = {
    "torchrun": TORCHRUN,
    "accelerate": ACCELERATE,
    "deepspeed": {"num_gpus": "processes", "num_nodes": "machines", **MEETING},
}
"""Flags of each launcher, with the number that each sets."""
VARIABLES: Mapping[str, str] = {name.upper(): number for name, number in TORCHRUN.items()}
WITHOUT_EFFECT: Mapping[str, tuple[str, ...]] = {
    "torchrun": (
        *("standalone", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "max_restarts", "log_dir", "redirects", "tee"),
        *("module", "no_python", "run_path", "monitor_interval", "start_method", "role", "local_addr"),
    ),
    "accelerate": (
        *("multi_gpu", "use_deepspeed", "use_fsdp", "mixed_precision", "dynamo_backend", "gpu_ids", "same_network"),
        *("rdzv_backend", "num_cpu_threads_per_process", "deepspeed_multinode_launcher", "debug", "module"),
    ),
    "deepspeed": ("module", "hostfile", "include", "exclude", "launcher"),
}
OWN_LAYOUT = "the layout and precision of a run are options of its own here"
"""Note on each of them."""
SWITCHES = frozenset(
    {"standalone", "no_python", "run_path", "multi_gpu", "use_deepspeed", "use_fsdp", "same_network", "debug", "module"}
)
"""Flags of launchers without a value."""
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
class Started(ForeignCommand):
    """A command without its launcher and the launcher's variables, and the launch settings."""

    processes: int = 1
    """Processes per machine."""
    machines: int = 1
    torchrun: tuple[str, ...] = ()
    """Arguments for our own launcher."""
    zero_stage: int | None = None
    notes: tuple[Note, ...] = ()

    @property
    def ranks(self) -> int:
        """Processes on all machines."""
        return self.processes * self.machines

    @property
    def devices(self) -> int:
        """Number of devices named by the command's environment; 1 if it names none."""
        named = self.environment.get("CUDA_VISIBLE_DEVICES", "")
        return max(1, len([device for device in named.split(",") if device.strip()]))


def started(command: ForeignCommand) -> Started:
    """Split a command from its launcher, whose settings become numbers; ConfigError for a wrong flag or number."""
    settings = {VARIABLES[name]: value for name, value in command.environment.items() if name in VARIABLES and value}
    names = [PurePosixPath(word).name for word in command.words[:3]]
    if names and PYTHON.fullmatch(names[0]):
        names[0] = "python"
    start = next((prefix for prefix in LAUNCHERS if tuple(names[: len(prefix)]) == prefix), ())
    launcher, words, notes = LAUNCHERS.get(start), command.words[len(start) :], list[Note]()
    if launcher is not None:
        words = _read_launcher(launcher, words, settings, notes)
    rest = {name: value for name, value in command.environment.items() if name not in VARIABLES}
    launch = Started(words=words, read=command.read, environment=rest)
    if launcher == "accelerate" and not {"all_processes", "file"} & settings.keys():
        settings["all_processes"] = str(launch.devices)
        some = f"one for each of the {launch.devices} of CUDA_VISIBLE_DEVICES"
        taken = some if launch.devices > 1 else "one is taken; name it with --num_processes"
        notes.append(Note("settled", "accelerate launch", f"no number of processes is given: {taken}"))
    return with_numbers(replace(launch, notes=tuple(notes)), settings)


def with_numbers(start: Started, settings: Mapping[str, str]) -> Started:
    """The launch with processes, machines and sharding from settings by name; ConfigError for a bad number or file."""
    processes, stage = _file(settings["file"], start.read) if "file" in settings else (1, None)
    machines = _count("machines", settings.get("machines", "1"))
    if "all_processes" in settings:
        processes = _count("num_processes", settings["all_processes"]) // machines
    elif "file" in settings:
        processes //= machines
    if "processes" in settings:
        processes = _count("nproc_per_node", settings["processes"])
    if "zero_stage" in settings:
        stage = _count("zero_stage", settings["zero_stage"], least=0)
    torchrun = ["--nproc-per-node", str(processes)]
    if machines > 1:
        torchrun += ["--nnodes", str(machines), "--node-rank", settings.get("machine", "0")]
    for name, flag in (("address", "--master-addr"), ("port", "--master-port")):
        if name in settings:
            torchrun += [flag, settings[name]]
    return replace(
        start,
        processes=processes,
        machines=machines,
        torchrun=tuple(torchrun) if processes * machines > 1 else (),
        zero_stage=stage or None,
    )


def _read_launcher(
    launcher: str, words: tuple[str, ...], settings: dict[str, str], notes: list[Note]
) -> tuple[str, ...]:
    """Add a launcher's flags to the settings; returns the words from the program on."""
    known, idle = NUMBERS_OF[launcher], WITHOUT_EFFECT[launcher]
    at = 0
    start: tuple[str, ...] = ()
    while at < len(words) and words[at].startswith(("--", "-m")):
        flag, equals, value = words[at].partition("=")
        name = "module" if flag == "-m" else flag.removeprefix("--").replace("-", "_")
        if name not in known and name not in idle:
            near = suggest(name, (*known, *idle), form=lambda right: f"--{right}", otherwise="leave it out")
            raise ConfigError(f"{launcher} has no flag {flag} that is known here; {near}")
        at += 1
        if not equals and name not in SWITCHES:
            if at == len(words):
                raise ConfigError(f"{flag} needs a value; write it behind the flag")
            value, at = words[at], at + 1
        if name == "module":
            start = ("python", "-m")
        elif name in known:
            settings[known[name]] = value
        else:
            check_precision(f"{launcher} --{name}", name, value)
            notes.append(Note("idle", f"{launcher} --{name}", OWN_LAYOUT))
    return (*start, *words[at:])


def check_precision(label: str, name: str, value: object) -> None:
    """Refuse half precision, which accelerate's `mixed_precision` asks for."""
    if name == "mixed_precision" and str(value) not in ("no", "bf16", "False"):
        raise ConfigError(f"{label} must be no or bf16, got {value!r}; half precision is not offered, use bf16")


def _count(name: str, text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(
            f"{name} must be a whole number of at least {least}, got {text!r}; write the number in its place"
        )
    return int(text)


def _file(name: str, read: ReadText) -> tuple[int, int | None]:
    """Processes and sharding from a profile or a configuration file of accelerate."""
    if name in PROFILES:
        return PROFILES[name]
    if not name.endswith((".yaml", ".yml", ".json")):
        raise ConfigError(
            f"{name} must be a file of accelerate's, or one of {', '.join(PROFILES)}; "
            f"{suggest(name, PROFILES, otherwise='give its path')}"
        )
    try:
        values = yaml.safe_load(read(name))
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML ({' '.join(str(error).split())}); mend it") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{name} must hold lines of `name: value`; give accelerate's own file")
    check_precision(f"{name}: mixed_precision", "mixed_precision", values.get("mixed_precision", "no"))
    slices = values.get("deepspeed_config")
    stage = slices.get("zero_stage") if isinstance(slices, dict) else None
    if values.get("distributed_type") == "FSDP":
        stage = 3
    processes = str(values["num_processes"]) if "num_processes" in values else "1"
    return _count(f"{name}: num_processes", processes), stage
