"""Law 1 for images on ranks: two copies of a model that reads images, of which one alone is given any."""

import random
from pathlib import Path

import pytest
import torch

from paceline.config.layout import Sizes
from paceline.config.objective import LossConfig, OptimConfig
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.models.parallel.mesh import make_mesh
from paceline.models.parallel.mesh_ranks import MeshLayout, MeshRanks
from paceline.models.parallel.process_group import Meeting, process_group
from paceline.models.parallel.ranks import ONE_RANK
from paceline.models.parallel.sharding import Sharding
from paceline.models.vision.placeholders import placeholders_of
from paceline.models.vision.tower import Vision
from paceline.objective.cutting import share_out
from paceline.training.learner.learner import Learner
from paceline.training.learner.samples import samples_of
from paceline.types import Completion, Rollout, RolloutGroup, Task, completed
from tests.laws.splitting import MAX_LENGTH, TEMPERATURE
from tests.support.exact import Float64Kept
from tests.support.forked import fork_ranks
from tests.support.seeing import SEEING, HeldPictures, picture, prompt_with, seeing_model, seeing_tokenizer

KINDS = ["idefics3", pytest.param("qwen2_5_vl", marks=pytest.mark.long)]
SEEN = picture(1)
PROMPTS = ("{}?", *(f"prompt {number} of text alone" for number in range(4)))
"""The first with an image: it goes to one rank, and the others to the other."""


def groups_of(kind: str) -> list[RolloutGroup]:
    tokenizer, chance = seeing_tokenizer(kind), random.Random(0)
    rule = placeholders_of(seeing_model(kind).config, SEEING[kind].processor, tokenizer)
    groups = []
    for number, text in enumerate(PROMPTS):
        ids, media = prompt_with(tokenizer, rule, text, *([SEEN] if "{}" in text else []))
        task = Task(task_id=str(number), prompt="", prompt_ids=tuple(ids), media=tuple(media), answer=None)
        rollouts = list[Rollout]()
        for _ in range(2):
            tokens = tuple(chance.randrange(256) for _ in range(8))
            completion = Completion(
                token_ids=tokens, logprobs=(-5.0,) * 8, finish_reason="stop", text="", policy_version=0
            )
            made = completed(task.prompt_ids, completion, task.media)
            rollouts.append(Rollout(trajectory=made, rewards={}, reward=0.0, advantage=chance.gauss(0, 1)))
        groups.append(RolloutGroup(task=task, rollouts=tuple(rollouts)))
    return groups


def trained(kind: str, ranks) -> dict[str, torch.Tensor]:
    """Weights after a step of two updates in float64."""
    model = seeing_model(kind, torch.float64).train()
    pictures, exact = HeldPictures(SEEN), torch.float64
    vision = Vision(model=model, pictures=pictures, processor=SEEING[kind].processor, compute_dtype=exact)
    with Float64Kept():
        learner = Learner(
            Loaded(model=model, compute_dtype=exact, vision=vision),
            choose_forward(model, exact, vision),
            reference=None,
            loss=LossConfig(),
            optim=OptimConfig(num_iterations=2, adam_eps=1e-3),
            temperature=TEMPERATURE,
            max_completion_length=MAX_LENGTH,
            ranks=ranks,
        )
        stats = learner.step(groups_of(kind), learning_rate=1e-2)
    assert stats.updates == 2
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def work(rank: int, folder: str, kind: str) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    with process_group(Meeting(file=Path(folder, "meeting")), rank=rank, size=2, device=device, timeout=120):
        mesh = make_mesh(Sizes(replicate=2), device)
        torch.save(
            trained(kind, MeshRanks(mesh, MeshLayout(mesh=mesh, sharding=Sharding(stage=0)))), f"{folder}/{rank}"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_learns_the_same_where_one_rank_has_all_images(kind, tmp_path):
    samples = samples_of(groups_of(kind))
    shares = share_out(samples, trained=range(len(samples)), ranks=2)
    assert [any(samples[row].prompt_media for row in share) for share in shares].count(True) == 1
    fork_ranks(work, str(tmp_path), kind, count=2)
    alone = trained(kind, ONE_RANK)
    start = dict(seeing_model(kind, torch.float64).named_parameters())
    for rank in range(2):
        weights = torch.load(tmp_path / str(rank), weights_only=True)
        assert weights.keys() == alone.keys()
        for name, weight in weights.items():
            assert torch.allclose(weight, alone[name], rtol=0, atol=1e-12), name
            assert not torch.equal(weight, start[name]), name
