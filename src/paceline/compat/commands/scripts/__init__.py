"""Python scripts that call TRL's `GRPOTrainer` or the tutorial's `train_with_grpo`: parsed, never run.

reading.py   the calls of a script and their arguments, as far as they are literal; load_dataset as an address
trainers.py  GRPOTrainer, GRPOConfig, LoraConfig and load_dataset, as flags of `trl grpo`
tutorial.py  train_with_grpo
"""

from pathlib import PurePosixPath

from typing_extensions import override

from paceline.compat.commands.launching import PYTHON, started
from paceline.compat.commands.scripts.reading import read_script
from paceline.compat.commands.scripts.trainers import from_trainer
from paceline.compat.commands.scripts.tutorial import from_tutorial
from paceline.compat.commands.translation import CommandReader, ForeignCommand, Translation
from paceline.errors import ConfigError

OTHERS = ("rl_example.py", "rl_example_zero_bubble.py")
"""Scripts with a reader of their own."""


class Scripts(CommandReader):
    """Reads commands that run a Python script of TRL."""

    name = "a script of TRL or of GRPO From Scratch"
    example = "python train_grpo.py"

    @override
    def recognises(self, command: ForeignCommand) -> bool:
        script = _script(started(command).words)
        return script is not None and PurePosixPath(script).name not in OTHERS

    @override
    def translate(self, command: ForeignCommand, *, repair: bool) -> Translation:
        start = started(command)
        place = _script(start.words)
        assert place is not None
        script = read_script(command.read(place), place)
        about = Translation(notes=start.notes, environment=dict(start.environment))
        if "GRPOTrainer" in script.calls:
            return about + from_trainer(script, start, command)
        if "train_with_grpo" in script.calls:
            return about + from_tutorial(script) + Translation(launch=start.torchrun)
        raise ConfigError(f"{place} calls neither GRPOTrainer nor train_with_grpo; give a script that does")


def _script(words: tuple[str, ...]) -> str | None:
    """Script of a command without flags."""
    if words[:1] and PYTHON.fullmatch(PurePosixPath(words[0]).name):
        words = words[1:]
    return words[0] if len(words) == 1 and words[0].endswith(".py") else None
