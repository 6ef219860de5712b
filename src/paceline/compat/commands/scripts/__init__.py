"""Python scripts that call TRL's `GRPOTrainer` or the tutorial's `train_with_grpo`: parsed, never run.

reading.py   the calls of a script and their arguments, as far as they are literal; load_dataset as an address
trainers.py  GRPOTrainer, GRPOConfig, LoraConfig and load_dataset, as flags of `trl grpo`
tutorial.py  train_with_grpo
"""

from pathlib import PurePosixPath

from paceline.compat.commands.colossalchat.arguments import SCRIPTS
from paceline.compat.commands.launching import PYTHON, started
from paceline.compat.commands.scripts.reading import read_script
from paceline.compat.commands.scripts.trainers import from_trainer
from paceline.compat.commands.scripts.tutorial import from_tutorial
from paceline.compat.commands.translation import ForeignCommand, Translation
from paceline.errors import ConfigError


def is_script(command: ForeignCommand) -> bool:
    """True for a Python script without flags that has no reader of its own."""
    script = _script(started(command).words)
    return script is not None and PurePosixPath(script).name not in SCRIPTS


def from_script(command: ForeignCommand, repair: bool) -> Translation:
    """Translate the one call of a script; there is nothing to repair."""
    start = started(command)
    place = _script(start.words)
    assert place is not None
    script = read_script(command.read(place), place)
    found = Translation(notes=list(start.notes), environment=dict(start.environment))
    if "GRPOTrainer" in script.calls:
        from_trainer(script, start, command, found)
    elif "train_with_grpo" in script.calls:
        from_tutorial(script, found)
        found.launch = start.torchrun
    else:
        raise ConfigError(f"{place} calls neither GRPOTrainer nor train_with_grpo; give a script that does")
    return found


def _script(words: tuple[str, ...]) -> str | None:
    """Script of a command without flags."""
    if words[:1] and PYTHON.fullmatch(PurePosixPath(words[0]).name):
        words = words[1:]
    return words[0] if len(words) == 1 and words[0].endswith(".py") else None
