"""ColossalChat's distributed reinforcement learning: the flags of `rl_example.py` and its zero-bubble variant.

arguments.py  every flag with its default, and argv parsed as the scripts parse it
batches.py    divisibility rules of batch sizes, the nearest valid sizes, and the options: sizes, processes, staleness
tasks.py      model, rows, prompts, rewards, evaluation
objective.py  the four algorithms, the optimiser and sampling
"""

from pathlib import PurePosixPath

from typing_extensions import override

from paceline.compat.commands.colossalchat.arguments import (
    SCRIPTS,
    ColossalChatArguments,
    ColossalChatCommand,
    read,
    script_of,
)
from paceline.compat.commands.colossalchat.batches import rounds, settle
from paceline.compat.commands.colossalchat.objective import objective, sampling
from paceline.compat.commands.colossalchat.tasks import tasks
from paceline.compat.commands.translation import CommandReader, ForeignCommand, Note, Translation


def keeping(read: ColossalChatCommand) -> Translation:
    """Options on checkpoints, rollouts, trackers and profiles."""
    return _directory(read.arguments) + _profile(read.arguments)


def _directory(one: ColossalChatArguments) -> Translation:
    place = str(PurePosixPath(one.save_dir) / one.project.replace(" ", "_"))
    options = {"output_dir": place, "save_steps": one.save_interval, "project": one.project}
    notes = (
        Note(
            "changed",
            "-sd -esd -rsd",
            f"one run directory, {place}, holds checkpoints/, evals/ and rollouts/, every completion of every "
            "step instead of a few of every twentieth; a directory that holds a run is refused",
        ),
        Note(
            "mended",
            "-si",
            "a checkpoint holds all that makes the next step, and `paceline train --resume` goes on from it, "
            "where theirs waited for ever; the newest two are kept (--save-total-limit)",
        ),
        Note("changed", "-p", "no account is needed; --report-to wandb sends the numbers to one, under this project"),
    )
    return Translation(options=options, notes=notes)


def _profile(one: ColossalChatArguments) -> Translation:
    if not one.enable_profiling:
        return Translation()
    text = "writes timeline.json, which Perfetto opens; completions end where they end, where there all ran to -mnt"
    return Translation(options={"profile": True}, notes=(Note("changed", "--enable-profiling", text),))


PARTS = (tasks, sampling, objective, rounds, keeping)
"""Functions that each make some of the options from all arguments."""


class ColossalChat(CommandReader):
    """Reads commands of ColossalChat."""

    name = "ColossalChat"
    example = "python rl_example.py --dataset D --model M -t 4 -i 4 -b vllm ..."

    @override
    def recognises(self, command: ForeignCommand) -> bool:
        return script_of(command.words) in SCRIPTS

    @override
    def translate(self, command: ForeignCommand, *, repair: bool) -> Translation:
        found = read(command.words)
        arguments, notes = settle(found.arguments, repair=repair)
        settled = ColossalChatCommand(arguments=arguments, given=found.given, script=found.script)
        start = Translation(notes=(*found.repeated, *notes), environment=command.environment)
        return sum((part(settled) for part in PARTS), start)
