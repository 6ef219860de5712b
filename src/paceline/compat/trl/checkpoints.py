"""The start of a trainer's run, in an empty directory or at a checkpoint, and transformers' names of checkpoints.

`output_dir/checkpoint-{global_step}` has the files of a checkpoint, those of its `model/` also beside the others, so
that `from_pretrained` opens that name as it opens one of TRL's. They are hard links, or copies where the disk has none:
a program may remove, rename, move and pack the directory as one of TRL's, and it is whole without the run.
"""

import dataclasses
import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerState

from paceline.base_directory import local_path
from paceline.checkpoints.existing_runs import LOCK, WRITTEN, WriteLock, holds_work
from paceline.checkpoints.finding import Checkpoint, free_name, original, originals
from paceline.checkpoints.run_files import link_or_copy, write_or_explain
from paceline.errors import CheckpointError, ConfigError, StorageError

STATE_FILE = "trainer_state.json"
PREFIX = "checkpoint-"
PROGRESS = "progress.json"


def resume_point(output_dir: Path, resume: str | Path | bool | None, *, named: str) -> Path | bool:
    """What a session resumes from: False for a new run, True for the newest checkpoint, else the path of one.

    `output_dir` is absolute, `named` how the program calls it; a relative `resume` stands in the same directory.

    ConfigError for a run that nothing says to go on with, CheckpointError for another run's checkpoint or TRL's.
    """
    root = output_dir / "checkpoints"
    if resume is None or resume is False:
        if holds_work(output_dir):
            raise ConfigError(existing_run(named))
        return False
    if resume is True or local_path(resume).resolve() in (output_dir.resolve(), root.resolve()):
        if not (output_dir / "config.yaml").exists():
            for folder in sorted(output_dir.glob(f"{PREFIX}*")):
                _refuse_trl_checkpoint(folder, folder)
        return True
    folder = local_path(resume).resolve()
    _refuse_trl_checkpoint(folder, resume)
    checkpoint = folder if folder.parent == root.resolve() else original(folder, root)
    if checkpoint is None:
        raise CheckpointError(
            f"resume_from_checkpoint must be a checkpoint of output_dir ({named}/{PREFIX}...) that is still in its "
            f"checkpoints/, got {resume}; give True for the newest one, set output_dir to the run that it belongs to, "
            "or give its model/ directory as the model of a new run"
        )
    return root / checkpoint.name


def set_run_aside(output_dir: Path) -> str:
    """Move what an earlier `train()` of one trainer wrote, transformers' names too; a sentence that says where.

    A process killed in between leaves a run that goes on from its checkpoints, or a place without config.yaml that is
    no run and is refused as such.

    Raises:
        CheckpointError: another process writes to the directory.
        StorageError: the disk refused.
    """
    sentence = "train() was called before: this run starts from its weights"
    if not output_dir.exists():
        return sentence
    try:
        with ExitStack() as releasing:
            releasing.callback(WriteLock(output_dir).release)
            names = belongings(output_dir)
            if not names:
                return sentence
            folder = free_name(output_dir / "aside", "run")
            folder.mkdir(parents=True)
            for name in names:
                (output_dir / name).rename(folder / name)
    except OSError as error:
        raise StorageError(f"{output_dir} cannot be written ({error.strerror}); make it writable") from error
    return f"{sentence}, and what it wrote is in {folder}"


def belongings(output_dir: Path) -> list[str]:
    """Names of what a run has in its directory; what a resume must find comes last, the checkpoints after the rest."""
    last = ("config.yaml", "checkpoints")
    names = [folder.name for folder in named_directories(output_dir).values()]
    names += [name for name in WRITTEN if name not in (LOCK, "aside", *last)]
    return [name for name in (*names, *last) if (output_dir / name).exists()]


def existing_run(output_dir: object) -> str:
    """Error text for a directory that already holds a run, with the remedy."""
    return (
        f"output_dir {output_dir} already holds a run; continue it with train(resume_from_checkpoint=True), "
        "or give another directory"
    )


def _refuse_trl_checkpoint(folder: Path, named: object) -> None:
    """Refuse transformers' own checkpoint: it has a trainer state, and no progress file."""
    if (folder / STATE_FILE).exists() and not (folder / PROGRESS).exists():
        raise CheckpointError(
            f"{named} is a checkpoint that TRL (transformers' Trainer) wrote, whose optimiser state cannot be gone on "
            f"with here; start a new run from its weights with model={str(named)!r}"
        )


def name_checkpoint(output_dir: Path, checkpoint: Checkpoint, global_step: int) -> Path:
    """Make the directory by which transformers knows a checkpoint, whole or not at all (StorageError).

    A directory of that name that is not ours stays, and the checkpoint keeps its own name alone.
    """
    folder = output_dir / f"{PREFIX}{global_step}"
    with _refused_by_the_disk(folder):
        if _is_ours(folder):
            shutil.rmtree(folder)
        if folder.exists():
            return checkpoint.path
        draft = checkpoint.path.with_name(f"draft-{folder.name}")  # what is left of a killed attempt goes with others
        for file in sorted(path for path in checkpoint.path.rglob("*") if path.is_file()):
            target = draft / file.relative_to(checkpoint.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.name == STATE_FILE:  # the one file that programs write anew
                shutil.copyfile(file, target)
            else:
                link_or_copy(file, target)
        draft.rename(folder)
    return folder


def add_model_files(folder: Path, checkpoint: Checkpoint) -> None:
    """Put the files of a checkpoint's model beside its other files, unless a program saved some of these names."""
    with _refused_by_the_disk(folder):
        for file in sorted(checkpoint.model.iterdir()) if folder != checkpoint.path else ():
            target = folder / file.name
            if file.is_dir() and not target.exists():
                shutil.copytree(file, target)
            elif not target.exists():
                link_or_copy(file, target)


def forget(output_dir: Path, numbers: Collection[int]) -> None:
    """Remove our directories of these global steps, if they are there."""
    named = named_directories(output_dir)
    for number in named.keys() & {*numbers}:
        shutil.rmtree(named[number])


def named_directories(output_dir: Path) -> dict[int, Path]:
    """Return our directories under transformers' names, by the global step in the name."""
    numbered = ((folder.name.removeprefix(PREFIX), folder) for folder in sorted(output_dir.glob(f"{PREFIX}*")))
    return {int(number): folder for number, folder in numbered if number.isdecimal() and _is_ours(folder)}


def named_checkpoints(output_dir: Path) -> frozenset[int]:
    """Return the global steps of those whose checkpoint is still in the run."""
    named, root = named_directories(output_dir), output_dir / "checkpoints"
    there = originals(named.values(), root)
    return frozenset(number for number, folder in named.items() if folder in there)


def step_of_name(checkpoint: str, updates_per_step: int) -> int:
    """Return the step of a checkpoint that is named by its global step, or by its own name, wherever it lies.

    >>> step_of_name("runs/a/checkpoint-6", 2), step_of_name("/data/a/checkpoints/step-000003", 2)
    (3, 3)
    """
    kind, _, number = Path(checkpoint).name.rpartition("-")
    return int(number) if kind == "step" else int(number) // updates_per_step


def _is_ours(folder: Path) -> bool:
    return not folder.is_symlink() and (folder / PROGRESS).is_file()


@contextmanager
def _refused_by_the_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written ({error.strerror}); make room for it, then train(resume_from_checkpoint=True)"
        ) from error


def write_state(state: TrainerState, folder: Path) -> None:
    """Write the state of a checkpoint to a file, whole or not at all; StorageError if the disk refuses."""
    content = json.dumps(dataclasses.asdict(state), indent=2, sort_keys=True) + "\n"
    write_or_explain(folder / STATE_FILE, content.encode())


def write_metrics(folder: Path, split: str, metrics: Mapping[str, Any], *, combined: bool) -> None:
    """Write `{split}_results.json`, and these numbers over those that `all_results.json` has (StorageError)."""
    named = {f"{split}_results.json": dict(metrics)}
    if combined:
        everything = folder / "all_results.json"
        known = json.loads(everything.read_text(encoding="utf-8")) if everything.is_file() else {}
        named[everything.name] = {**known, **metrics}
    for name, numbers in named.items():
        write_or_explain(folder / name, json.dumps(numbers, indent=4, sort_keys=True).encode())
