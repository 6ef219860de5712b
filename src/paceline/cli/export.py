"""`paceline export`: a run's checkpoint to a directory that transformers or peft loads."""

from pathlib import Path

from paceline.cli.configuration import read_run_configuration
from paceline.cli.status import DONE
from paceline.errors import CheckpointError, ConfigError

USAGE = """usage: paceline export RUN [DIRECTORY]

Writes the model of a run's newest whole checkpoint, whatever ranks wrote it, as the end of the run would: a directory
that transformers loads, or peft where an adapter was trained. RUN may also be one of its checkpoints, such as
runs/mine/checkpoints/step-000100. Without DIRECTORY it is the run's `final`. Takes the memory of one whole model.
"""


def run(argv: list[str]) -> int:
    """Export as argv says; the exit status."""
    if "-h" in argv or "--help" in argv:
        print(USAGE, end="")
        return DONE
    flags = [word for word in argv if word.startswith("-")]
    if flags:
        raise ConfigError(f"there is no option {flags[0]}; `paceline export RUN [DIRECTORY]` takes directories only")
    if len(argv) not in (1, 2):
        raise ConfigError(f"export takes a run and a directory, got {len(argv)}; write `paceline export runs/NAME`")
    place, *target = (Path(word).expanduser() for word in argv)
    root = place.parent.parent if place.parent.name == "checkpoints" else place
    _export(place, root, target[0] if target else root / "final")
    return DONE


def _export(place: Path, root: Path, target: Path) -> None:
    config = read_run_configuration(root, flag="export")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"export would write into {target}, which is there; name a directory that is not")
    # Loading torch takes seconds: whatever can be refused is refused before these lines.
    from paceline.checkpoint import newest_checkpoint, read_checkpoint
    from paceline.train import export_checkpoint

    checkpoint, damaged = newest_checkpoint(place / "checkpoints") if place == root else (read_checkpoint(place), ())
    if checkpoint is None:
        raise CheckpointError(f"export {place} has no checkpoint yet; train with --save-steps, or until the run ends")
    for sentence in damaged:
        print(sentence)
    export_checkpoint(config, checkpoint, target)
    print(f"step {checkpoint.progress.step}: {target}")
