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


def from_script(command: ForeignCommand, repair: bool) -> Translation | None:
    """Translate the one call of a Python script without flags; there is nothing to repair."""
    start = started(command)
    words = start.words
    if words[:1] and PYTHON.fullmatch(PurePosixPath(words[0]).name):
        words = words[1:]
    if len(words) != 1 or not words[0].endswith(".py") or PurePosixPath(words[0]).name in SCRIPTS:
        return None
    script = read_script(command.read(words[0]), words[0])
    found = Translation(notes=list(start.notes), environment=dict(start.environment))
    if "GRPOTrainer" in script.calls:
        from_trainer(script, start, found)
    elif "train_with_grpo" in script.calls:
        from_tutorial(script, found)
        found.launch = start.torchrun
    else:
        raise ConfigError(f"{words[0]} calls neither GRPOTrainer nor train_with_grpo; give a script that does")
    return found
