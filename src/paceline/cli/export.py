"""`paceline export`: a run's checkpoint to a directory that transformers or peft loads."""

from paceline.checkpoints.finding import newest_checkpoint, read_checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.cli.arguments import directories
from paceline.cli.libraries import loading_libraries
from paceline.errors import DONE, CheckpointError, ConfigError
from paceline.training.setup.configuration import read_run_configuration, refuse_foreign_code

TRUST = "--trust-remote-code"
USAGE = """usage: paceline export RUN [DIRECTORY] [--trust-remote-code]

Writes the model of a run's newest whole checkpoint, whatever ranks wrote it, as the end of the run would: a directory
that transformers loads, or peft where an adapter was trained, with a card of what the run measured up to there. RUN may
also be one of its checkpoints, such as runs/mine/checkpoints/step-000100. Without DIRECTORY it is the run's `final`.
Takes the memory of one whole model. Where the run's model came with Python code of its own, --trust-remote-code has to
be said here too.
"""


def run(argv: list[str]) -> int:
    """Export a checkpoint; returns the exit status."""
    if "-h" in argv or "--help" in argv:
        print(USAGE, end="")
        return DONE
    trusted = ("trust_remote_code",) if TRUST in argv else ()
    argv = [word for word in argv if word != TRUST]
    place, *target = directories(argv, command="export", form="RUN [DIRECTORY]", at_most=2)
    root = place.parent.parent if place.parent.name == "checkpoints" else place
    config = read_run_configuration(root, flag="export")
    refuse_foreign_code(config, root / "config.yaml", trusted)
    out = target[0] if target else root / "final"
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"export would write into {out}, which is there; name a directory that is not")
    checkpoint, damaged = newest_checkpoint(place / "checkpoints") if place == root else (read_checkpoint(place), ())
    if checkpoint is None:
        raise CheckpointError(f"export {place} has no checkpoint yet; train with --save-steps, or until the run ends")
    for sentence in damaged:
        print(sentence)
    # Loading torch takes seconds: whatever can be refused is refused before these lines.
    with loading_libraries():
        from paceline.training.card import card_facts, write_card
        from paceline.training.trainer import export_checkpoint

    export_checkpoint(config, checkpoint, out)
    step = checkpoint.state.step
    card = write_card(card_facts(RunDir(root), config, out, step=step), out)
    print(f"step {step}: {out} (its card: {card.name})")
    return DONE
