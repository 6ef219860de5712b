"""A checkpoint under the name that transformers gives it: `output_dir/checkpoint-{global_step}`, a symbolic link.

Inside, the files of `model/` are linked beside it, so that `from_pretrained` opens that name as it opens TRL's.
"""

import json
from pathlib import Path

from paceline.checkpoints.finding import Checkpoint

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
