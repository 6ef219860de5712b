"""Steps of a learner under any layout of its ranks, with whole gradients and whole weights to compare."""

import json
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from paceline.config.layout import Sizes
from paceline.config.objective import LossConfig, OptimConfig
from paceline.config.sections import LoraConfig
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.models.lora import add_adapter, make_lora_config
from paceline.models.parallel.mesh import make_mesh
from paceline.models.parallel.mesh_ranks import MeshLayout, MeshRanks
from paceline.models.parallel.process_group import Meeting, process_group
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.models.parallel.sharding import Sharding
from paceline.reports.trackers import flat_numbers
from paceline.training.learner.learner import Learner
from paceline.types import Completion, Rollout, RolloutGroup, Task, Trajectory, completed
from tests.laws.splitting import EVERYTHING, MAX_LENGTH, TEMPERATURE
from tests.support.episodes import random_conversation
from tests.support.exact import Float64Kept
from tests.support.families import family, make_model
from tests.support.tiny import tiny_model, with_exact_norms

CPU = torch.device("cpu")
LAYOUTS = {
    "2 replicas": (Sizes(replicate=2), Sharding(stage=0)),
    "ZeRO-1 over 2": (Sizes(shard=2), Sharding(stage=1)),
    "ZeRO-2 over 2": (Sizes(shard=2), Sharding(stage=2)),
    "ZeRO-3 over 2": (Sizes(shard=2), Sharding(stage=3)),
    "tensor 2": (Sizes(tensor=2), Sharding(stage=0)),
    "pipeline 2": (Sizes(pipeline=2), Sharding(stage=0)),
    "context 2": (Sizes(replicate=2, context=2), Sharding(stage=0)),
    "context 2 of ZeRO-3 over 2": (Sizes(shard=2, context=2), Sharding(stage=3)),
    "ZeRO-3 over 3": (Sizes(shard=3), Sharding(stage=3)),
    "4 replicas": (Sizes(replicate=4), Sharding(stage=0)),
    "ZeRO-2 over 4": (Sizes(shard=4), Sharding(stage=2)),
    "2 replicas of ZeRO-3 over 2": (Sizes(replicate=2, shard=2), Sharding(stage=3)),
    "ZeRO-3 over 2 of tensor 2": (Sizes(shard=2, tensor=2), Sharding(stage=3)),
    "pipeline 2 of tensor 2": (Sizes(pipeline=2, tensor=2), Sharding(stage=0)),
    "pipeline 2 of 2 replicas": (Sizes(pipeline=2, replicate=2), Sharding(stage=0)),
    "pipeline 2 of ZeRO-3 over 2": (Sizes(pipeline=2, shard=2), Sharding(stage=3)),
    "2 copies of context 2": (Sizes(replicate=4, context=2), Sharding(stage=0)),
    "ZeRO-3 over 4 of context 2": (Sizes(shard=4, context=2), Sharding(stage=3)),
    "context 4": (Sizes(replicate=4, context=4), Sharding(stage=0)),
    "context 2 of tensor 2": (Sizes(replicate=2, context=2, tensor=2), Sharding(stage=0)),
    "pipeline 2 of context 2": (Sizes(pipeline=2, replicate=2, context=2), Sharding(stage=0)),
}
OPTIMS = {
    "one update": OptimConfig(learning_rate=1e-3),
    "two passes in two updates": OptimConfig(learning_rate=1e-3, num_iterations=2, num_minibatches=2),
    "many micro-batches": OptimConfig(learning_rate=1e-3, micro_batch_tokens=24),
}
LOSSES = {"grpo": LossConfig(), "everything": EVERYTHING}
STEPS = [(3, 2, 4, 1), (1,), (), (2, 0, 0), (5, 5)]
"""Completions with an advantage in each group of a step: also fewer groups than ranks, and a step without any."""
STEPS_OF_TABLE = STEPS[:2]
"""Steps of the models' table, whose layers cost seconds: what a step may lack is a matter of layouts, not of layers."""


def groups_of(sizes: Sequence[int], chance: random.Random) -> list[RolloutGroup]:
    """Groups of so many completions with an advantage, each with one more that has none."""
    tasks = [
        Task(task_id=str(number), prompt="", prompt_ids=letters(chance, 9), answer=None) for number in range(len(sizes))
    ]
    return [
        RolloutGroup(
            task=task,
            rollouts=tuple(
                Rollout(trajectory=completion(chance, task.prompt_ids), rewards={}, reward=0.0, advantage=advantage)
                for advantage in [*(chance.gauss(0, 1) for _ in range(size)), 0.0]
            ),
        )
        for task, size in zip(tasks, sizes, strict=True)
    ]


def letters(chance: random.Random, longest: int) -> tuple[int, ...]:
    return tuple(chance.randrange(256) for _ in range(chance.randint(1, longest)))


def completion(chance: random.Random, prompt: Sequence[int]) -> Trajectory:
    """A completion of one turn, or a conversation in one row or several."""
    if chance.random() < 0.4:
        return random_conversation(chance, prompt=prompt)
    ids = letters(chance, MAX_LENGTH)
    one = Completion(token_ids=ids, logprobs=(-5.0,) * len(ids), finish_reason="stop", text="", policy_version=0)
    return completed(tuple(prompt), one)


def qwen2(dtype: torch.dtype, seed: int, layers: int = 2) -> Loaded:
    return _loaded(tiny_model("qwen2", dtype=dtype, seed=seed, layers=layers), dtype)


def qwen3(dtype: torch.dtype, seed: int, layers: int = 2) -> Loaded:
    return _loaded(tiny_model("qwen3", dtype=dtype, seed=seed, layers=layers), dtype)


def llama_with_one_embedding(dtype: torch.dtype, seed: int, layers: int = 2) -> Loaded:
    model = tiny_model("llama", dtype=dtype, seed=seed, layers=layers, key_value_heads=1)  # ranks share it
    model.config.tie_word_embeddings = True
    model.get_output_embeddings().weight = model.get_input_embeddings().weight
    return _loaded(model, dtype)


def with_adapter(loaded: Loaded, dtype: torch.dtype, seed: int) -> Loaded:
    loaded = add_adapter(loaded, make_lora_config(LoraConfig(lora_rank=4)), seed=seed)
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for parameter in loaded.model.parameters():
        if parameter.requires_grad:  # the second matrices start as zeros, under which the first have no gradient
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    return loaded


def of_table(name: str, dtype: torch.dtype, seed: int, layers: int = 2) -> Loaded:
    """A family of the models' table, with the layers that it has there."""
    model = make_model(family(name)).to(dtype)
    model.config._experts_implementation = "eager"  # transformers' other products refuse float64
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    return Loaded(model=model.train(), compute_dtype=dtype)


FAMILIES: dict[str, Callable[[torch.dtype, int, int], Loaded]] = {
    "qwen2": qwen2,
    "qwen3": qwen3,
    "llama, one embedding": llama_with_one_embedding,
    "qwen2, LoRA": lambda dtype, seed, layers: with_adapter(qwen2(dtype, seed, layers), dtype, seed),
}
"""Families that every layout of two ranks is tried with."""
OF_TABLE = ("gemma3_text", "gpt_oss", "qwen3_5_text", "lfm2", "granitemoehybrid")
"""Families with windows, sinks, experts, convolutions or recurrent states."""
ALL = {
    **FAMILIES,
    **{name: partial(of_table, name) for name in (*OF_TABLE, "qwen3_moe")},
    **{
        f"{name}, LoRA": lambda dtype, seed, layers, name=name: with_adapter(of_table(name, dtype, seed), dtype, seed)
        for name in OF_TABLE
    },
}


def _loaded(model: PreTrainedModel, dtype: torch.dtype) -> Loaded:
    model = with_exact_norms(model) if dtype == torch.float64 else model
    return Loaded(model=model.train(), compute_dtype=dtype)


def learner(name: str, loss: str, optim: str, dtype: torch.dtype, ranks: Ranks, *, layers: int = 2) -> Learner:
    """A learner on this rank's part of the model."""
    policy = ALL[name](dtype, 0, layers)
    forward = choose_forward(policy.model)
    reference = None
    if LOSSES[loss].beta > 0:
        reference = policy if policy.adapter is not None else ALL[name](dtype, 1, layers)
        choose_forward(reference.model)
    for model in {id(one): one.model for one in (policy, reference) if one is not None}.values():
        if isinstance(ranks.parallel_layout, MeshLayout):
            ranks.parallel_layout.apply(model, dtype)
    return Learner(
        policy,
        forward,
        reference=reference,
        loss=LOSSES[loss],
        # for the micro-batches of one process: ranks that share their tokens take as many more
        optim=replace(OPTIMS[optim], micro_batch_tokens=OPTIMS[optim].micro_batch_tokens // ranks.sizes.context),
        temperature=TEMPERATURE,
        max_completion_length=MAX_LENGTH,
        ranks=ranks,
    )


def trained(half: Learner, family: str) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Whole weights of what is on this rank after all steps, by name, and what each step reported."""
    chance = random.Random(5)
    numbers = STEPS if family in FAMILIES else STEPS_OF_TABLE
    steps = [half.step(groups_of(sizes, chance), learning_rate=1e-3) for sizes in numbers]
    stats = [flat_numbers(asdict(one)) for one in steps]
    moved = {name: one for name, one in half.policy.model.named_parameters() if one.requires_grad}
    return {name: _whole(one) for name, one in moved.items()}, stats


def gradient(half: Learner) -> tuple[dict[str, Tensor], float]:
    """Whole gradients of what is on this rank, by name, and the loss, of a first step."""
    found = dict[str, Tensor]()

    class Noted(torch.optim.Optimizer):
        def step(self, closure: Callable[[], float] | None = None) -> None:
            named = half.policy.model.named_parameters()
            found.update({name: _whole(one.grad) for name, one in named if one.grad is not None})

    half.optimizer = Noted(half.optimizer.param_groups, {})
    stats = half.step(groups_of(STEPS[0], random.Random(5)), learning_rate=1e-3)
    return found, stats.loss


def _whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def work(rank: int, folder: str, cases: Sequence[tuple[str, str, str, str]]) -> None:
    """One of as many ranks as any layout has: every case of so many ranks, then those of fewer, which the last ones
    leave; each writes down what it holds."""
    torch.set_num_threads(1)
    for size in sorted({LAYOUTS[layout][0].ranks for layout, *_ in cases}, reverse=True):
        if rank < size:
            meeting = Meeting(file=Path(folder, f"meeting-{size}"))
            with process_group(meeting, rank=rank, size=size, device=CPU, timeout=60):
                for case in cases:
                    if LAYOUTS[case[0]][0].ranks == size:
                        _try(rank, Path(folder), *case)


def _try(rank: int, folder: Path, layout: str, family: str, loss: str, optim: str) -> None:
    sizes, sharding = LAYOUTS[layout]
    mesh = make_mesh(sizes, CPU)
    ranks = MeshRanks(mesh, MeshLayout(mesh=mesh, sharding=sharding))
    place = folder / file_name(layout, family, loss, optim)
    place.mkdir(exist_ok=True)
    with exact(family):
        weights, stats = trained(learner(family, loss, optim, torch.float64, ranks), family)
    gradients, value = gradient(learner(family, loss, optim, torch.float32, ranks))
    torch.save({"weights": weights, "gradients": gradients}, place / f"rank-{rank}.pt")
    (place / f"rank-{rank}.json").write_text(json.dumps({"stats": stats, "loss": value}))


def exact(family: str) -> AbstractContextManager[object]:
    """Compute in float64 throughout, where a family casts to float32 in more than its norms."""
    return nullcontext() if family in FAMILIES else Float64Kept()


def file_name(*case: str) -> str:
    return ", ".join(case)


def alone(family: str, loss: str, optim: str) -> tuple[dict[str, Tensor], list, dict[str, Tensor], float]:
    """Weights, reports, gradients and loss of one process."""
    with exact(family):
        weights, stats = trained(learner(family, loss, optim, torch.float64, ONE_RANK), family)
    return weights, stats, *gradient(learner(family, loss, optim, torch.float32, ONE_RANK))
