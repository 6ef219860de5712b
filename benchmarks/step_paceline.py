"""Contender of bench_step.py: Paceline's sampler and learner, as its training loop calls them, without files."""

import paceline  # noqa: F401, I001 - before torch, as the command does: threads that wait are to sleep

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from device_memory import device_peak
from earning import REWARDS
from figures import summary
from given import Given, Prompt, digest
from loading import load_policy, make_engine
from measuring import Channel, peak_mib
from workloads import EPSILONS, LEARNING_RATE, LORA_RANK

from paceline.config.objective import AdvantageConfig, LossConfig, OptimConfig
from paceline.engines import FurtherRequests, OnFinished, Request, Sampling
from paceline.engines.local.engine import LocalEngine
from paceline.training.learner.learner import Learner
from paceline.models.forward import choose_forward
from paceline.models.activations import recompute
from paceline.training.rollouts.rounds import EngineSampler
from paceline.training.rollouts.sampler import Sampler
from paceline.training.rollouts.records import rollout_metrics
from paceline.types import Completion, Task


class Limited:
    """An engine whose completions end where the workload says."""

    takes_further = False

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.limits: list[tuple[int, ...] | None] = []
        """Of the next call's requests, completion by completion."""

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        on_finished: OnFinished | None = None,
        further: FurtherRequests | None = None,
    ) -> list[tuple[Completion, ...]]:
        """See `Engine`; a workload has one turn."""
        assert further is None
        limited = [replace(one, limits=limits) for one, limits in zip(requests, self.limits, strict=True)]
        return self.engine.generate(limited, sampling, on_finished=on_finished)


def main(path: str, threads: str, device: str, memory: str = "") -> None:
    """Args:
    path: of what is given.
    threads, device: torch's; Paceline sets its own threads.
    memory: `recomputing` for every layer computed again, `lora` for an adapter of rank `LORA_RANK`.
    """
    channel, imported = Channel.open(), peak_mib()
    given = Given.read(path)
    engine, sampler, learner = sampler_and_learner(given, device, lora_rank=LORA_RANK if memory == "lora" else 0)
    if memory == "recomputing":
        recompute(learner.policy.model, learner.policy.model.config.num_hidden_layers)
    dtype = str(learner.policy.compute_dtype).removeprefix("torch.")
    paths = f"engine {engine.engine.path}, forward {learner.runner.forward.kind}"
    channel.reply({"imported_mib": imported, "dtype": dtype, "path": paths, "threads": torch.get_num_threads()})
    for request in channel.requests():
        channel.reply(step(engine, sampler, learner, given.repetitions[request["repetition"]]))


def sampler_and_learner(given: Given, device: str, *, lora_rank: int = 0) -> tuple[Limited, Sampler, Learner]:
    """Defaults throughout, but for what bench_step.py says is set alike on all sides."""
    workload = given.workload
    policy = load_policy(given, device=device, lora_rank=lora_rank)
    learner = Learner(
        policy,
        choose_forward(policy.model, policy.compute_dtype),
        reference=None,
        loss=LossConfig(clip_eps_low=EPSILONS[0], clip_eps_high=EPSILONS[1], average="token", beta=0.0),
        optim=OptimConfig(learning_rate=LEARNING_RATE),
        temperature=1.0,
        max_completion_length=workload.max_new_tokens,
    )
    engine = Limited(make_engine(given, policy))
    options, weights = AdvantageConfig(), {workload.reward: 1.0}
    rounds = EngineSampler(
        engine=engine,
        functions={workload.reward: REWARDS[workload.reward]},
        sampling=Sampling(max_completion_length=workload.max_new_tokens),
        num_generations=workload.num_generations,
        advantage=options,
        reward_timeout=60.0,
        seed=0,
    )
    sampler = Sampler(
        rounds=rounds,
        weights=weights,
        advantage=options,
        max_completion_length=workload.max_new_tokens,
        max_failure_rate=0.0,
    )
    return engine, sampler, learner


def step(engine: Limited, sampler: Sampler, learner: Learner, prompts: Sequence[Prompt]) -> dict[str, object]:
    """One optimiser step with what it did."""
    tasks = [task_of(prompt) for prompt in prompts]
    engine.limits = [prompt.limits for prompt in prompts]
    started = time.perf_counter()
    batch = sampler.sample(lambda count: [(task, 0) for task in tasks[:count]], len(tasks))
    stats = learner.step(batch.groups, learning_rate=LEARNING_RATE)
    engine.engine.policy_version = learner.policy_version
    seconds = time.perf_counter() - started
    made = rollout_metrics(batch)
    rollouts = [rollout for group in batch.groups for rollout in group.rollouts]
    return {
        "seconds": seconds,
        "generate_seconds": batch.generate_seconds,
        "prompts": digest([task.prompt for task in tasks]),
        "completions": len(rollouts),
        "tokens": made["tokens_generated"],
        "lengths": summary([len(rollout.trajectory.completion_ids) for rollout in rollouts]),
        "rewards": summary([rollout.reward for rollout in rollouts]),
        "groups_without_signal": made["groups_zero_deviation"],
        "tokens_trained": stats.tokens_trained,
        "tokens_forwarded": stats.tokens_forwarded,
        "mismatch": stats.logprob_mismatch_max,
        **device_peak(),
    }


def task_of(prompt: Prompt) -> Task:
    """A prompt as the sampler takes it."""
    return Task(
        task_id=prompt.task_id,
        prompt=prompt.text,
        prompt_ids=prompt.ids,
        answer=prompt.answer,
        columns={"answer": prompt.answer},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
