"""Search for a run's newest whole checkpoint; damaged ones are set aside."""

import json
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoints.digests import file_digest
from paceline.errors import CheckpointError

_STEP_DIRECTORY = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """Position of a run between two steps."""

    step: int
    """Steps completed."""
    position: int
    """Tasks taken in data order, over all epochs."""
    policy_version: int
    """Optimiser updates completed."""
    entropy_coef: float | None = None
    """Coefficient of an adaptive entropy bonus; None: it is none, or no update was made."""
    last_entropy: float | None = None
    """Mean entropy of the last update under it, in nats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    state: TrainingState

    @property
    def model(self) -> Path:
        """Directory of the model: for `transformers`, for `peft` with an adapter, or of pieces."""
        return self.path / "model"


def run_and_checkpoint(path: Path, base: Path = Path()) -> tuple[Path, Path | None]:
    """Return the run directory that a path is, or is a checkpoint of, and the checkpoint; None: it is the run's.

    A relative path starts at the directory `base`. A checkpoint may be named by a copy of it beside `checkpoints/`.

    >>> run_and_checkpoint(Path("runs/a/checkpoints/step-000002"))[0].as_posix()
    'runs/a'
    """
    whole = base / path
    if (whole / "config.yaml").is_file():  # a run may lie in such a folder too
        return path, None
    checkpoint = original(whole, whole.parent / "checkpoints")
    if checkpoint is not None:
        path = whole = checkpoint
    if whole.parent.name != "checkpoints":
        return path, None
    return (path if len(path.parts) > 2 else whole).parent.parent, path


def original(copy: Path, root: Path) -> Path | None:
    """Return the checkpoint below `root` of which a directory, such as TRL's `checkpoint-N`, is a copy; None without.

    A copy has the same manifest, which holds the digest of every file, whatever its name and location.
    """
    return originals([copy], root).get(copy)


def originals(copies: Iterable[Path], root: Path) -> dict[Path, Path]:
    """Return the checkpoint of each directory that is a copy of one; every manifest is read once."""
    contents = {directory: file.read_bytes() for directory in copies if (file := directory / "manifest.json").is_file()}
    manifests = [(directory, directory / "manifest.json") for _, directory in numbered(root)] if contents else []
    known = {file.read_bytes(): directory for directory, file in reversed(manifests) if file.is_file()}
    return {directory: known[content] for directory, content in contents.items() if content in known}


def newest_checkpoint(root: Path, *, by_size: bool = False) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """Return the newest whole and unchanged checkpoint, and a sentence for each newer damaged one.

    `by_size` is as in `read_checkpoint`. CheckpointError: none is whole, and a new start would forget the run.
    """
    damaged: list[str] = []
    for _, directory in reversed(numbered(root)):
        try:
            return read_checkpoint(directory, by_size=by_size), tuple(damaged)
        except CheckpointError as error:
            damaged.append(str(error))
    if damaged:
        raise CheckpointError(f"{root} holds no whole checkpoint; restore one or start a new run: {'; '.join(damaged)}")
    return None, ()


def read_checkpoint(directory: Path, *, by_size: bool = False) -> Checkpoint:
    """Read a checkpoint's directory; CheckpointError if a file is missing or is not as it was saved.

    With `by_size` a file of the right size counts as unchanged: hashing takes a second per 1.5 GB.
    """
    if not directory.is_dir():
        there = ", ".join(path.name for _, path in numbered(directory.parent)) or "none"
        raise CheckpointError(f"{directory} is not there; the checkpoints of this run: {there}")
    try:
        refuse_no_file(directory / "manifest.json", directory / "progress.json")
        manifest = json.loads((directory / "manifest.json").read_text())
        for name, expected in manifest.items():
            file = directory / name
            refuse_no_file(file)
            if (file.stat().st_size != expected["size"]) if by_size else (file_digest(file) != expected):
                raise CheckpointError(f"{file} is not the file that was saved; the checkpoint is skipped")
        state = TrainingState(**json.loads((directory / "progress.json").read_text()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{directory} is not a whole checkpoint and is skipped: {error}") from error
    return Checkpoint(path=directory, state=state)


def refuse_no_file(*files: Path) -> None:
    """Refuse, with a CheckpointError, a link or a device in the place of a checkpoint's file."""
    for file in files:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise CheckpointError(f"{file} is not the file that was saved, but a link or a device; put the file there")


def checkpoints_before(root: Path, step: int) -> Iterator[Checkpoint]:
    """Yield the whole checkpoints of steps before this one, newest first, each read on demand."""
    for number, directory in reversed(numbered(root)):
        if number < step:
            with suppress(CheckpointError):
                yield read_checkpoint(directory)


def set_damaged_aside(root: Path, newest: Checkpoint) -> list[str]:
    """Rename checkpoints newer than the newest whole one, to be inspected; return a sentence for each."""
    sentences = []
    for number, directory in numbered(root):
        if number > newest.state.step:
            aside = free_name(root, f"damaged-{directory.name}")
            directory.rename(aside)
            sentences.append(f"{directory} is kept as {aside}")
    return sentences


def free_name(root: Path, name: str) -> Path:
    """Return a free path of that name, with a number appended if needed: a step may be set aside more than once."""
    count, path = 1, root / name
    while path.exists():
        count, path = count + 1, root / f"{name}-{count + 1}"
    return path


def step_directory(root: Path, step: int) -> Path:
    """Return the directory of a step's checkpoint."""
    return root / f"step-{step:06d}"


def discard(directory: Path) -> None:
    """Remove a checkpoint, renamed first: one that is half removed must not look whole."""
    doomed = directory.with_name(f"discarded-{directory.name}")
    directory.rename(doomed)
    shutil.rmtree(doomed)


def numbered(root: Path) -> list[tuple[int, Path]]:
    """Return steps and their directories in order, ignoring copies under other names."""
    named = ((_STEP_DIRECTORY.fullmatch(path.name), path) for path in root.glob("step-*"))
    return sorted((int(match[1]), path) for match, path in named if match is not None)
