"""The start of a trainer's run, in an empty directory or at a checkpoint, and transformers' names of checkpoints.

`output_dir/checkpoint-{global_step}` is a symbolic link; the files of `model/` are linked inside it too, so that
`from_pretrained` opens that name as it opens one of TRL's.
"""

from contextlib import ExitStack
from pathlib import Path

from transformers import TrainerState

from paceline.checkpoints.existing_runs import LOCK, WRITTEN, WriteLock, holds_work
from paceline.checkpoints.finding import Checkpoint, free_name
from paceline.errors import CheckpointError, ConfigError, StorageError

STATE_FILE = "trainer_state.json"
PREFIX = "checkpoint-"


def resume_point(output_dir: Path, resume: str | Path | bool | None) -> Path | bool:
    """What a session resumes from: False for a new run, True for the newest checkpoint, else the path of one.

    ConfigError for a run that nothing says to go on with, CheckpointError for another run's checkpoint or TRL's.
    """
    root = output_dir / "checkpoints"
    if resume is None or resume is False:
        if holds_work(output_dir):
            raise ConfigError(existing_run(output_dir))
        return False
    if resume is True or Path(resume).resolve() in (output_dir.resolve(), root.resolve()):
        if not (output_dir / "config.yaml").exists():
            for place in sorted(output_dir.glob(f"{PREFIX}*")):
                _refuse_trl_checkpoint(place, place)
        return True
    place = Path(resume).resolve()
    _refuse_trl_checkpoint(place, resume)
    if place.parent != root.resolve():
        raise CheckpointError(
            f"resume_from_checkpoint must be a checkpoint of output_dir ({root}/step-...), got {resume}; set "
            "output_dir to the run that it belongs to, or give its model/ directory as the model of a new run"
        )
    return root / place.name


def set_run_aside(output_dir: Path) -> str:
    """Move what an earlier `train()` of one trainer wrote, links to checkpoints too; a sentence that says where.

    A process killed in between leaves a run that goes on from its checkpoints, or a place without config.yaml that is
    no run and is refused as such.

    Raises:
        CheckpointError: another process writes to the directory.
        StorageError: the disk refused.
    """
    said = "train() was called before: this run starts from its weights"
    if not output_dir.exists():
        return said
    try:
        with ExitStack() as releasing:
            releasing.callback(WriteLock(output_dir).release)
            names = belongings(output_dir)
            if not names:
                return said
            folder = free_name(output_dir / "aside", "run")
            folder.mkdir(parents=True)
            for name in names:
                (output_dir / name).rename(folder / name)
    except OSError as error:
        raise StorageError(f"{output_dir} cannot be written ({error.strerror}); make it writable") from error
    return f"{said}, and what it wrote is in {folder}"


def belongings(output_dir: Path) -> list[str]:
    """Names of what a run has in its directory; what a resume must find comes last, the checkpoints after the rest."""
    last = ("config.yaml", "checkpoints")
    names = [place.name for place in output_dir.glob(f"{PREFIX}*") if place.is_symlink()]
    names += [name for name in WRITTEN if name not in (LOCK, "aside", *last)]
    return [name for name in (*names, *last) if (output_dir / name).exists() or (output_dir / name).is_symlink()]


def existing_run(output_dir: Path) -> str:
    """Error text for a directory that already holds a run, with the remedy."""
    return (
        f"output_dir {output_dir} already holds a run; continue it with train(resume_from_checkpoint=True), "
        "or give another directory"
    )


def _refuse_trl_checkpoint(place: Path, given: object) -> None:
    """Refuse transformers' own checkpoint: it has a trainer state, and no progress file."""
    if (place / STATE_FILE).exists() and not (place / "progress.json").exists():
        raise CheckpointError(
            f"{given} is a checkpoint that TRL (transformers' Trainer) wrote, whose optimiser state cannot be gone on "
            f"with here; start a new run from its weights with model={str(given)!r}"
        )


def link_checkpoint(output_dir: Path, checkpoint: Checkpoint, global_step: int) -> Path:
    """Link a checkpoint under transformers' name and drop broken links; a real directory of that name stays."""
    drop_broken_links(output_dir)
    link = output_dir / f"{PREFIX}{global_step}"
    if link.is_symlink():
        link.unlink()
    if link.exists():
        return checkpoint.path
    link.symlink_to(checkpoint.path.relative_to(output_dir), target_is_directory=True)
    return link


def drop_broken_links(output_dir: Path) -> None:
    """Remove links whose checkpoints are gone."""
    for link in output_dir.glob(f"{PREFIX}*"):
        if link.is_symlink() and not link.exists():
            link.unlink()


def write_state(state: TrainerState, folder: Path) -> None:
    """Write the state of a checkpoint to a file, whole or not at all."""
    draft = folder / f".{STATE_FILE}.new"
    state.save_to_json(str(draft))
    draft.replace(folder / STATE_FILE)
