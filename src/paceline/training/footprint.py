"""What a run's models will take on a disk, from the model as it lies on the ranks."""

from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoints.free_space import refuse_small_disk, room_of_run
from paceline.config.sections import Config
from paceline.models.loaded import Loaded
from paceline.models.parallel.pieces import piece_of, saved_tensors, written_here
from paceline.models.parallel.ranks import Ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Bytes."""

    checkpoint: int
    final: int


def footprint(config: Config, policy: Loaded, ranks: Ranks) -> Footprint:
    """Count the bytes over all ranks, which make this call together. A program's own optimiser counts as the options'.

    Raises:
        RankLost: another rank is gone, or silent for too long.
    """
    pieces = {name: piece_of(tensor) for name, tensor in saved_tensors(policy.model).items()}
    trained = {name for name, one in policy.model.named_parameters(remove_duplicate=False) if one.requires_grad}
    mine, _ = written_here(pieces, ranks)
    here = {"whole": 0, "trained": 0, "numbers": 0}
    for name in mine:
        size = pieces[name].tensor
        here["whole"] += size.nbytes
        here["trained"] += size.nbytes if name in trained else 0
        here["numbers"] += size.numel() if name in trained else 0
    found = ranks.collect(here)
    whole, moved, numbers = (int(sum(one[key] for one in found)) for key in here)
    saved = whole if policy.adapter is None else moved
    merged = policy.adapter is None or config.lora.merge_lora
    reference = whole if config.loss.ref_sync_steps else 0
    return Footprint(
        checkpoint=saved + numbers * config.optim.moment_bytes + reference, final=whole if merged else moved
    )


def refuse_no_room(config: Config, output_dir: Path, size: Footprint, *, total_steps: int) -> None:
    """Before the first step: a run whose checkpoints cannot lie on its disk.

    Raises:
        ConfigError: it says what is needed, and what is free.
    """
    saves = total_steps // config.loop.save_steps if config.loop.save_steps else 0
    keep = config.loop.save_total_limit
    needed = room_of_run(checkpoint=size.checkpoint, final=size.final, saves=saves, keep=keep)
    refuse_small_disk(output_dir, needed=needed)
