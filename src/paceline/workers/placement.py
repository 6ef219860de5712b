"""Placement of a cluster's actors: resources of each, room on the machines, and where they run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.config.layout import ClusterConfig
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.workers.backend import schedule_sentence


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """Machine and device of an actor."""

    node: str
    """Address of the machine."""
    device: str
    has_token: bool
    """True if the machine's part of the cluster asks for Ray's token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Resources of each actor."""

    cpus: int
    """CPU cores; also the number of threads unless `--threads` says otherwise."""
    gpus: int


def gpus_of(config: Config, *, available: float, where: str) -> tuple[int, int]:
    """GPUs of a trainer and of a sampler, where a cluster has `available` of them; `where` names it.

    Raises:
        ConfigError: CUDA is asked for and the cluster has no GPU.
    """
    if config.model.device == "cuda" and not available:
        raise ConfigError(
            f"--device must be cpu or auto here, got 'cuda'; {where} has no GPU that Ray knows of, so start its nodes "
            "with `ray start --num-gpus N`"
        )
    if config.model.device == "cpu" or not available:
        return 0, 0
    is_spread = config.engine.engine == "vllm"
    return 1, config.engine.vllm_tensor_parallel if is_spread else 1


def check_room(
    nodes: Sequence[Mapping[str, float]], trainers: tuple[int, Share], samplers: tuple[int, Share], *, where: str
) -> None:
    """Refuse, by a ConfigError with the numbers, actors for which a cluster has no room.

    `nodes`: resources of each machine by Ray's names. `trainers` and `samplers`: how many, and what each of them takes.
    """
    asked = [share for count, share in (trainers, samplers) for _ in range(count)]
    free = [[node.get("CPU", 0.0), node.get("GPU", 0.0)] for node in nodes]
    # the largest first, each where it leaves the fewest GPUs: sizes differ by samplers that spread over several GPUs
    for share in sorted(asked, key=lambda share: (-share.gpus, -share.cpus)):
        fitting = [node for node in free if node[0] >= share.cpus and node[1] >= share.gpus]
        if not fitting:
            break
        node = min(fitting, key=lambda node: (node[1], node[0]))
        node[0], node[1] = node[0] - share.cpus, node[1] - share.gpus
    else:
        return
    has = " and ".join(f"{sum(node.get(kind, 0.0) for node in nodes):g} {kind}s" for kind in ("CPU", "GPU"))
    needs = " and ".join(
        f"{sum(getattr(share, name) for share in asked)} {name.upper()[:-1]}s" for name in ("cpus", "gpus")
    )
    actors = f"{counted(trainers[0], 'trainer')} and {counted(samplers[0], 'sampler')}"
    raise ConfigError(
        f"{actors} need {needs}, none split between machines, and {where} has {has} on "
        f"{counted(len(nodes), 'machine')}; add machines, or lower --num-producers, --num-consumers or --threads"
    )


def location_sentences(locations: Sequence[tuple[str, Location]]) -> Iterator[str]:
    """Say where each actor runs and on which device, and whether the cluster is open to its network."""
    by_place = dict[str, list[str]]()
    for name, location in locations:
        by_place.setdefault(f"on {location.node}, {location.device}", []).append(name)
    yield "; ".join(f"{', '.join(names)} {where}" for where, names in by_place.items())
    if not all(location.has_token for _, location in locations):
        yield (
            "this Ray cluster asks for no token: whoever reaches its ports can run programs as its user; "
            "`ray get-auth-token --generate`, copy ~/.ray/auth_token to all machines, and start Ray on each with "
            "RAY_AUTH_MODE=token"
        )


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "sampler"), counted(2, "sampler")
    ('one sampler', '2 samplers')
    """
    return f"one {noun}" if number == 1 else f"{number} {noun}s"


def layout_sentence(options: ClusterConfig) -> str:
    """Sentence for the user on the actors of a cluster, and how far samplers work ahead."""
    where = "a cluster of this machine" if options.ray_address is None else f"the cluster at {options.ray_address}"
    workers = f"{counted(options.num_producers, 'sampler')} and {counted(options.num_consumers, 'trainer')}"
    return f"{workers} on {where}; {schedule_sentence(options)}"
