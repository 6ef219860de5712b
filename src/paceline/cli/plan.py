"""`paceline plan`: what a configuration amounts to, before anything is loaded."""

import dataclasses
import json
import math
from pathlib import Path

from paceline.cli.arguments import CONFIG, DoorOption, help_page, parse
from paceline.cli.configuration import EMBEDDED, read_configuration
from paceline.cli.forecast import UNKNOWN, forecast
from paceline.cli.preflight import preflight
from paceline.cli.status import DONE
from paceline.cli.train import COMMAND as TRAIN
from paceline.config import Config, Sizes, layout, training_ranks
from paceline.data import load_rows, screen
from paceline.dialects.layouts import in_our_words
from paceline.errors import ConfigError, ModelError
from paceline.plan import ModelShape, batch_plan, describe, describe_memory, memory_plan, model_shape

TIMINGS = DoorOption(
    name="timings",
    metavar="RUN",
    help="Directory of a run of the same work, whose measured times say what producers and staleness would gain.",
)
PROCESSES = DoorOption(
    name="processes",
    metavar="N",
    help="Processes that torchrun, accelerate or srun would start, those of --sampling-ranks among them; on a cluster "
    "its consumers count.",
)
COMMAND = dataclasses.replace(
    TRAIN,
    name="plan",
    usage="paceline plan [--config FILE] [--timings RUN] [--option value ...]",
    summary="Print batches, steps and memory of a training run, and whether a cluster would pay. Reads the dataset, "
    "the model's config.json, and the files of the run behind --timings only.",
    door_options=(CONFIG, TIMINGS, PROCESSES),
)


def run(argv: list[str]) -> int:
    """Plan as argv says; the exit status."""
    given = parse(COMMAND, in_our_words(argv))
    if given.help:
        print(help_page(COMMAND), end="")
        return DONE
    configuration = read_configuration(given)
    config = configuration.config
    print(configuration.origin)
    sizes = _sizes(config, given.door.get("processes"))
    preflight(config)
    rows = load_rows(config.data.dataset, split=config.data.dataset_split, size=config.data.dataset_size)
    rows = [*screen(rows, config.data, None).rows]
    print(f"\n{describe(batch_plan(config, len(rows)))}\n\n{_memory(config, sizes)}")
    if "timings" in given.door:
        print(f"\n{forecast(config, Path(given.door['timings']).expanduser())}")
    elif config.cluster.cluster:
        print(f"\n{UNKNOWN}")
    return DONE


def _sizes(config: Config, processes: str | None) -> Sizes:
    if config.cluster.cluster:
        return layout(config.parallel, config.cluster.num_consumers)
    if processes is None:
        return layout(config.parallel, config.parallel.fewest)
    if not processes.isdecimal() or int(processes) < 1:
        raise ConfigError(f"--processes must be a whole number of at least 1, got {processes!r}")
    return layout(config.parallel, training_ranks(config.parallel, int(processes)))


def _memory(config: Config, sizes: Sizes) -> str:
    model = config.model.model
    directory = EMBEDDED[model] if model in EMBEDDED else Path(model).expanduser()
    shape = _read_shape(directory)
    if shape is None:
        return f"Memory is not known: {config.model.model} is no local directory with a known config.json and weights."
    several = f"Of each of {sizes.ranks} processes that train:\n" if sizes.ranks > 1 else ""
    return (
        f"{several}{describe_memory(memory_plan(config, shape, sizes))} The model has {shape.parameters:,} parameters."
    )


def _read_shape(directory: Path) -> ModelShape | None:
    weights = sorted(directory.glob("*.safetensors"))
    if not weights or not (directory / "config.json").is_file():
        return None
    parameters = sum(_count_parameters(file) for file in weights)
    try:
        described = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except ValueError:
        described = None
    if not isinstance(described, dict):
        raise ModelError(f"--model {directory}: its config.json is not a JSON object; restore it")
    return model_shape(described, parameters=parameters)


def _count_parameters(file: Path) -> int:
    """Sum over the tensors that the header lists: 8 bytes with its length, then JSON."""
    try:
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        raise ModelError(f"--model {file.parent}: {file.name} is damaged; fetch it again") from None
