"""`paceline eval`: accuracy of a model on held-out tasks, with its interval."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.cli import DONE
from paceline.cli.arguments import CONFIG, Command, DoorOption, help_page, parse
from paceline.cli.configuration import read_configuration, refuse_foreign_code
from paceline.cli.libraries import loading_libraries
from paceline.config.reading import options
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.reports.format import points_interval
from paceline.training.setup.checks import Checked, check_held_out
from paceline.workers.torchrun.environment import launched

if TYPE_CHECKING:
    from paceline.training.evaluation import AccuracyResult

SECTIONS = ("model", "data", "engine", "evaluation")
SINGLE = (
    *("reward_funcs", "max_reward_failure_rate", "reward_timeout", "sandbox"),
    *("max_completion_length", "stop", "seed"),
)
"""Options of other sections that evaluation reads; the reward functions choose the default system message."""
OF_TRAINING = ("gradient_checkpointing",)
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
    configuration = read_configuration(given)
    print(configuration.origin)
    config, before = configuration.config, list["AccuracyResult"]()
    refuse_foreign_code(config, configuration.ground, given.options)
    checked = check_held_out(config)
    if "baseline" in given.door:
        baseline = replace(config, model=replace(config.model, model=given.door["baseline"]))
        for evaluation in _measure(baseline, checked, quiet=False):
            before.append(evaluation)
            print(f"baseline {describe(evaluation)}", flush=True)
    for number, evaluation in enumerate(_measure(config, checked, quiet=bool(before))):
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


def _measure(config: Config, checked: Checked, *, quiet: bool) -> Iterator["AccuracyResult"]:
    """Evaluate every held-out set; `quiet` leaves out notices that were already printed."""
    # Loading torch takes seconds: whatever can be refused is refused before these lines.
    with loading_libraries():
        from paceline.models.pretrained import load_tokenizer
        from paceline.training.setup.held_out import make_evaluators

    tokenizer = load_tokenizer(config.model)
    evaluators = make_evaluators(config, tokenizer, checked)
    notes = list[str]()
    for one in evaluators:
        notes += [note if len(evaluators) == 1 else f"{one.name}: {note}" for note in one.notes]
        notes.append(one.reach)
    # What computes a model takes as long again: whatever needs no weights is refused before these lines.
    with loading_libraries():
        from paceline.models.loading import load_model
        from paceline.training.assembly import make_engine
        from paceline.training.records import of_machine

    policy = load_model(config.model)
    for note in [] if quiet else [*notes, *of_machine(policy)]:
        print(note, flush=True)
    engine = make_engine(config, policy, tokenizer)
    yield from (evaluator.evaluate(engine, step=0) for evaluator in evaluators)
