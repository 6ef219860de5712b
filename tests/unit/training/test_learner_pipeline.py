"""A learner on two ranks of a pipeline: what saves memory changes no gradient, and whoever is lost is told of."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from paceline.config.layout import Sizes
from paceline.config.objective import LossConfig, OptimConfig
from paceline.errors import DataError, PacelineError
from paceline.models.activations import recompute
from paceline.models.forward import PolicyForward, choose_forward
from paceline.models.loaded import Loaded
from paceline.models.parallel.mesh import make_mesh
from paceline.models.parallel.mesh_ranks import MeshLayout, MeshRanks
from paceline.models.parallel.process_group import Meeting, process_group
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.models.parallel.sharding import Sharding
from paceline.models.tied_embedding import add_up_in_place
from paceline.objective.micro_batches import MicroBatch, pack
from paceline.training.learner.learner import Learner
from tests.laws.layouts import CPU, FAMILIES, gradient
from tests.laws.splitting import MAX_LENGTH, TEMPERATURE, random_samples, relative
from tests.support.forked import fork_ranks

LAYERS, LATE_SECONDS, PATIENCE = 4, 6.0, 60.0
CASES = {
    "layers computed again": "qwen3",
    "layers computed again under an adapter": "qwen2, LoRA",
    "the first layer computed again": "qwen3",
    "an embedding that adds up in place": "llama, one embedding",
    "activations in main memory": "qwen3",
    "bfloat16": "qwen2",
    "bfloat16 under an adapter": "qwen2, LoRA",
}
TOLERANCE = 1e-5
by_case = pytest.mark.parametrize("case", CASES)


def pipeline() -> MeshRanks:
    mesh = make_mesh(Sizes(pipeline=2), CPU)
    return MeshRanks(mesh, MeshLayout(mesh=mesh, sharding=Sharding(stage=0)))


def policy_of(case: str) -> Loaded:
    """The whole model as the case has it."""
    loaded = FAMILIES[CASES[case]](torch.float32, 0, LAYERS)
    if case.startswith("layers computed again"):
        recompute(loaded.model, None)
    if case == "the first layer computed again":
        recompute(loaded.model, 1)
    if case == "an embedding that adds up in place":
        add_up_in_place(loaded.model)
    return replace(loaded, compute_dtype=torch.bfloat16) if case.startswith("bfloat16") else loaded


def learner_of(case: str, ranks: Ranks) -> Learner:
    policy = policy_of(case)
    forward = choose_forward(policy.model, policy.compute_dtype)
    if case == "activations in main memory":
        forward = PolicyForward(kind="packed", reason="", offload=True)
    if isinstance(ranks, MeshRanks):
        ranks.parallel_layout.apply(policy.model, policy.compute_dtype)
    return Learner(
        policy,
        forward,
        reference=None,
        loss=LossConfig(),
        optim=OptimConfig(micro_batch_tokens=16),
        temperature=TEMPERATURE,
        max_completion_length=MAX_LENGTH,
        ranks=ranks,
    )


def two_batches() -> list[MicroBatch]:
    samples = random_samples(0)
    halves = range(len(samples) // 2), range(len(samples) // 2, len(samples))
    return [pack(samples, [1.0] * len(samples), half, dtype=torch.float32) for half in halves]


def fails(number: int, logprobs: Tensor, entropy: Tensor) -> Tensor:
    raise DataError(f"micro-batch {number} is not to be trained on")


def compute(rank: int, folder: str) -> None:
    """One rank: the gradient of every case."""
    torch.set_num_threads(1)
    with process_group(Meeting(file=Path(folder, "meeting")), rank=rank, size=2, device=CPU, timeout=PATIENCE):
        gradients = {case: gradient(learner_of(case, pipeline()))[0] for case in CASES}
        torch.save(gradients, Path(folder, f"gradients {rank}"))


def fail(rank: int, folder: str, is_over) -> None:
    """One rank: what it raises where one of them fails."""
    torch.set_num_threads(1)
    with process_group(Meeting(file=Path(folder, "meeting")), rank=rank, size=2, device=CPU, timeout=LATE_SECONDS):
        half = learner_of("bfloat16", pipeline())
        try:
            half.runner.backward(half.policy, two_batches(), fails)
        except PacelineError as error:
            Path(folder, f"failed {rank}").write_text(f"{type(error).__name__}: {error}")
        if rank == 0:
            is_over.set()
        assert is_over.wait(PATIENCE), "rank 0 still waits"  # rank 1 is there all the time, and silent


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    fork_ranks(compute, str(folder), count=2)
    return folder


@pytest.mark.long
@by_case
def test_the_gradient_is_that_of_one_process(computed, case):
    wanted, _ = gradient(learner_of(case, ONE_RANK))
    held = [torch.load(computed / f"gradients {rank}", weights_only=True)[case] for rank in range(2)]
    assert {name for one in held for name in one} == set(wanted)
    for one in held:
        for name, found in one.items():
            assert relative(found, wanted[name]) < TOLERANCE, name


def test_a_stage_that_fails_says_so_itself_and_its_neighbour_waits_no_longer_than_it_should(tmp_path):
    is_over = torch.multiprocessing.get_context("spawn").Event()
    fork_ranks(fail, str(tmp_path), is_over, count=2)
    assert (tmp_path / "failed 1").read_text() == "DataError: micro-batch 0 is not to be trained on"
    assert (tmp_path / "failed 0").read_text().startswith("RankLost: a pipeline's stage waited when another rank went")
