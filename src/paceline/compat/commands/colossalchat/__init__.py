"""ColossalChat's distributed reinforcement learning: the flags of `rl_example.py` and its zero-bubble variant.

arguments.py  every flag with its default, and argv parsed as the scripts parse it
batches.py    divisibility rules of batch sizes, the nearest valid sizes, and the options: sizes, processes, staleness
tasks.py      model, rows, prompts, rewards, evaluation; the four algorithms, the optimiser and sampling
"""

from pathlib import PurePosixPath

from paceline.compat.commands.colossalchat.arguments import SCRIPTS, ColossalChatArguments, read, script_of
from paceline.compat.commands.colossalchat.batches import rounds, settle
from paceline.compat.commands.colossalchat.tasks import objective, sampling, tasks
from paceline.compat.commands.translation import ForeignCommand, Translation


def from_colossalchat(command: ForeignCommand, repair: bool) -> Translation | None:
    """Translate a command that runs one of the scripts."""
    if script_of(command.words) not in SCRIPTS:
        return None
    translation = Translation(environment=dict(command.environment))
    args = settle(read(command.words, translation), translation, repair=repair)
    for part in (tasks, sampling, objective, rounds, keeping):
        part(args, translation)
    return translation


def keeping(args: ColossalChatArguments, translation: Translation) -> None:
    """Add the options of checkpoints, rollouts, trackers and profiles."""
    directory = str(PurePosixPath(args.save_dir) / args.project.replace(" ", "_"))
    translation.decide(output_dir=directory, save_steps=args.save_interval, project=args.project)
    text = (
        f"one run directory, {directory}, holds checkpoints/, evals/ and rollouts/, every completion of every step "
        "instead of a few of every twentieth; a directory that holds a run is refused"
    )
    translation.note("changed", "-sd -esd -rsd", text)
    text = (
        "a checkpoint holds all that makes the next step, and `paceline train --resume` goes on from it, where theirs "
        "waited for ever; the newest two are kept (--save-total-limit)"
    )
    translation.note("mended", "-si", text)
    translation.note(
        "changed", "-p", "no account is needed; --report-to wandb sends the numbers to one, under this project"
    )
    if args.enable_profiling:
        translation.decide(profile=True)
        text = "writes timeline.json, which Perfetto opens; completions end where they end, where there all ran to -mnt"
        translation.note("changed", "--enable-profiling", text)
