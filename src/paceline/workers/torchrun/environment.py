"""Rank and world size of a process, from the environment that its launcher made.

torchrun and accelerate set RANK, WORLD_SIZE and others. srun sets its own variables; only those of a job *step* count,
because a batch script has the job's variables too and is one process.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.config.building import refuse_served_judges
from paceline.config.layout import layout, training_ranks
from paceline.config.sections import Config
from paceline.errors import ConfigError

SECRET = "PACELINE_RANKS_SECRET"
"""Variable with the shared secret of ranks on several machines."""
LEAST_SECRET = 16
"""Minimum length in characters."""
PORTS = range(15_000, 30_000)
"""Ports for Slurm's steps, below those that Linux assigns by itself."""
STEPS_PER_JOB = 31
"""Ports between those of two jobs with neighbouring numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """Rank, size and address of a launched process."""

    rank: int
    size: int
    local_rank: int
    """Rank on its machine, from 0."""
    local_size: int
    """Number of ranks on its machine."""
    host: str
    """Rendezvous address: the first rank's machine."""
    port: int
    is_hosted: bool
    """True if the launcher has the port open; otherwise the first rank opens it."""
    attempt: int
    """Number of earlier starts by the launcher."""
    cores: int | None
    """CPU cores that the scheduler gave this process; None if it does not say."""
    has_own_devices: bool
    """True if the scheduler may show each process its own devices only."""
    secret: str | None = field(default=None, repr=False)
    """Shared secret of the ranks; None if they use a file on their machine."""

    @property
    def leads(self) -> bool:
        """True for the rank with the run directory and the terminal."""
        return self.rank == 0

    @property
    def is_one_machine(self) -> bool:
        """True if all ranks are on this machine."""
        return self.local_size == self.size


def launched(environment: Mapping[str, str]) -> Launched | None:
    """Place of a process with this environment; None for a single process.

    Raises:
        ConfigError: a launcher set some of its variables and not all, or one is not a number; or it was asked for
            several processes and started one.
    """
    if (
        environment.get("ACCELERATE_USE_CPU") == "True"
        and "MASTER_ADDR" in environment
        and "WORLD_SIZE" not in environment
    ):
        raise ConfigError(
            "accelerate launch --cpu starts a single process, whatever --num_processes says; "
            "start the ranks with torchrun --nproc-per-node instead"
        )
    if environment.get("WORLD_SIZE", "1") != "1":
        return _by_torchrun(environment)
    if "RANK" not in environment and environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        return _by_srun(environment)
    return None


def check_launched(config: Config, process: Launched) -> None:
    """Refuse options that start processes, and layouts that do not fit the ranks, by a ConfigError."""
    if config.cluster.cluster:
        raise ConfigError(
            f"--cluster must be left out where a launcher starts the processes, here {process.size} of them; "
            "it starts its own from one"
        )
    spread = config.engine.vllm_tensor_parallel
    if config.engine.engine == "vllm" and spread > 1:
        raise ConfigError(
            f"--vllm-tensor-parallel must be 1 where a launcher starts the processes, got {spread}: every rank that "
            "samples has a vLLM in its process; the samplers of --cluster may spread theirs"
        )
    layout(config.parallel, training_ranks(config.parallel, process.size))
    refuse_served_judges(config, f"in {process.size} processes that a launcher starts")
    if process.secret is None and not process.is_one_machine:
        raise ConfigError(
            f"{SECRET} must be set where ranks are on several machines: by it they know each other; give every rank "
            "the same random text, such as what `openssl rand -hex 32` prints"
        )
    if process.secret is not None and len(process.secret) < LEAST_SECRET:
        raise ConfigError(
            f"{SECRET} must have at least {LEAST_SECRET} characters, got {len(process.secret)}; `openssl rand -hex 32` "
            "prints a good one"
        )


def device_index(process: Launched, *, visible: int) -> int:
    """Index of this process's CUDA device among those it can see.

    Raises:
        ConfigError: there are fewer than ranks on the machine.
    """
    if process.has_own_devices and visible == 1:
        return 0
    if process.local_size > visible:
        raise ConfigError(
            f"every rank needs a CUDA device of its own, this machine shows {visible} to its {process.local_size} "
            f"ranks; start {visible} on it, or give --device cpu"
        )
    return process.local_rank


def first_host(nodes: str) -> str:
    """First machine in Slurm's compressed list.

    >>> first_host("node[07-09,12],login"), first_host("a,b")
    ('node07', 'a')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None  # it matches the empty text too
    return re.sub(r"\[(\w*)[^\]]*\]", r"\1", first[0])


def tasks_of(node: int, tasks_per_node: str) -> int:
    """Number of tasks on a machine, from Slurm's compressed list of all of them.

    >>> [tasks_of(node, "4(x2),1") for node in range(3)]
    [4, 4, 1]
    """
    counts = list[int]()
    for part in tasks_per_node.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    return counts[node]


def _by_torchrun(environment: Mapping[str, str]) -> Launched:
    remedy = "start the ranks with torchrun, which sets it"
    return Launched(
        rank=_number(environment, "RANK", remedy),
        size=_number(environment, "WORLD_SIZE", remedy),
        local_rank=_number(environment, "LOCAL_RANK", remedy),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", remedy),
        host=_text(environment, "MASTER_ADDR", remedy),
        port=_number(environment, "MASTER_PORT", remedy),
        is_hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
        cores=None,
        has_own_devices=False,
        secret=environment.get(SECRET),
    )


def _by_srun(environment: Mapping[str, str]) -> Launched:
    remedy = "start the ranks with srun, which sets it"
    job, step = (_number(environment, name, remedy) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    port = PORTS[(job * STEPS_PER_JOB + step) % len(PORTS)]
    tasks = _text(environment, "SLURM_STEP_TASKS_PER_NODE", remedy)
    return Launched(
        rank=_number(environment, "SLURM_PROCID", remedy),
        size=_number(environment, "SLURM_STEP_NUM_TASKS", remedy),
        local_rank=_number(environment, "SLURM_LOCALID", remedy),
        local_size=tasks_of(_number(environment, "SLURM_NODEID", remedy), tasks),
        host=environment.get("MASTER_ADDR") or first_host(_text(environment, "SLURM_STEP_NODELIST", remedy)),
        port=_number(environment, "MASTER_PORT", remedy) if "MASTER_PORT" in environment else port,
        is_hosted=False,
        attempt=int(environment.get("SLURM_RESTART_COUNT", "0")),
        cores=_number(environment, "SLURM_CPUS_PER_TASK", remedy) if "SLURM_CPUS_PER_TASK" in environment else None,
        has_own_devices=True,
        secret=environment.get(SECRET),
    )


def _number(environment: Mapping[str, str], name: str, remedy: str) -> int:
    value = _text(environment, name, remedy)
    if not value.isdecimal():
        raise ConfigError(f"{name} must be a number, got {value!r}; {remedy}")
    return int(value)


def _text(environment: Mapping[str, str], name: str, remedy: str) -> str:
    if name not in environment:
        raise ConfigError(f"{name} must be set for every rank, and is not; {remedy}")
    return environment[name]
