"""`paceline replay`: a step of a run under another objective."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from paceline.base_directory import hold_base, local_path
from paceline.checkpoints.run_directory import RunDir
from paceline.cli.arguments import Command, CommandFlag, parse_behind_run
from paceline.cli.libraries import loading_libraries
from paceline.config.building import build_config, following_values
from paceline.config.flat_yaml import parse_yaml, to_yaml
from paceline.config.presets import preset_values
from paceline.config.reading import find_option, options, parse_value, values_of
from paceline.config.sections import Config
from paceline.errors import DONE, ConfigError
from paceline.training.setup.configuration import read_run_configuration, with_following
from paceline.training.setup.file_names import run_base
from paceline.training.setup.named_code import allow_named_code

if TYPE_CHECKING:
    from paceline.training.replaying import Replay

STEP = CommandFlag(name="step", metavar="N", help="The step, 1 for the first; its rollouts must be there.")
NEAREST = CommandFlag(
    name="nearest",
    help="Compute with the weights of the nearest checkpoint before the step as they are, instead of training the "
    "steps in between again on their rollouts.",
)
TOKENS = CommandFlag(
    name="tokens",
    help="Write what the policy says of every token of the step, before its updates and after them under the run's own "
    "objective, to RUN/tokens/, where `paceline rollouts` finds it.",
)
JSON = CommandFlag(name="json", help="Print one JSON object instead of a table.")
FIXED = ("ref_sync",)
"""Options of the objective that shaped the weights before the step."""
MODEL_OPTIONS = ("trust_remote_code",)
"""Options by which the run's own model is read."""
CODE_OPTIONS = ("advantage", "bound", *MODEL_OPTIONS)
"""Options whose code is run, the run's own too."""
COMMAND = Command(
    name="replay",
    usage="paceline replay RUN --step N [--nearest] [--tokens] [--json] [--option value ...]",
    summary="What another objective would have made of a step of a run: loss, gradient norm, clipping and KL "
    "on the same rollouts, from the same weights, beside those of the run's own. Nothing is sampled, and the run is "
    "left as it is but for what --tokens adds. Takes the time of the updates from the nearest checkpoint to the step, "
    "and the memory of training.",
    flags=(STEP, NEAREST, TOKENS, JSON),
    options=tuple(
        option
        for option in options()
        if (option.section in ("advantage", "loss") and option.name not in FIXED)
        or option.name in ("reward_weights", *MODEL_OPTIONS)
    ),
)
SHOWN = (
    *("loss", "policy_loss", "grad_norm", "entropy", "kl", "clip_low_fraction", "clip_high_fraction"),
    *("correction_masked_fraction", "off_policy_fraction", "skipped_fraction", "logprob_mismatch_mean"),
    *("updates", "tokens_trained", "groups_zero_deviation", "groups_filtered", "groups_missing", "rollouts_masked"),
)
"""Names in `metrics.METRICS`, in the order of the table."""


def run(argv: list[str]) -> int:
    """Replay a step; returns the exit status."""
    path, arguments = parse_behind_run(COMMAND, argv, form="runs/NAME --step N")
    text = arguments.flags.get("step", "")
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--step must be a whole number of at least 1, got {text!r}; `paceline replay RUN --step N`")
    step = int(text)
    model_values = {name: value for name, value in arguments.options.items() if name in MODEL_OPTIONS}
    config = read_run_configuration(path, flag="replay", given=model_values)
    whole = local_path(path)
    hold_base(run_base(path))
    allow_named_code(config, whole / "config.yaml", arguments.options, runs=CODE_OPTIONS)
    objective = {name: value for name, value in arguments.options.items() if name not in MODEL_OPTIONS}
    other = other_objective(config, objective)
    run_dir = RunDir(whole)
    entry = run_dir.committed(step)  # refused before torch is loaded
    with loading_libraries():
        from paceline.training.replaying import replay

    result = replay(
        run_dir, config, other, step, nearest="nearest" in arguments.flags, with_tokens="tokens" in arguments.flags
    )
    if result.tokens is not None:
        about = {"step": step, "sha256": entry["sha256"], "weights": result.weights, "is_exact": result.is_exact}
        run_dir.write_tokens(step, about, result.tokens)
    old, new = values_of(config), values_of(config if other is None else other)
    changed = {name: [value, new[name]] for name, value in old.items() if value != new[name]}
    if "json" in arguments.flags:
        print(json.dumps({"run": str(path), "changed": changed, **asdict(replace(result, tokens=None))}))
    else:
        _show(result, changed)
    return DONE


def other_objective(config: Config, chosen: Mapping[str, object]) -> Config | None:
    """The run's configuration with these options and their preset's values; None if none is given."""
    if not chosen:
        return None
    run_values = parse_yaml(to_yaml(config), "config.yaml")
    brought = preset_values(parse_value(find_option("preset"), chosen["preset"])) if "preset" in chosen else {}
    values = {**with_following(run_values, {**brought, **chosen}), **brought, **following_values(chosen), **chosen}
    without = build_config({**values, **dict.fromkeys(FIXED)})
    # a reference that moves belongs to how the run came about, and there is none without a KL
    return build_config(values) if without.loss.beta > 0 else without


def _show(result: "Replay", changed: Mapping[str, list[Any]]) -> None:
    from rich.table import Table

    from paceline.reports.console import PlainConsole

    console = PlainConsole()
    console.print(f"step {result.step}, weights: {result.weights}", soft_wrap=True)
    for name, (before, other) in changed.items():
        console.print(f"--{name.replace('_', '-')}: {before} -> {other}", soft_wrap=True, markup=False)
    columns = {"as it was": result.recorded, "own objective": result.unchanged, "other": result.other}
    shown = {name: numbers for name, numbers in columns.items() if numbers is not None}
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in shown:
        table.add_column(name, justify="right")
    for number in SHOWN:
        values = [numbers.get(number) for numbers in shown.values()]
        if any(value is not None for value in values):
            table.add_row(number, *("-" if value is None else f"{value:.6g}" for value in values))
    console.print(table)
