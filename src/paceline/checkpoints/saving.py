"""One checkpoint, written by all ranks: each its part, the first one what is there once, and the commit.

It has two halves. What must be done of one moment all ranks do together: agree on who writes what, and take copies.
What takes long, writing and syncing, may then be done by a thread while they train, over a side group.
"""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError

from paceline.checkpoints.digests import Fingerprint, discard, files, fingerprint, sync
from paceline.checkpoints.finding import Checkpoint, TrainingState, numbered, remove_leftovers
from paceline.checkpoints.free_space import COPY_SHARE, ask_all, copies_fit, free_bytes, refuse_full, storage_sentence
from paceline.checkpoints.optimizer_state import optimizer_part
from paceline.checkpoints.tokenizer_files import TokenizerFiles
from paceline.checkpoints.trained import Trained, Writer
from paceline.errors import StorageError
from paceline.models.parallel.piece_files import part_of
from paceline.models.parallel.pieces import saved_tensors
from paceline.models.parallel.ranks import ONE_RANK, Ranks, TextGroup
from paceline.models.parallel.staging import StagingBuffers


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A moment of a run on this rank, to be written: by this thread or, where it is a copy, by another one."""

    root: Path
    state: TrainingState
    writers: Sequence[tuple[str, Writer]]
    """With the directory below the draft that each writes into."""
    nbytes: int
    """That all ranks write."""
    keep: int
    protected: frozenset[Path]
    is_copied: bool
    sentences: tuple[str, ...]
    """What a person should know."""

    def write(self, group: TextGroup) -> Checkpoint:
        """Write, sync and commit with all other ranks, then remove all but the newest `keep`.

        Raises:
            StorageError: a rank cannot write; the draft is removed, and earlier checkpoints are as they were.
            RankLost: another rank is gone, or silent for too long.
        """
        draft, place = (self.root / f"{kind}-{self.state.step:06d}" for kind in ("draft", "step"))
        manifest = dict[str, Fingerprint]()
        with _together(group, draft, self.nbytes):
            for folder, writer in self.writers:
                for path in writer.write(draft / folder):
                    manifest[str(path.relative_to(draft))] = _on_disk(path)
        for text in group.all_gather_text(json.dumps(manifest)):
            manifest |= json.loads(text)
        with _together(group, draft, self.nbytes):
            if group.rank == 0:
                (draft / "progress.json").write_text(json.dumps(asdict(self.state)) + "\n")
                _commit(draft, place, manifest)
                for _, old in numbered(self.root)[: -self.keep]:
                    if old not in self.protected:
                        discard(old)
        return Checkpoint(path=place, state=self.state)


def take_checkpoint(  # noqa: PLR0913 - one call holds everything that makes the next step
    root: Path,
    state: TrainingState,
    *,
    loaded: Trained,
    tokenizer: TokenizerFiles,
    optimizer: torch.optim.Optimizer,
    keep: int,
    reference: Trained | None = None,
    protected: Collection[Path] = (),
    ranks: Ranks = ONE_RANK,
    staging: StagingBuffers | None = None,
) -> Taken:
    """What `Taken.write` makes `root/step-NNNNNN` of. All ranks make this call, on one file system.

    Args:
        root: where the run's checkpoints lie.
        state: where the run stands.
        loaded: the policy.
        tokenizer: its files, written beside the weights.
        optimizer: torch's or any other that keeps tensors and numbers for each of the policy's parameters.
        keep: how many checkpoints stay.
        reference: given where it moves during the run and cannot be read from its own place.
        protected: checkpoints that stay besides the newest, for example the best.
        ranks: those that the policy lies on.
        staging: buffers for copies, used if they fit into a share of free main memory and no write still reads them;
            None: no copies.

    Raises:
        CheckpointError: the optimiser keeps something else.
        StorageError: the first rank cannot write, or the disk has no room for the checkpoint.
        RankLost: another rank is gone, or silent for too long.
    """
    draft = root / f"draft-{state.step:06d}"
    moving = None if reference is None else part_of("reference", saved_tensors(reference.model), ranks, {})
    writers: list[tuple[str, Writer]] = [
        ("model", loaded.weights_writer(ranks)),
        ("", optimizer_part(optimizer, loaded.model, ranks)),
        *([] if moving is None else [("", moving)]),
    ]
    here = sum(writer.nbytes for _, writer in writers)
    asked = ask_all(ranks, nbytes=here, staging=staging)
    nbytes = sum(one.nbytes for one in asked)
    with _together(ranks, draft, nbytes):
        if ranks.rank == 0:
            root.mkdir(parents=True, exist_ok=True)
            remove_leftovers(root)
            refuse_full(root, needed=nbytes)
            (draft / "model").mkdir(parents=True)
            tokenizer.write(draft / "model")
    is_copied = staging is not None and copies_fit(asked)
    if staging is not None and is_copied:
        staging.clear()
        writers = [(folder, writer.copied(staging)) for folder, writer in writers]
    elif staging is not None:
        staging.give_back()
    waits = () if staging is None or is_copied else (_too_large(nbytes),)
    return Taken(
        root=root,
        state=state,
        writers=writers,
        nbytes=nbytes,
        keep=keep,
        protected=frozenset(protected),
        is_copied=is_copied,
        sentences=waits,
    )


def _commit(draft: Path, place: Path, known: Mapping[str, Fingerprint]) -> None:
    """Make a draft the checkpoint; files that are `known` are on disk already."""
    manifest = {name: known[name] if name in known else _on_disk(draft / name) for name in files(draft)}
    (draft / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    for last in (draft / "manifest.json", draft / "model", draft):
        sync(last)
    if place.exists():
        discard(place)
    draft.rename(place)
    sync(place.parent)


def _on_disk(path: Path) -> Fingerprint:
    sync(path)
    return fingerprint(path)


def _too_large(nbytes: int) -> str:
    return (
        f"copies of what a checkpoint holds, {nbytes:,} bytes, take more than {COPY_SHARE:.0%} of the main memory that "
        "is free: the run waits until it is written"
    )


@contextmanager
def _together(group: TextGroup, draft: Path, needed: int) -> Iterator[None]:
    """What each rank does on its own with a draft: what fails on one of them fails on all, and leaves no draft."""
    failed = ""
    try:
        yield
    except StorageError as error:
        failed = str(error)
    except (OSError, SafetensorError) as error:
        failed = storage_sentence(draft, str(error), needed=needed, free=_known_free(draft))
    said = group.all_gather_text(failed)
    for rank, sentence in enumerate(said):
        if sentence:
            if group.rank == 0:
                shutil.rmtree(draft, ignore_errors=True)  # what a failing disk keeps of it is a draft, never taken
            raise StorageError(sentence if len(said) == 1 else f"rank {rank}: {sentence}")


def _known_free(draft: Path) -> int | None:
    with suppress(OSError):  # the disk that cannot be written may not say either
        return free_bytes(draft)
    return None
