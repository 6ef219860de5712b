"""Law 1 over ranks, through whole steps: learners that share them out end with the weights of one that does all."""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from paceline.config import LossConfig, OptimConfig
from paceline.learner import Learner
from paceline.models import Loaded, choose_forward
from paceline.parallel import ONE_RANK, Meeting, Ranks, joined_ranks
from paceline.types import Completion, Rollout, RolloutGroup, Task
from tests.laws.splitting import EVERYTHING, MAX_LENGTH, TEMPERATURE, relative
from tests.tiny import tiny_model, with_exact_norms

TOLERANCE = 1e-10
OPTIMS = {
    "one update": OptimConfig(learning_rate=1e-3),
    "two passes in two updates": OptimConfig(learning_rate=1e-3, num_iterations=2, num_minibatches=2),
    "many micro-batches": OptimConfig(learning_rate=1e-3, micro_batch_tokens=8),
}
LOSSES = {"grpo": LossConfig(), "everything": EVERYTHING}
CASES = [(loss, optim) for loss in LOSSES for optim in OPTIMS]
STEPS = [(3, 2, 4, 1), (1,), (), (2, 0, 0), (5, 5)]
"""Completions with an advantage in each group of a step: also fewer groups than ranks, and a step without any."""


def groups_of(sizes: Sequence[int], chance: random.Random) -> list[RolloutGroup]:
    """Groups of so many completions with an advantage, each with one more that has none."""
    return [
        RolloutGroup(
            task=Task(task_id=str(number), prompt="", prompt_ids=letters(chance, 9), answer=None),
            rollouts=tuple(
                Rollout(completion=completion(chance), rewards={}, reward=0.0, advantage=advantage)
                for advantage in [*(chance.gauss(0, 1) for _ in range(size)), 0.0]
            ),
        )
        for number, size in enumerate(sizes)
    ]


def letters(chance: random.Random, longest: int) -> tuple[int, ...]:
    return tuple(chance.randrange(256) for _ in range(chance.randint(1, longest)))


def completion(chance: random.Random) -> Completion:
    ids = letters(chance, MAX_LENGTH)
    return Completion(token_ids=ids, logprobs=(-5.0,) * len(ids), finish_reason="stop", text="", policy_version=0)


def loaded(seed: int) -> Loaded:
    model = with_exact_norms(tiny_model("qwen2", dtype=torch.float64, seed=seed)).train()
    return Loaded(model=model, compute_dtype=torch.float64, eos_token_ids=frozenset())


def trained(loss: LossConfig, optim: OptimConfig, ranks: Ranks) -> tuple[torch.Tensor, list[dict[str, object]]]:
    """The weights after all steps, and what each step reported."""
    policy, reference = loaded(0), loaded(1) if loss.beta > 0 else None
    if reference is not None:
        choose_forward(reference.model)
    half = Learner(
        policy,
        choose_forward(policy.model),
        reference=reference,
        loss=loss,
        optim=optim,
        temperature=TEMPERATURE,
        max_completion_length=MAX_LENGTH,
        ranks=ranks,
    )
    chance = random.Random(5)
    stats = [asdict(half.step(groups_of(sizes, chance), learning_rate=1e-3)) for sizes in STEPS]
    return torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()]), stats


def work(rank: int, size: int, folder: str) -> None:
    """One rank: every case; each writes down its weights, the first one what was reported."""
    torch.set_num_threads(1)
    meeting = Meeting(file=Path(folder, "meeting"))
    with joined_ranks(meeting, rank=rank, size=size, device=torch.device("cpu"), timeout=60) as ranks:
        found = [trained(LOSSES[loss], OPTIMS[optim], ranks) for loss, optim in CASES]
    torch.save([weights for weights, _ in found], Path(folder, f"weights-{rank}.pt"))
    if rank == 0:
        Path(folder, "stats.json").write_text(json.dumps([stats for _, stats in found]))


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def ranks(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, args=(request.param, str(folder)), nprocs=request.param)
    weights = [torch.load(folder / f"weights-{rank}.pt", weights_only=True) for rank in range(request.param)]
    return weights, json.loads((folder / "stats.json").read_text())


@pytest.fixture(scope="module")
def alone():
    return [trained(LOSSES[loss], OPTIMS[optim], ONE_RANK) for loss, optim in CASES]


@pytest.mark.parametrize("case", range(len(CASES)), ids=map(", ".join, CASES))
def test_ranks_end_with_the_weights_of_one_that_does_it_all(ranks, alone, case):
    start = torch.cat([parameter.detach().flatten() for parameter in loaded(0).model.parameters()])
    assert relative(alone[case][0], start) > 1e-4, "training moved the weights"
    assert relative(ranks[0][0][case], alone[case][0]) < TOLERANCE


@pytest.mark.parametrize("case", range(len(CASES)), ids=map(", ".join, CASES))
def test_all_ranks_have_the_same_weights_bit_for_bit(ranks, case):
    first, *others = (weights[case] for weights in ranks[0])
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("case", range(len(CASES)), ids=map(", ".join, CASES))
def test_what_is_reported_is_of_all_ranks(ranks, alone, case):
    for shared, whole in zip(ranks[1][case], alone[case][1], strict=True):
        # a prompt whose completions two ranks share is computed by both, and a share is cut where it ends
        forwarded, at_least = shared.pop("tokens_forwarded"), whole["tokens_forwarded"]
        assert at_least <= forwarded <= 3 * at_least
        assert shared == pytest.approx({name: value for name, value in whole.items() if name != "tokens_forwarded"})
