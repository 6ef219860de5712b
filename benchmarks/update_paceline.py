"""Contender of bench_update.py: one learner on groups of random tokens, one way to train."""

import paceline  # noqa: F401, I001 - before torch, as the command does: threads that wait are to sleep

import json
import sys
import time
from dataclasses import replace
from random import Random

import torch
from device_memory import device_peak
from loading import random_model
from materials import FIRST_WORD, SHAPES, config_of
from measuring import Channel, peak_mib
from update_work import Row
from workloads import EPSILONS, LEARNING_RATE

from paceline.config.objective import LossConfig, OptimConfig
from paceline.config.sections import LoraConfig, ModelConfig
from paceline.models.forward import choose_forward
from paceline.models.loading import adopt_model
from paceline.training.learner.learner import Learner
from paceline.types import Completion, Rollout, RolloutGroup, Task, completed


def main(described: str, device: str) -> None:
    """Args:
    described: a `Row` as JSON.
    device: torch's.
    """
    channel, imported = Channel.open(), peak_mib()
    found = json.loads(described)
    row = Row(**{**found, "offload": tuple(found["offload"])})
    learner = made_learner(row, device)
    groups = made_groups(row)
    kind, dtype = learner.runner.forward.kind, str(learner.policy.compute_dtype).removeprefix("torch.")
    channel.reply({"imported_mib": imported, "dtype": dtype, "path": kind, "threads": torch.get_num_threads()})
    for _ in channel.requests():
        channel.reply(update(learner, groups))


def made_learner(row: Row, device: str) -> Learner:
    """A learner as the trainer makes it of these options."""
    config = ModelConfig(model=row.size, device=device, gradient_checkpointing="true" if row.checkpointing else "false")
    model = random_model(config_of(SHAPES[row.size]), device)
    policy = adopt_model(model, config, LoraConfig(lora_rank=row.lora_rank))
    return Learner(
        policy,
        replace(choose_forward(policy.model, policy.compute_dtype), offload="activations" in row.offload),
        reference=None,
        loss=LossConfig(clip_eps_low=EPSILONS[0], clip_eps_high=EPSILONS[1], average="token", beta=0.0),
        optim=OptimConfig(
            learning_rate=LEARNING_RATE,
            micro_batch_tokens=row.micro_batch_tokens,
            optimizer=row.optimizer,
            offload=row.offload,
        ),
        temperature=1.0,
        max_completion_length=row.length,
    )


def made_groups(row: Row) -> list[RolloutGroup]:
    """Random tokens; completions are in turn a little better and a little worse than their group."""
    rng, words = Random(0), range(FIRST_WORD, SHAPES[row.size]["vocab_size"])
    groups = list[RolloutGroup]()
    for number, group in enumerate(row.work):
        prompt_ids = tuple(rng.choices(words, k=group.prompt))
        rollouts = tuple(
            Rollout(
                trajectory=completed(
                    prompt_ids,
                    Completion(
                        token_ids=tuple(rng.choices(words, k=length)),
                        logprobs=(-10.0,) * length,
                        finish_reason="length",
                        text="",
                        policy_version=0,
                    ),
                ),
                rewards={},
                reward=float(sample % 2),
                advantage=1.0 if sample % 2 else -1.0,
            )
            for sample, length in enumerate(group.completions)
        )
        task = Task(task_id=f"random:{number}", prompt="", prompt_ids=prompt_ids, answer=None)
        groups.append(RolloutGroup(task=task, rollouts=rollouts))
    return groups


def update(learner: Learner, groups: list[RolloutGroup]) -> dict[str, object]:
    """One optimiser step with what it took."""
    is_cuda = learner.policy.model.device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    started = time.perf_counter()
    stats = learner.step(groups, learning_rate=LEARNING_RATE)
    if is_cuda:
        torch.cuda.synchronize()
    return {
        "seconds": time.perf_counter() - started,
        "tokens_forwarded": stats.tokens_forwarded,
        "micro_batch_tokens": stats.micro_batch_tokens,
        **device_peak(),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
