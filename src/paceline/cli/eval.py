"""`paceline eval`: accuracy of a model on held-out tasks, with its interval."""

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from paceline.cli.arguments import CONFIG, Command, DoorOption, help_page, parse
from paceline.cli.libraries import loading_libraries
from paceline.config.reading import options
from paceline.errors import DONE, ConfigError
from paceline.reports.format import points_interval
from paceline.training.measuring import measure
from paceline.training.setup.checks import check_held_out
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
OF_TRAINING = ("gradient_checkpointing", "turn_credit")
"""Options of those sections that concern gradients only."""

BASELINE = DoorOption(
    name="baseline",
    metavar="MODEL",
    help="Another model, such as the one that training began with: it is measured first, on the same tasks, and the "
    "difference is paired by task.",
)

COMMAND = Command(
    name="eval",
    usage="paceline eval --model MODEL --dataset DATASET [--option value ...]\n       paceline eval --config FILE",
    summary="Measure the accuracy of a model on held-out tasks. Without options: the embedded model and task.",
    door_options=(CONFIG, BASELINE),
    options=tuple(
        option
        for option in options()
        if (option.section in SECTIONS and option.name not in OF_TRAINING) or option.name in SINGLE
    ),
)


def run(argv: list[str]) -> int:
    """Evaluate a model; returns the exit status."""
    place = launched(os.environ)
    if place is not None and place.local_rank:
        return DONE  # the first rank of the machine fails for all: a launcher would end it with another that did
    if place is not None:
        raise ConfigError(
            f"paceline eval is one process, and a launcher started {place.size}; start it without one, or measure in "
            "`paceline train`, whose ranks share the questions"
        )
    given = parse(COMMAND, argv)
    if given.help:
        print(help_page(COMMAND), end="")
        return DONE
    configuration = read_configuration(given.options, file=given.door.get("config"))
    print(configuration.origin)
    config, before = configuration.config, list["AccuracyResult"]()
    refuse_foreign_code(config, configuration.ground, given.options)
    checked = check_held_out(config)
    say = partial(print, flush=True)
    if "baseline" in given.door:
        baseline = replace(config, model=replace(config.model, model=given.door["baseline"]))
        for evaluation in measure(baseline, checked, say=say, loading=loading_libraries):
            before.append(evaluation)
            print(f"baseline {describe(evaluation)}", flush=True)
    # notices of the baseline hold for the second model too
    quiet = (lambda sentence: None) if before else say
    found = measure(config, checked, say=quiet, loading=loading_libraries)
    for number, evaluation in enumerate(found):
        print(describe(evaluation))
        if before:
            print(compared(before[number], evaluation))
    return DONE


def describe(evaluation: "AccuracyResult") -> str:
    """One line: accuracy with its 95 % interval, held-out set, number of tasks."""
    n = evaluation.record()["n"]
    return f"accuracy {evaluation.shown()}, 95 % interval, on {evaluation.name}, n = {n}"


def compared(before: "AccuracyResult", after: "AccuracyResult") -> str:
    """One line: difference with its 95 % interval, and the test behind it."""
    from paceline.reports.summary import as_record, gain, verdict

    found = gain(before.completion_records(), after.completion_records())
    return f"difference {points_interval(found.difference)}, paired by task; {verdict(as_record(found))}"
