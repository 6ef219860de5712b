"""`paceline audit`: test reward functions with known cheats on tasks of a dataset, without a model."""

import json
from typing import TYPE_CHECKING

from paceline.base_directory import hold_base, named_path
from paceline.cli.arguments import CONFIG, Command, CommandFlag, parse
from paceline.config.reading import options
from paceline.config.sections import Config
from paceline.data.formats import screen
from paceline.data.sources import load_rows
from paceline.errors import DONE, FAILED, ConfigError
from paceline.rewards.function import BuiltIn, row_check
from paceline.rewards.resolving import default_system_prompt, resolve, reward_context
from paceline.training.setup.checks import unexpanded_images
from paceline.training.setup.configuration import read_configuration
from paceline.training.setup.named_code import allow_named_code

if TYPE_CHECKING:
    from paceline.rewards.audit.running import Audit

NUM_TASKS = 20
"""Number of rows to read unless `--dataset-size` is given."""
NAMES = (
    *("dataset", "dataset_split", "dataset_size", "on_bad_row", "prompt_column", "answer_column"),
    *("system_prompt", "reward_funcs", "reward_timeout", "sandbox"),
    "max_completion_length",
)
"""Options that decide what a completion of a row earns."""
CODE_OPTIONS = ("reward_funcs", "dataset", "sandbox")
"""Options that may name code, which is run."""
REWARD = CommandFlag(name="reward", metavar="NAME", help="One reward function; --reward-funcs takes several.")
JSON = CommandFlag(name="json", metavar="FILE", help="File to which all results are written too.")

COMMAND = Command(
    name="audit",
    usage="paceline audit --reward-funcs NAME [NAME ...] --dataset DATASET [--option value ...]",
    summary=(
        "Attack reward functions with known cheats and list those that score: on the first rows of a dataset "
        f"({NUM_TASKS}, unless --dataset-size says otherwise), without model and tokenizer. "
        "Exit status 0: no cheat scores full, and the gold answer does; 1 otherwise."
    ),
    flags=(CONFIG, REWARD, JSON),
    options=tuple(option for option in options() if option.name in NAMES),
)


def run(argv: list[str]) -> int:
    """Run the audit; returns the exit status."""
    arguments = parse(COMMAND, argv)
    chosen = dict(arguments.options)
    if "reward" in arguments.flags:
        if "reward_funcs" in chosen:
            raise ConfigError("--reward and --reward-funcs are both given; give one of them")
        chosen["reward_funcs"] = [arguments.flags["reward"]]
    if "dataset" in chosen and "config" not in arguments.flags:
        # a configuration has to name a model, though none is loaded; this name keeps out an embedded model's recipe
        chosen["model"] = "no-model"
    configuration = read_configuration(chosen, file=arguments.flags.get("config"))
    hold_base(configuration.base)
    allow_named_code(configuration.config, configuration.ground, configuration.given, runs=CODE_OPTIONS)
    audits = _audits(configuration.config)
    if "json" in arguments.flags:
        from paceline.rewards.audit.running import record

        path = named_path(arguments.flags["json"])
        text = json.dumps([record(result) for result in audits], indent=1, ensure_ascii=True)
        try:
            path.write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json {path} cannot be written ({error.strerror}); give another file") from None
    return DONE if all(result.is_clean for result in audits) else FAILED


def _audits(config: Config) -> list["Audit"]:
    """Audit every reward function of a configuration, and print the results."""
    from rich.markup import escape

    from paceline.reports.console import PlainConsole
    from paceline.rewards.audit.running import audit, print_audit
    from paceline.rewards.audit.subjects import plain_tasks

    console, data, names = PlainConsole(), config.data, config.rewards.functions
    context = reward_context(config.rewards, config.sampling, seed=config.loop.seed)
    functions = {name: resolve(name, context) for name in names}
    for name, function in functions.items():
        if isinstance(function, BuiltIn) and function.needs_group:
            raise ConfigError(
                f"--reward-funcs {name} compares a prompt's completions, and attacks are graded alone; give mode=score"
            )
        if isinstance(function, BuiltIn) and function.describe is not None:
            print(function.describe())
    rows = load_rows(data.dataset, split=data.dataset_split, size=data.dataset_size or NUM_TASKS, seed=config.loop.seed)
    screened = screen(rows, data, row_check(functions), unexpanded_images(config))
    if screened.skipped:
        print(f"Skipped {len(screened.skipped)} of {len(rows)} rows; the first: {screened.skipped[0]}")
    tasks = plain_tasks(screened, data, default_system=default_system_prompt(names))
    audits = []
    for name, function in functions.items():
        with console.status(escape(name)) as status:
            result = audit(
                name,
                function,
                tasks,
                timeout=config.rewards.reward_timeout,
                say=lambda attack, name=name: status.update(escape(f"{name}: {attack}")),  # type: ignore[misc]
            )
        print_audit(console, result)
        audits.append(result)
    return audits
