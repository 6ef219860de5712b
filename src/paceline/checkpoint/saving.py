"""One checkpoint, written by all ranks: each its part, the first one what is there once, and the commit."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase

from paceline.checkpoint.files import Fingerprint, discard, files, fingerprint, sync
from paceline.checkpoint.finding import Checkpoint, Progress, numbered, remove_leftovers
from paceline.checkpoint.moments import optimizer_part
from paceline.checkpoint.trained import Trained
from paceline.errors import CheckpointError
from paceline.parallel import ONE_RANK, Ranks, part_of, saved_tensors


def save_checkpoint(  # noqa: PLR0913 - one call holds everything that makes the next step
    root: Path,
    progress: Progress,
    *,
    loaded: Trained,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    keep: int,
    reference: Trained | None = None,
    protected: Collection[Path] = (),
    ranks: Ranks = ONE_RANK,
) -> Checkpoint:
    """Write `root/step-NNNNNN` and then remove all but the newest `keep`. All ranks make this call, on one file system.

    Args:
        root: where the run's checkpoints lie.
        progress: where the run stands.
        loaded: the policy.
        tokenizer: written beside the weights.
        optimizer: torch's or any other that keeps tensors and numbers for each of the policy's parameters.
        keep: how many checkpoints stay.
        reference: given where it moves during the run and cannot be read from its own place.
        protected: checkpoints that stay besides the newest, for example the best.
        ranks: those that the policy lies on.

    Raises:
        CheckpointError: the optimiser keeps something else, or a rank cannot write; nothing is committed.
        RankLost: another rank is gone, or silent for too long.
    """
    place, draft = root / f"step-{progress.step:06d}", root / f"draft-{progress.step:06d}"
    leads = ranks.rank == 0
    with _together(ranks, draft):
        if leads:
            root.mkdir(parents=True, exist_ok=True)
            remove_leftovers(root)
            (draft / "model").mkdir(parents=True)
    moments = optimizer_part(optimizer, loaded.model, ranks)
    weights = loaded.weights_writer(ranks)
    moving = None if reference is None else part_of("reference", saved_tensors(reference.model), ranks, {})
    manifest = dict[str, Fingerprint]()
    with _together(ranks, draft):
        written = [*weights(draft / "model"), *moments.write(draft), *([] if moving is None else moving.write(draft))]
        manifest |= {str(path.relative_to(draft)): _on_disk(path) for path in written}
    for text in ranks.exchange(json.dumps(manifest)):
        manifest |= json.loads(text)
    with _together(ranks, draft):
        if leads:
            tokenizer.save_pretrained(draft / "model")
            (draft / "progress.json").write_text(json.dumps(asdict(progress)) + "\n")
            _commit(draft, place, manifest)
            for _, old in numbered(root)[:-keep]:
                if old not in protected:
                    discard(old)
    return Checkpoint(path=place, progress=progress)


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


@contextmanager
def _together(ranks: Ranks, draft: Path) -> Iterator[None]:
    """What each rank does on its own with a draft: what fails on one of them fails on all."""
    failed = ""
    try:
        yield
    except (OSError, SafetensorError) as error:
        failed = f"{draft} cannot be written: {error}; make room there, then resume"
    said = ranks.exchange(failed)
    for rank, sentence in enumerate(said):
        if sentence:
            raise CheckpointError(sentence if len(said) == 1 else f"rank {rank}: {sentence}")
