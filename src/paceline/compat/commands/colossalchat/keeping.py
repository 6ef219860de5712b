"""What is written down and where: checkpoints, rollouts, trackers, profiles."""

from pathlib import PurePosixPath

from paceline.compat.commands.colossalchat.arguments import Arguments, Read
from paceline.compat.commands.translation import Note, Translation


def keeping(read: Read) -> Translation:
    """Everything that stays when the run is over."""
    return _directory(read.arguments) + _profile(read.arguments)


def _directory(one: Arguments) -> Translation:
    place = str(PurePosixPath(one.save_dir) / one.project.replace(" ", "_"))
    options = {"output_dir": place, "save_steps": one.save_interval, "project": one.project}
    notes = (
        Note(
            kind="changed",
            about="-sd -esd -rsd",
            text=f"one run directory, {place}, holds checkpoints/, evals/ and rollouts/, every completion of every "
            "step instead of a few of every twentieth; a directory that holds a run is refused",
        ),
        Note(
            kind="mended",
            about="-si",
            text="a checkpoint holds all that makes the next step, and `paceline train --resume` goes on from it, "
            "where theirs waited for ever; the newest two are kept (--save-total-limit)",
        ),
        Note(
            kind="changed",
            about="-p",
            text="no account is needed; --report-to wandb sends the numbers to one, under this project",
        ),
    )
    return Translation(options=options, notes=notes)


def _profile(one: Arguments) -> Translation:
    if not one.enable_profiling:
        return Translation()
    text = "writes timeline.json, which Perfetto opens; completions end where they end, where there all ran to -mnt"
    return Translation(options={"profile": True}, notes=(Note(kind="changed", about="--enable-profiling", text=text),))
