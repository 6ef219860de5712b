"""Where a trainer's run begins: in an empty place, or at a checkpoint of its own run directory."""

import json
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoints.finding import Checkpoint, newest_checkpoint, read_checkpoint, set_damaged_aside
from paceline.checkpoints.places import holds_work
from paceline.errors import CheckpointError, ConfigError

Resume = str | Path | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Where a run begins."""

    resumed: bool
    checkpoint: Checkpoint | None
    """None: at its first step, also where a run was killed before its first checkpoint."""
    damaged: tuple[str, ...] = ()


def starting_point(output_dir: Path, resume: Resume) -> Start:
    """A new run where no step was finished yet, or the checkpoint to go on from.

    Raises:
        ConfigError: the place holds a run and nothing says to go on with it.
        CheckpointError: there is no run, or the checkpoint is damaged, another run's or TRL's.
    """
    root = output_dir / "checkpoints"
    if resume is None or resume is False:
        if holds_work(output_dir):
            raise ConfigError(existing_run(output_dir))
        return Start(resumed=False, checkpoint=None)
    if resume is True or Path(resume).resolve() in (output_dir.resolve(), root.resolve()):
        _refuse_trl_run(output_dir)
        checkpoint, damaged = newest_checkpoint(root)
        aside = set_damaged_aside(root, checkpoint) if checkpoint is not None else []
        return Start(resumed=True, checkpoint=checkpoint, damaged=(*damaged, *aside))
    place = Path(resume).resolve()
    _refuse_trl_checkpoint(place, resume)
    if place.parent != root.resolve():
        raise CheckpointError(
            f"resume_from_checkpoint must be a checkpoint of output_dir ({root}/step-...), got {resume}; set "
            "output_dir to the run that it belongs to, or give its model/ directory as the model of a new run"
        )
    return Start(resumed=True, checkpoint=read_checkpoint(root / place.name))


def existing_run(output_dir: Path) -> str:
    """Why a place cannot hold a new run, and what to do."""
    return (
        f"output_dir {output_dir} already holds a run; continue it with train(resume_from_checkpoint=True), "
        "or give another directory"
    )


def _refuse_trl_run(output_dir: Path) -> None:
    if (output_dir / "config.yaml").exists():
        return
    for place in sorted(output_dir.glob(f"{PREFIX}*")):
        _refuse_trl_checkpoint(place, place)


def _refuse_trl_checkpoint(place: Path, given: object) -> None:
    """transformers' own checkpoints have a state, and no record of progress."""
    if (place / "trainer_state.json").exists() and not (place / "progress.json").exists():
        raise CheckpointError(
            f"{given} is a checkpoint that TRL (transformers' Trainer) wrote, whose optimiser state cannot be gone on "
            f"with here; start a new run from its weights with model={str(given)!r}"
        )


PREFIX = "checkpoint-"


def link_checkpoint(output_dir: Path, checkpoint: Checkpoint, global_step: int) -> Path:
    """Make the link, and remove those whose checkpoints are gone; a directory of that name is left alone."""
    drop_broken_links(output_dir)
    link = output_dir / f"{PREFIX}{global_step}"
    if link.is_symlink():
        link.unlink()
    if link.exists():
        return checkpoint.path
    link.symlink_to(checkpoint.path.relative_to(output_dir), target_is_directory=True)
    return link


def link_model_files(checkpoint: Checkpoint) -> None:
    """Link the model's files beside `model/`, but for names that are taken: a program may have saved its own."""
    for file in checkpoint.model.iterdir():
        link = checkpoint.path / file.name
        if not link.exists():
            link.symlink_to(file.relative_to(checkpoint.path))


def drop_broken_links(output_dir: Path) -> None:
    """Remove the links whose checkpoints are gone."""
    for link in output_dir.glob(f"{PREFIX}*"):
        if link.is_symlink() and not link.exists():
            link.unlink()


def updates_at(place: Path) -> int | None:
    """Updates of the weights in a checkpoint; None where the place is none."""
    file = place / "progress.json"
    return int(json.loads(file.read_text(encoding="utf-8"))["policy_version"]) if file.exists() else None
