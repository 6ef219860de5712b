"""Contender of bench_step.py: Paceline's two half-steps, as its training loop calls them, without files."""

import sys
import time

import torch
from figures import summary
from materials import REWARDS, Materials, digest, make_materials
from measuring import Channel, peak_mib
from workloads import EPSILONS, LEARNING_RATE, STEP, Workload, find

from paceline.config import AdvantageConfig, LossConfig, OptimConfig
from paceline.engines import Sampling
from paceline.engines.local import LocalEngine
from paceline.learner import Learner
from paceline.models import Loaded, choose_forward
from paceline.products import speed_up_linear_layers
from paceline.rollouts import Producer, rollout_metrics


def main(name: str, is_quick: str, threads: str) -> None:
    channel, imported = Channel.open(), peak_mib()
    workload = find(STEP, name, is_quick=bool(int(is_quick)))
    materials = make_materials(workload, threads=int(threads))
    engine, producer, learner = halves(workload, materials)
    paths = f"engine {engine.path}, forward {learner.forward.kind}"
    channel.reply({"imported_mib": imported, "path": paths})
    for request in channel.requests():
        channel.reply(step(engine, producer, learner, materials.tasks[request["repetition"]]))


def halves(workload: Workload, materials: Materials) -> tuple[LocalEngine, Producer, Learner]:
    """Defaults throughout, but for what bench_step.py says is set alike on all sides."""
    speed_up_linear_layers(materials.model)  # as `load_model` does
    policy = Loaded(model=materials.model.train(), compute_dtype=torch.float32, eos_token_ids=materials.eos_token_ids)
    learner = Learner(
        policy,
        choose_forward(policy.model),
        reference=None,
        loss=LossConfig(clip_eps_low=EPSILONS[0], clip_eps_high=EPSILONS[1], average="token", beta=0.0),
        optim=OptimConfig(learning_rate=LEARNING_RATE),
        temperature=1.0,
        max_completion_length=workload.max_new_tokens,
    )
    engine = LocalEngine(
        policy.model,
        materials.tokenizer,
        concurrent_sequences=workload.completions,
        compute_dtype=policy.compute_dtype,
        eos_token_ids=policy.eos_token_ids,
    )
    producer = Producer(
        engine=engine,
        functions={workload.reward: REWARDS[workload.reward]},
        weights={workload.reward: 1.0},
        sampling=Sampling(max_completion_length=workload.max_new_tokens),
        num_generations=workload.num_generations,
        advantage=AdvantageConfig(),
        max_failure_rate=0.0,
        seed=0,
    )
    return engine, producer, learner


def step(engine: LocalEngine, producer: Producer, learner: Learner, tasks) -> dict[str, object]:
    """One optimiser step with what it did."""
    started = time.perf_counter()
    batch = producer.make(lambda count: [(task, 0) for task in tasks[:count]], len(tasks))
    stats = learner.step(batch.groups, learning_rate=LEARNING_RATE)
    engine.policy_version = learner.policy_version
    seconds = time.perf_counter() - started
    made = rollout_metrics(batch)
    rollouts = [rollout for group in batch.groups for rollout in group.rollouts]
    return {
        "seconds": seconds,
        "generate_seconds": batch.generate_seconds,
        "prompts": digest(task.prompt for task in tasks),
        "completions": len(rollouts),
        "tokens": made["tokens_generated"],
        "lengths": summary([len(rollout.completion.token_ids) for rollout in rollouts]),
        "rewards": summary([rollout.reward for rollout in rollouts]),
        "groups_without_signal": made["groups_zero_deviation"],
        "tokens_trained": stats.tokens_trained,
        "tokens_forwarded": stats.tokens_forwarded,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
