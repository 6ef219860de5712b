"""Checkpoints written by all ranks: each writes its part, the first one also shared files and the commit.

First all ranks together agree on who writes what, and take copies of the state. Writing and syncing take longer and may
be done in a thread while training continues, over a side process group.
"""

import json
import shutil
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
from paceline.checkpoints.free_space import COPY_SHARE, ask_all, copies_fit, free_bytes, refuse_full, storage_sentence
from paceline.checkpoints.optimizer_state import optimizer_part
from paceline.checkpoints.run_files import sync
from paceline.errors import StorageError
from paceline.models.parallel.pieces import Writer, part_of, saved_tensors
from paceline.models.parallel.ranks import ONE_RANK, Ranks, TextGroup
from paceline.models.parallel.staging import StagingBuffers
from paceline.runtime.background_writes import BackgroundWrite


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
class Taken:
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
        with _together(group, draft, self.nbytes):
            for folder, writer in self.writers:
                for path in writer.write(draft / folder):
                    manifest[str(path.relative_to(draft))] = _on_disk(path)
        for text in group.all_gather_text(json.dumps(manifest)):
            manifest |= json.loads(text)
        with _together(group, draft, self.nbytes):
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
) -> Taken:
    """Take the state that `Taken.write` writes to `root/step-NNNNNN`. All ranks make this call, on one file system.

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
    needs = ask_all(ranks, nbytes=sum(writer.nbytes for _, writer in writers), staging=staging)
    nbytes = sum(need.nbytes for need in needs)
    with _together(ranks, draft, nbytes):
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
    return Taken(
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
def _together(group: TextGroup, draft: Path, needed: int) -> Iterator[None]:
    """Guard a rank's own work on a draft: a failure on one rank raises on all, and the draft is removed."""
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

    def begin(self, taken: Taken, group: TextGroup) -> None:
        """Write a checkpoint: in the background if the state is copied, otherwise before returning.

        StorageError: it could not be written. RankLost: another rank is gone, or silent for too long.
        """
        if taken.is_copied:
            self._writing = BackgroundWrite(
                lambda: taken.write(group), name=f"the checkpoint of step {taken.state.step}"
            )
        else:
            self._written = taken.write(group)

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
