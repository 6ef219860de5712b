"""`paceline train`: a new run, or a run gone on with."""

import importlib.util
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.arguments import CONFIG, RESUME, Command, Given, help_page, parse
from paceline.cli.configuration import read_configuration, read_run_configuration
from paceline.cli.preflight import preflight
from paceline.cli.status import DONE, INTERRUPTED
from paceline.config import Config, options
from paceline.dialects.layouts import in_our_words
from paceline.errors import ConfigError
from paceline.rundir import refuse_existing_run

if TYPE_CHECKING:
    from paceline.train import Place

COMMAND = Command(
    name="train",
    usage="paceline train [--config FILE] [--option value ...]\n       paceline train --resume RUN",
    summary="Train a language model on verifiable rewards. Without options: the embedded model and task, on a CPU.",
    door_options=(CONFIG, RESUME),
    options=options(),
)


def run(argv: list[str]) -> int:
    """Train as argv says; the exit status."""
    given = parse(COMMAND, in_our_words(argv))
    if given.help:
        print(help_page(COMMAND), end="")
        return DONE
    if "resume" in given.door:
        return _resume(given)
    configuration = read_configuration(given)
    print(configuration.origin)
    config = configuration.config
    output_dir = Path(config.loop.output_dir).expanduser() if config.loop.output_dir else default_output_dir(config)
    refuse_existing_run(output_dir)
    preflight(config)
    return _train(config, output_dir, resume=False)


def default_output_dir(config: Config) -> Path:
    """`runs/` and a name made of model, dataset and the time."""
    names = [Path(address).stem for address in (config.model.model, config.data.dataset)]
    words = [re.sub(r"[^\w.-]+", "-", name) for name in names]
    return Path("runs") / "-".join([*words, f"{datetime.now():%Y%m%d-%H%M%S}"])


def _resume(given: Given) -> int:
    others = [f"--{name.replace('_', '-')}" for name in (*given.options, *given.door) if name != "resume"]
    if others:
        raise ConfigError(f"--resume goes on with the run's own configuration; leave out {', '.join(others)}")
    path = Path(given.door["resume"]).expanduser()
    return _train(read_run_configuration(path), path, resume=True)


def _train(config: Config, output_dir: Path, *, resume: bool) -> int:
    # Loading torch takes seconds: whatever can be refused is refused before these lines.
    from rich.console import Console

    from paceline.train import in_this_process, train

    place = _cluster() if config.cluster.cluster else in_this_process
    try:
        finished = train(config, output_dir, resume=resume, console=Console(), place=place)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(output_dir)) from None
    return DONE if finished else INTERRUPTED


def _cluster() -> "Place":
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--cluster needs the package ray; `pip install 'paceline[ray]'`")
    from paceline.cluster.placing import on_a_cluster

    return on_a_cluster


def _how_to_go_on(output_dir: Path) -> str:
    if (output_dir / "config.yaml").is_file():
        return f"go on with `paceline train --resume {output_dir}`"
    return "the run had not begun"
