"""Checkpoints of one layout of ranks, gone on with in another: what each rank of either side does."""

import json
import random
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import PreTrainedModel

from paceline.checkpoints.finding import Checkpoint, TrainingState, newest_checkpoint
from paceline.checkpoints.optimizer_state import load_optimizer
from paceline.checkpoints.run_files import BackgroundWrite
from paceline.checkpoints.saving import TokenizerFiles, take_checkpoint
from paceline.config.building import build_config
from paceline.config.layout import Sizes
from paceline.config.sections import ModelConfig
from paceline.errors import CheckpointError, StorageError
from paceline.models.loaded import export_model
from paceline.models.loading import restore_weights
from paceline.models.parallel.gathering import full_parameters
from paceline.models.parallel.mesh import make_mesh
from paceline.models.parallel.mesh_ranks import MeshLayout, MeshRanks
from paceline.models.parallel.pieces import files_of, open_stored, part_of
from paceline.models.parallel.process_group import Meeting, process_group
from paceline.models.parallel.ranks import Ranks
from paceline.models.parallel.sharding import Sharding
from paceline.models.parallel.staging import StagingBuffers
from paceline.models.policy_and_reference import load_policy
from paceline.training.learner.learner import Learner
from paceline.training.setup.inputs import RunSize
from paceline.training.trainer import Trainer, make_trainer
from tests.laws.layouts import CPU, groups_of, learner, llama_with_one_embedding
from tests.support.checkpoint_files import save_checkpoint
from tests.support.tiny import tiny_model, tiny_tokenizer

WRITERS = {
    "ZeRO-3 over 4": (Sizes(shard=4), Sharding(stage=3)),
    "2 replicas of ZeRO-3 over 2": (Sizes(replicate=2, shard=2), Sharding(stage=3)),
    "4 replicas": (Sizes(replicate=4), Sharding(stage=0)),
    "tensor 2 x pipeline 2": (Sizes(tensor=2, pipeline=2), Sharding(stage=0)),
}
READERS = {
    "ZeRO-3 over 2": (Sizes(shard=2), Sharding(stage=3)),
    "2 replicas": (Sizes(replicate=2), Sharding(stage=0)),
    "ZeRO-1 over 3": (Sizes(shard=3), Sharding(stage=1)),
}
FAMILIES = ("llama, one embedding", "qwen2, LoRA")
CASES = [*((writer, "qwen2") for writer in WRITERS), *(("2 replicas of ZeRO-3 over 2", family) for family in FAMILIES)]
BEFORE, NEXT = [(3, 2, 4, 1), (5, 5)], (2, 3)
"""Completions in the groups of the steps before the checkpoint, and of the step after it."""


class Full:
    """A `Trained` whose weights do not fit on the disk of one rank, and the `Writer` of them."""

    nbytes = 0

    def __init__(self, loaded, rank: int) -> None:
        self.model, self.rank, self.here = loaded.model, rank, -1

    def weights_writer(self, ranks: Ranks):
        self.here = ranks.rank
        return self

    def write(self, folder: Path) -> list[Path]:
        if self.here == self.rank:
            raise OSError(28, "No space left on device")
        return []


def fresh(family: str, ranks: Ranks) -> Learner:
    """A learner before its first step, on this rank's part of the model."""
    return learner(family, "grpo", "many micro-batches", torch.float64, ranks)


def save(half: Learner, root: Path, loaded=None):
    return save_checkpoint(
        root,
        TrainingState(step=2, position=6, policy_version=2),
        loaded=loaded or half.policy,
        tokenizer=TokenizerFiles(tiny_tokenizer()),
        optimizer=half.optimizer,
        keep=2,
        ranks=half.ranks,
    )


def begin(half: Learner, root: Path) -> BackgroundWrite[Checkpoint]:
    """The same in the background."""
    taken = take_checkpoint(
        root,
        TrainingState(step=2, position=6, policy_version=2),
        loaded=half.policy,
        tokenizer=TokenizerFiles(tiny_tokenizer()),
        optimizer=half.optimizer,
        keep=2,
        ranks=half.ranks,
        staging=StagingBuffers(lambda: None),
    )
    return BackgroundWrite(partial(taken.write, half.ranks.side_group()), name="a checkpoint")


def go_on(half: Learner) -> tuple[float, dict[str, Tensor]]:
    """Loss of the step after the checkpoint, and all trained weights behind it, on every rank."""
    stats = half.step(groups_of(NEXT, random.Random(9)), learning_rate=1e-3)
    whole = full_parameters(half.policy.model, half.ranks, everywhere=True)
    return stats.loss, {name: weight.clone() for name, weight in whole}


def resumed(family: str, root: Path, ranks: Ranks) -> tuple[Learner, tuple[str, ...]]:
    """A learner where the newest whole checkpoint left it, and what was said of damaged ones."""
    checkpoint, damaged = newest_checkpoint(root)
    assert checkpoint is not None
    half = fresh(family, ranks)
    restore_weights(half.policy, checkpoint.model)
    load_optimizer(checkpoint, half.optimizer, half.policy.model, ranks)
    return half, damaged


def work(rank: int, folder: str) -> None:
    """One of four ranks: all of them write, then fewer go on with it."""
    torch.set_num_threads(1)
    for size, do in ((4, write), (2, read), (3, read)):
        if rank < size:
            with process_group(Meeting(file=Path(folder, f"{size}")), rank=rank, size=size, device=CPU, timeout=60):
                do(rank, size, Path(folder))
                if size == 4:
                    by_stages(rank, Path(folder, "stages"))
                    in_two_directions(Path(folder, "two directions"))
                    from_the_start(rank, Path(folder, "start"))
                    half = merging(mesh_ranks(Sizes(shard=4), Sharding(stage=3)))
                    half.export(Path(folder, "merged"))
                    refuse(rank, Path(folder))


def write(rank: int, size: int, folder: Path) -> None:
    """Every case to its checkpoint, its export, and its next step."""
    for writer, family in CASES:
        place = folder / writer / family
        half = fresh(family, mesh_ranks(*WRITERS[writer]))
        chance = random.Random(5)
        for sizes in BEFORE:
            half.step(groups_of(sizes, chance), learning_rate=1e-3)
        writing = begin(half, place / "checkpoints")  # over a side group, while the ranks gather, export and train
        export_model(half.policy, tiny_tokenizer(), place / "final", merge=False, ranks=half.ranks)
        led = [name for name, _ in full_parameters(half.policy.model, half.ranks)]
        (place / f"names-{rank}.json").write_text(json.dumps(led))
        found = go_on(half)
        if rank == 0:
            torch.save(found, place / "next.pt")
        writing.result(wait=True, seconds=60)
    try:
        save(half, folder / "full", Full(half.policy, rank=2))
    except StorageError as error:
        (folder / f"full-{rank}").write_text(str(error))


def by_stages(rank: int, folder: Path) -> None:
    """A model whose embedding and first layer are on two ranks, all else and the same embedding on two others."""
    ranks = mesh_ranks(Sizes(pipeline=2, shard=2), Sharding(stage=3))
    loaded = llama_with_one_embedding(torch.float64, 0)
    model = loaded.model
    ranks.parallel_layout.apply(model, model.dtype)
    folder.mkdir(exist_ok=True)
    loaded.weights_writer(ranks).write(folder)
    led = list(full_parameters(model, ranks))
    assert len(led) == 0 or rank == 0
    torch.save(list(full_parameters(model, ranks, everywhere=True)), folder / f"{rank}.pt")


def in_two_directions(folder: Path) -> None:
    """Matrices cut by rows or by columns over two ranks, and what is left by rows over two others."""
    ranks = mesh_ranks(Sizes(shard=2, tensor=2), Sharding(stage=3))
    layers = nn.Sequential(nn.Linear(6, 7, dtype=torch.float64), nn.Linear(7, 5, dtype=torch.float64))
    for number, layer in enumerate(layers):
        layer.bias.data.zero_()
        layer.weight.data = torch.arange(layer.weight.numel(), dtype=torch.float64).view_as(layer.weight)
        cut = distribute_tensor(layer.weight, ranks.mesh.devices["tensor"], [Shard(number)])
        layer.weight = nn.Parameter(cut)
        fully_shard(layer, mesh=ranks.mesh.devices["shard"])
    folder.mkdir(exist_ok=True)
    part_of("cut", dict(layers.named_parameters()), ranks, {}).write(folder)
    dist.barrier()
    with open_stored(files_of(folder, "cut")) as stored:
        for name, weight in layers.named_parameters():
            assert torch.equal(stored.read_piece(name, weight), weight.to_local())


def from_the_start(rank: int, folder: Path) -> None:
    """Models that transformers has written, each rank's part of them read by itself."""
    for kind in ("qwen2", "llama"):
        if rank == 0:
            save_tied(kind, folder / kind)
        dist.barrier()
        ranks = mesh_ranks(Sizes(replicate=2, shard=2), Sharding(stage=3))
        loaded, forward = load_policy(ModelConfig(model=str(folder / kind)), parallel_layout=ranks.parallel_layout)
        logits = ranks.parallel_layout.run(loaded.model, partial(first_logits, loaded.model))
        ranks.parallel_layout.rest(loaded.model)
        local = sum(one.to_local().numel() for one in loaded.model.parameters())
        found = list(full_parameters(loaded.model, ranks, everywhere=True))
        torch.save((found, logits, local, forward.kind), folder / kind / f"{rank}.pt")


def first_logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        return model(torch.tensor([[1, 2, 3]])).logits


def merging(ranks: Ranks) -> Trainer:
    """The trainer of a run with an adapter that its end adds to the weights."""
    given = {"model": "embedded", "dataset": "arithmetic", "lora_rank": 4, "merge_lora": True}
    half = make_trainer(build_config(given), tiny_tokenizer(), RunSize(total_steps=1, longest_prompt=8), ranks=ranks)
    for parameter in half.policy.model.parameters():
        if parameter.requires_grad:
            parameter.data.fill_(0.01)
    return half


def refuse(rank: int, folder: Path) -> None:
    """An optimiser that keeps means over the rows of slices."""
    half = fresh("qwen2", mesh_ranks(*WRITERS["ZeRO-3 over 4"]))
    parameter = next(half.policy.model.parameters())
    half.optimizer.state[parameter]["rows"] = torch.zeros(3)
    try:
        save(half, folder / "refused")
    except CheckpointError as error:
        (folder / f"refused-{rank}").write_text(str(error))


def save_tied(kind: str, folder: Path) -> None:
    """A model that transformers loads, of two files; Llama's has one embedding."""
    model = tiny_model(kind)
    if kind == "llama":
        model.config.tie_word_embeddings = True
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    model.save_pretrained(folder, max_shard_size=60_000)
    tiny_tokenizer().save_pretrained(folder)


def read(rank: int, size: int, folder: Path) -> None:
    """Every checkpoint under every layout of so many ranks, and its next step."""
    for (writer, family), (reader, layout) in product(CASES, READERS.items()):
        if layout[0].ranks == size:
            place = folder / writer / family
            half, _ = resumed(family, place / "checkpoints", mesh_ranks(*layout))
            torch.save(go_on(half), place / f"{reader}-{rank}.pt")


def mesh_ranks(sizes: Sizes, sharding: Sharding) -> MeshRanks:
    mesh = make_mesh(sizes, CPU)
    return MeshRanks(mesh, MeshLayout(mesh=mesh, sharding=sharding))
