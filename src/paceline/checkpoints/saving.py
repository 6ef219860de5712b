"""Checkpoints written by all ranks: each writes its part, the first one also shared files and the commit.

First all ranks together agree on who writes what, and take copies of the state. Writing and syncing take longer and may
be done in a thread while training continues, over a side process group. Space is checked first: on the disk for
files, in main memory for copies.
"""

import json
import shutil
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.checkpoints.digests import FileDigest, file_digest
from paceline.checkpoints.finding import Checkpoint, TrainingState, discard, numbered
from paceline.checkpoints.optimizer_state import optimizer_part
from paceline.checkpoints.run_files import BackgroundWrite
from paceline.errors import ConfigError, StorageError
from paceline.models.parallel.pieces import Writer, part_of, saved_tensors
from paceline.models.parallel.ranks import ONE_RANK, Ranks, TextGroup
from paceline.models.parallel.staging import StagingBuffers
from paceline.runtime.whole_files import sync

COPY_SHARE = 0.5
"""Largest share of a machine's free main memory for copies: the run itself continues to allocate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceNeeded:
    """A rank's needs for a checkpoint."""

    nbytes: int
    """Bytes this rank writes, and stages if they are copied."""
    free: int | None
    """Bytes of free main memory on its machine; None if unknown."""
    kept: int
    """Bytes of its staging buffers."""
    host: str


def gather_needs(ranks: Ranks, *, nbytes: int, staging: StagingBuffers | None) -> list[SpaceNeeded]:
    """Gather the needs of all ranks, by rank; all of them make this call. RankLost: one is gone or silent."""
    free, kept = (None, 0) if staging is None else (staging.free(), staging.nbytes)
    need = SpaceNeeded(nbytes=nbytes, free=free, kept=kept, host=socket.gethostname())
    return [SpaceNeeded(**json.loads(text)) for text in ranks.all_gather_text(json.dumps(asdict(need)))]


def copies_fit(needs: Sequence[SpaceNeeded]) -> bool:
    """Return True if on every machine the copies of all its ranks fit into a share of its free memory."""
    for host in {need.host for need in needs}:
        on_host = [need for need in needs if need.host == host]
        known = [need.free for need in on_host if need.free is not None]
        kept, nbytes = sum(need.kept for need in on_host), sum(need.nbytes for need in on_host)
        if known and nbytes > COPY_SHARE * (min(known) + kept):
            return False
    return True


def refuse_full(directory: Path, *, needed: int) -> None:
    """Refuse with a StorageError to begin a checkpoint in a directory whose disk has fewer bytes left."""
    free, why = free_bytes(directory), "there is not enough room on the disk"
    if free is not None and needed > free:
        raise StorageError(storage_sentence(directory, why, needed=needed, free=free))


def storage_sentence(path: Path, why: str, *, needed: int, free: int | None) -> str:
    """Explain with figures why a checkpoint cannot be written."""
    left = "" if free is None else f", {free:,} are free"
    return (
        f"{path} cannot be written: {why}; a checkpoint needs {needed:,} bytes{left}; make room there, then resume: "
        "the last checkpoint is whole"
    )


def free_bytes(path: Path) -> int | None:
    """Return the bytes a user may still write at a place; None if the file system does not count them."""
    while not path.exists() and path != path.parent:
        path = path.parent
    usage = shutil.disk_usage(path)
    return usage.free if usage.total else None


def room_of_run(*, checkpoint: int, final: int, saves: int, keep: int) -> int:
    """Return the most bytes that a run's models take: `keep` checkpoints, one more during a write, and the final model.
    A run with fewer `saves` needs less, but at least one for an interrupt."""
    return checkpoint * max(1, min(keep + 1, saves)) + final


def refuse_small_disk(output_dir: Path, *, needed: int) -> None:
    """Refuse with a ConfigError a disk with too little left for a run; what it has written already counts as free."""
    files = (path for name in ("checkpoints", "final") for path in (output_dir / name).rglob("*"))
    written = sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())
    free = free_bytes(output_dir)
    if free is not None and needed > free + written:
        raise ConfigError(
            f"--output-dir {output_dir} must have room for its checkpoints and the final model, {needed:,} bytes, and "
            f"{free + written:,} are free there; make room, name another disk, or lower --save-total-limit"
        )


class Trained(Protocol):
    """A model that knows which of its weights are trained."""

    @property
    def model(self) -> PreTrainedModel:
        """Model whose parameters the optimiser has; with several ranks, this rank's part."""

    def weights_writer(self, ranks: Ranks) -> Writer:
        """Agree with all ranks on who writes which of the trained weights, exactly as they are."""


class TokenizerFiles:
    """Files of a tokenizer, made once: 150,000 tokens take 0.15 s, and a tokenizer is not thread-safe."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Keep a tokenizer that does not change."""
        self._tokenizer = tokenizer
        self._content = dict[str, bytes]()

    def write(self, folder: Path) -> None:
        """Write the files into an empty directory; OSError if that fails."""
        if not self._content:
            self._tokenizer.save_pretrained(folder)
            self._content = {name: (folder / name).read_bytes() for name in _files(folder)}
            return
        for name, content in self._content.items():
            (folder / name).parent.mkdir(exist_ok=True)  # for more than one chat template
            (folder / name).write_bytes(content)


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingCheckpoint:
    """State of a run on this rank, to be written by this thread or, if copied, by another one."""

    root: Path
    state: TrainingState
    writers: Sequence[tuple[str, Writer]]
    """Writers, each with its directory below the draft."""
    nbytes: int
    """Bytes that all ranks write together."""
    keep: int
    protected: frozenset[int]
    is_copied: bool
    sentences: tuple[str, ...]
    """Messages for the user."""

    def write(self, group: TextGroup) -> Checkpoint:
        """Write, sync and commit with all other ranks, then remove all but the newest `keep`.

        StorageError: a rank cannot write; the draft is removed, and earlier checkpoints are as they were. RankLost:
        another rank is gone, or silent for too long.
        """
        draft, directory = (self.root / f"{kind}-{self.state.step:06d}" for kind in ("draft", "step"))
        manifest = dict[str, FileDigest]()
        with _all_or_none(group, draft, self.nbytes):
            for folder, writer in self.writers:
                for path in writer.write(draft / folder):
                    manifest[str(path.relative_to(draft))] = _on_disk(path)
        for text in group.all_gather_text(json.dumps(manifest)):
            manifest |= json.loads(text)
        with _all_or_none(group, draft, self.nbytes):
            if group.rank == 0:
                (draft / "progress.json").write_text(json.dumps(asdict(self.state)) + "\n")
                # what other ranks wrote is on disk already
                whole = {name: manifest[name] if name in manifest else _on_disk(draft / name) for name in _files(draft)}
                (draft / "manifest.json").write_text(json.dumps(whole, indent=1) + "\n")
                for last in (draft / "manifest.json", draft / "model", draft):
                    sync(last)
                if directory.exists():
                    discard(directory)
                draft.rename(directory)
                sync(directory.parent)
                for step, old in numbered(self.root)[: -self.keep]:
                    if step not in self.protected:
                        discard(old)
        return Checkpoint(path=directory, state=self.state)


def take_checkpoint(  # noqa: PLR0913 - one call holds everything that makes the next step
    root: Path,
    state: TrainingState,
    *,
    loaded: Trained,
    tokenizer: TokenizerFiles,
    optimizer: torch.optim.Optimizer,
    keep: int,
    reference: Trained | None = None,
    protected: Collection[int] = (),
    ranks: Ranks = ONE_RANK,
    staging: StagingBuffers | None = None,
) -> PendingCheckpoint:
    """Take the state that `write` then writes to `root/step-NNNNNN`. All ranks make this call, on one file system.

    Args:
        keep: number of newest checkpoints that stay, besides those of the steps `protected`, for example the best.
        reference: given where it moves during the run and cannot be read from its own place.
        staging: buffers for copies, used if they fit into a share of free main memory and no write still reads them;
            None: no copies.

    Raises:
        CheckpointError: the optimiser keeps something else than tensors and numbers for each of the parameters.
        StorageError: the first rank cannot write, or the disk has no room for the checkpoint.
        RankLost: another rank is gone, or silent for too long.
    """
    draft = root / f"draft-{state.step:06d}"
    moving = None if reference is None else part_of("reference", saved_tensors(reference.model), ranks, {})
    writers = [("model", loaded.weights_writer(ranks)), ("", optimizer_part(optimizer, loaded.model, ranks))]
    writers += [] if moving is None else [("", moving)]
    needs = gather_needs(ranks, nbytes=sum(writer.nbytes for _, writer in writers), staging=staging)
    nbytes = sum(need.nbytes for need in needs)
    with _all_or_none(ranks, draft, nbytes):
        if ranks.rank == 0:
            root.mkdir(parents=True, exist_ok=True)
            for leftover in [*root.glob("draft-*"), *root.glob("discarded-*")]:  # of a killed attempt
                shutil.rmtree(leftover)
            refuse_full(root, needed=nbytes)
            (draft / "model").mkdir(parents=True)
            tokenizer.write(draft / "model")
    is_copied, sentences = staging is not None and copies_fit(needs), tuple[str, ...]()
    if staging is not None and is_copied:
        staging.clear()
        writers = [(folder, writer.copied(staging)) for folder, writer in writers]
    elif staging is not None:
        staging.give_back()
        sentences = (
            f"copies of what a checkpoint holds, {nbytes:,} bytes, take more than {COPY_SHARE:.0%} of the main memory "
            "that is free: the run waits until it is written",
        )
    return PendingCheckpoint(
        root=root,
        state=state,
        writers=writers,
        nbytes=nbytes,
        keep=keep,
        protected=frozenset(protected),
        is_copied=is_copied,
        sentences=sentences,
    )


def _on_disk(path: Path) -> FileDigest:
    sync(path)
    return file_digest(path)


def _files(folder: Path) -> list[str]:
    """Return all files below a directory, relative to it and sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@contextmanager
def _all_or_none(group: TextGroup, draft: Path, needed: int) -> Iterator[None]:
    """Guard each rank's work on a draft: a failure on one rank raises on all ranks, and the draft is removed."""
    failed = ""
    try:
        yield
    except StorageError as error:
        failed = str(error)
    except (OSError, SafetensorError) as error:
        free = None
        with suppress(OSError):  # the disk that cannot be written may not say either
            free = free_bytes(draft)
        failed = storage_sentence(draft, str(error), needed=needed, free=free)
    failures = group.all_gather_text(failed)
    for rank, sentence in enumerate(failures):
        if sentence:
            if group.rank == 0:
                shutil.rmtree(draft, ignore_errors=True)  # leftovers on a failing disk are a draft, never loaded
            raise StorageError(sentence if len(failures) == 1 else f"rank {rank}: {sentence}")


SAVE_SECONDS = 1800.0
"""Timeout for a background checkpoint write, in seconds."""


class CheckpointWriter:
    """Writer of a rank's checkpoints, one at a time: in a thread if the state is copied."""

    def __init__(self, staging: StagingBuffers | None) -> None:
        """`staging`: buffers for copies; None: every checkpoint is written before the run continues."""
        self.staging = staging
        self._writing: BackgroundWrite[Checkpoint] | None = None
        self._written: Checkpoint | None = None

    def begin(self, pending: PendingCheckpoint, group: TextGroup) -> None:
        """Write a checkpoint: in the background if the state is copied, otherwise before returning.

        StorageError: it could not be written. RankLost: another rank is gone, or silent for too long.
        """
        if pending.is_copied:
            self._writing = BackgroundWrite(
                lambda: pending.write(group), name=f"the checkpoint of step {pending.state.step}"
            )
        else:
            self._written = pending.write(group)

    def take(self, *, wait: bool) -> Checkpoint | None:
        """Return the checkpoint written since the last call; None if there is none and `wait` is False.

        StorageError: it could not be written, or not in time. RankLost: another rank is gone, or silent for too long.
        """
        if self._writing is not None and (wait or self._writing.is_over):
            try:
                self._written = self._writing.result(wait=wait, seconds=SAVE_SECONDS)
            finally:
                if self._writing.is_over:  # else the write still reads the staging buffers
                    self._writing = None
        written, self._written = self._written, None
        return written
