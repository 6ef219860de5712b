"""`paceline eval`: accuracy of a model on held-out tasks, with its interval, and the completions behind it."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from paceline.checkpoints.run_directory import RunDir
from paceline.checkpoints.run_files import holds_something, write_or_explain
from paceline.cli.arguments import CONFIG, Command, DoorOption, help_page, parse
from paceline.cli.libraries import loading_libraries
from paceline.config.flat_yaml import to_yaml
from paceline.config.reading import options
from paceline.config.sections import Config
from paceline.errors import DONE, ConfigError
from paceline.reports.console import MeasurementDisplay, open_console
from paceline.reports.format import points_interval
from paceline.training.measuring import measure
from paceline.training.setup.checks import Checked, check_held_out
from paceline.training.setup.configuration import read_configuration, refuse_foreign_code
from paceline.workers.torchrun.environment import launched

if TYPE_CHECKING:
    from paceline.training.evaluation import AccuracyResult

SECTIONS = ("model", "data", "engine", "environment", "evaluation")
SINGLE = (
    *("reward_funcs", "max_reward_failure_rate", "reward_timeout", "sandbox"),
    *("max_completion_length", "stop", "seed"),
)
"""Options of other sections that evaluation reads; the reward functions choose the default system message."""
OF_TRAINING = ("gradient_checkpointing", "turn_credit", "allow_overlap", "final_dtype")
"""Options of those sections that concern training only."""

BASELINE = DoorOption(
    name="baseline",
    metavar="MODEL",
    help="Another model, such as the one that training began with: it is measured first, on the same tasks, and the "
    "difference is paired by task.",
)
OUTPUT_DIR = DoorOption(
    name="output_dir",
    metavar="DIR",
    help="A new directory for the measurement: evals.jsonl, every completion with its verdict in evals/, and the "
    "options in options.yaml. Those of the baseline are in DIR/baseline.",
)
JSON = DoorOption(
    name="json",
    help="Print one JSON object per held-out set on standard output, and everything else on standard error.",
)

COMMAND = Command(
    name="eval",
    usage="paceline eval --model MODEL --dataset DATASET [--option value ...]\n       paceline eval --config FILE",
    summary="Measure the accuracy of a model on held-out tasks. Without options: the embedded model and task.",
    door_options=(CONFIG, BASELINE, OUTPUT_DIR, JSON),
    options=tuple(
        option
        for option in options()
        if (option.section in SECTIONS and option.name not in OF_TRAINING) or option.name in SINGLE
    ),
)


def run(argv: list[str]) -> int:
    """Evaluate a model; returns the exit status."""
    place = launched(os.environ)
    if place is not None:
        if place.local_rank:
            return DONE  # the first rank of the machine fails for all: a launcher would end it with another that did
        raise ConfigError(
            f"paceline eval is one process, and a launcher started {place.size}; start it without one, or measure in "
            "`paceline train`, whose ranks share the questions"
        )
    given = parse(COMMAND, argv)
    if given.help:
        print(help_page(COMMAND), end="")
        return DONE
    as_json = "json" in given.door
    console = Console(stderr=True) if as_json else open_console()
    configuration = read_configuration(given.options, file=given.door.get("config"))
    console.print(configuration.origin, highlight=False, markup=False, soft_wrap=True)
    config = configuration.config
    refuse_foreign_code(config, configuration.ground, given.options)
    output_dir = Path(given.door["output_dir"]).expanduser() if "output_dir" in given.door else None
    if output_dir is not None and holds_something(output_dir):
        raise ConfigError(
            f"--output-dir {output_dir} must be a new or an empty directory; give another, so that no measurement is "
            "written over"
        )
    checked, before = check_held_out(config), list["AccuracyResult"]()
    if "baseline" in given.door:
        baseline = replace(config, model=replace(config.model, model=given.door["baseline"]))
        for evaluation in _measured(baseline, checked, console, output_dir and output_dir / "baseline"):
            before.append(evaluation)
            if not as_json:
                print(f"baseline {describe(evaluation)}", flush=True)
    found = _measured(config, checked, console, output_dir, is_second=bool(before))
    for number, evaluation in enumerate(found):
        first = before[number] if before else None
        if as_json:
            print(json.dumps(_as_json(config, evaluation, given.door.get("baseline"), first)), flush=True)
        else:
            lines = [describe(evaluation), evaluation.reasons(), *([compared(first, evaluation)] if first else [])]
            print("\n".join(lines), flush=True)
    return DONE


def _measured(
    config: Config, checked: Checked, console: Console, directory: Path | None, *, is_second: bool = False
) -> "Iterator[AccuracyResult]":
    """Measure a model with its progress on the console; each result is in the directory before it is given.

    What is said before any number holds for a second model too, and is not said again.
    """
    run_dir = None
    if directory is not None:
        try:
            (directory / "evals").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--output-dir {directory} cannot be written ({error.strerror}); give a directory where you may write"
            ) from error
        write_or_explain(directory / "options.yaml", to_yaml(config).encode())
        run_dir = RunDir(directory)
    longest = config.sampling.max_completion_length
    with MeasurementDisplay(console, name=config.model.model, longest=longest) as display:
        say = (lambda sentence: None) if is_second else display.say
        for evaluation in measure(config, checked, say=say, loading=loading_libraries):
            if run_dir is not None:
                run_dir.write_eval_completions(evaluation.name, evaluation.step, evaluation.completion_records())
                run_dir.append_eval(evaluation.record())
            yield evaluation


def _as_json(
    config: Config, evaluation: "AccuracyResult", baseline: str | None, before: "AccuracyResult | None"
) -> dict[str, Any]:
    """The line of `evals.jsonl` with the model, how many completions were what, and the same of the baseline."""
    found = {"model": config.model.model, **evaluation.record(), "verdicts": evaluation.verdicts()}
    if before is None:
        return found
    from paceline.reports.summary import as_record, gain

    difference = as_record(gain(before.completion_records(), evaluation.completion_records()))
    first = {"model": baseline, **before.record(), "verdicts": before.verdicts()}
    return {**found, "baseline": first, "difference": difference}


def describe(evaluation: "AccuracyResult") -> str:
    """One line: accuracy with its 95 % interval, held-out set, number of tasks."""
    n = evaluation.record()["n"]
    return f"accuracy {evaluation.shown()}, 95 % interval, on {evaluation.name}, n = {n}"


def compared(before: "AccuracyResult", after: "AccuracyResult") -> str:
    """One line: difference with its 95 % interval, and the test behind it."""
    from paceline.reports.summary import as_record, gain, verdict

    found = gain(before.completion_records(), after.completion_records())
    return f"difference {points_interval(found.difference)}, paired by task; {verdict(as_record(found))}"
