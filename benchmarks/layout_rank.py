"""One rank of bench_layouts.py: a learner on its part of a model, some updates, its peak memory.

python layout_rank.py SHAPE ZERO_STAGE RANKS TOKENS UPDATES FOLDER RANK
"""

import json
import random
import sys
from pathlib import Path

import torch
from materials import SHAPES
from transformers import Qwen2Config, Qwen2ForCausalLM

from paceline.config.layout import ParallelConfig
from paceline.config.objective import LossConfig, OptimConfig
from paceline.config.sections import ModelConfig
from paceline.models.activations import recompute
from paceline.models.forward import choose_forward
from paceline.models.loading import adopt_model
from paceline.models.parallel.mesh_ranks import make_ranks
from paceline.models.parallel.process_group import Meeting, process_group
from paceline.training.learner.learner import Learner
from paceline.types import Completion, Rollout, RolloutGroup, Task, completed

GENERATIONS = 4
PROMPT = 16
CPU = torch.device("cpu")


def status(name: str) -> int:
    """A number of bytes in /proc/self/status."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) * 1024


def groups(chance: random.Random, *, tokens: int, vocabulary: int, count: int) -> list[RolloutGroup]:
    """Of four completions each, with `tokens` input tokens."""
    length = (tokens - PROMPT) // GENERATIONS + 1

    def letters(number: int) -> tuple[int, ...]:
        return tuple(chance.randrange(vocabulary) for _ in range(number))

    def rollout(prompt_ids: tuple[int, ...]) -> Rollout:
        completion = Completion(
            token_ids=letters(length), logprobs=(-9.0,) * length, finish_reason="length", text="", policy_version=0
        )
        trajectory = completed(prompt_ids, completion)
        return Rollout(trajectory=trajectory, rewards={}, reward=0.0, advantage=chance.gauss(0, 1))

    tasks = [Task(task_id=str(number), prompt="", prompt_ids=letters(PROMPT), answer=None) for number in range(count)]
    return [
        RolloutGroup(task=task, rollouts=tuple(rollout(task.prompt_ids) for _ in range(GENERATIONS))) for task in tasks
    ]


def main(words: list[str]) -> None:
    """See above; writes `rank-N.json` into the folder."""
    shape, folder = words[0], Path(words[5])
    stage, ranks, tokens, updates, rank = map(int, [*words[1:5], words[6]])
    torch.manual_seed(0)
    with process_group(Meeting(file=folder / "meeting"), rank=rank, size=ranks, device=CPU, timeout=600):
        before = status("VmRSS")
        config = Qwen2Config(**SHAPES[shape])
        policy = adopt_model(Qwen2ForCausalLM(config), ModelConfig(model=shape, threads=1))
        recompute(policy.model, None)
        forward = choose_forward(policy.model, policy.compute_dtype)
        place = make_ranks(ParallelConfig(zero_stage=stage), CPU)
        place.parallel_layout.apply(policy.model, policy.compute_dtype)
        learner = Learner(
            policy,
            forward,
            reference=None,
            loss=LossConfig(),
            optim=OptimConfig(micro_batch_tokens=tokens),
            temperature=1.0,
            max_completion_length=tokens,
            ranks=place,
        )
        chance = random.Random(0)
        for _ in range(updates):
            step = groups(chance, tokens=tokens, vocabulary=config.vocab_size, count=ranks)
            stats = learner.step(step, learning_rate=1e-6)
        found = {"before": before, "peak": status("VmHWM"), "loss": stats.loss, "grad_norm": stats.grad_norm}
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
