"""`paceline explain`: the objective of a configuration as a formula, and the origin of every option."""

import inspect
from collections.abc import Iterable
from pathlib import Path

from paceline.cli.arguments import CONFIG, Command, ParsedArguments, help_page, parse
from paceline.cli.configuration import read_configuration, read_run_configuration, read_text, replaced_by
from paceline.cli.origins import DIALECT, Explained, explained, of_file, of_flags, of_run
from paceline.cli.status import DONE
from paceline.compat.commands import translate
from paceline.compat.commands.layouts import in_our_words
from paceline.config.flat_yaml import parse_yaml
from paceline.config.presets import PRESETS
from paceline.config.reading import options, section_classes
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.objective.formula import as_text, objective

COMMAND = Command(
    name="explain",
    usage="paceline explain [--config FILE] [--option value ...]\n       paceline explain RUN\n"
    "       paceline explain [--repair] -- ANOTHER TOOL'S COMMAND",
    summary="Print the objective of a training run as a formula with its numbers, then every option with its value, "
    "where it came from, and the paper it is of. Reads configuration files only.",
    door_options=(CONFIG,),
    options=options(),
)
WIDEST = 28
"""Columns for a value before the text after it shifts."""


def run(argv: list[str]) -> int:
    """Explain a configuration; returns the exit status."""
    if "--" in argv:
        print(_of_another_tool(argv), end="")
    elif argv and not argv[0].startswith("-"):
        print(_of_run(argv), end="")
    else:
        given = parse(COMMAND, in_our_words(argv))
        if given.help:
            print(help_page(COMMAND), end="")
            return DONE
        print(_of_options(given, of_flags(given.options, argv)), end="")
    return DONE


def _of_options(given: ParsedArguments, flags: dict[str, str]) -> str:
    """Configuration from train's options over their file or recipe."""
    configuration = read_configuration(given)
    file = {}
    if configuration.ground is not None:
        text = read_text(configuration.ground, str(configuration.ground))
        values, replaced = parse_yaml(text, str(configuration.ground)), replaced_by(given.options)
        held = {name: value for name, value in values.items() if name not in replaced}
        file = of_file(text, held, configuration.ground.name)
    config = configuration.config
    return f"{configuration.origin}\n\n{describe(config, explained(config, flags=flags, file=file))}"


def _of_run(argv: list[str]) -> str:
    if len(argv) > 1:
        raise ConfigError(
            f"`paceline explain RUN` takes one run directory and nothing else, got {argv[1]!r}; leave it out"
        )
    path = Path(argv[0]).expanduser()
    config = read_run_configuration(path, flag="paceline explain")
    file = of_run(config, read_text(path / "config.yaml", str(path)))
    origin = f"Options: {path / 'config.yaml'}, which holds every option of the run, whoever gave it."
    return f"{origin}\n\n{describe(config, explained(config, flags={}, file=file))}"


def _of_another_tool(argv: list[str]) -> str:
    # it can start a training, and so knows all that takes time to import
    from paceline.cli.translate import read

    asked = read(argv)
    found = translate(asked.command, repair="--repair" in asked.flags)
    given = ParsedArguments(help=False, door={}, several={}, options=dict(found.options))
    return _of_options(given, dict.fromkeys(found.options, DIALECT))


def describe(config: Config, shown: Iterable[Explained]) -> str:
    """Formula, source of the preset, then the options by section."""
    lines = objective(config)
    indented = "".join(f"  {line}\n" for line in as_text(lines).splitlines())
    blocks = [f"The objective, minimised:\n{indented}"]
    if config.advantage.preset is not None:
        preset = PRESETS[config.advantage.preset]
        blocks.append(f"Preset {config.advantage.preset}: {preset.source}. It differs from that in {preset.differs}.\n")
    found = tuple(shown)
    for section, section_class in section_classes().items():
        sentence = " ".join((inspect.getdoc(section_class) or "").split())
        own = [one for one in found if one.option.section == section]
        blocks.append(f"{section}: {sentence}\n{_table(own)}")
    return "\n".join(blocks)


def _table(shown: list[Explained]) -> str:
    names = max(len(one.option.name) for one in shown)
    values = min(WIDEST, max(len(one.text) for one in shown))
    rows = (
        f"  {one.option.name:<{names}}  {one.text:<{values}}  {one.origin}{f'  [{one.source}]' if one.source else ''}"
        for one in shown
    )
    return "".join(f"{row}\n" for row in rows)
