"""From a configuration, and objects that a program hands over, to the parts of a run: first all that needs no weights.

So mistakes cost seconds, whichever door a run comes through.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from paceline.checkpoint import Checkpoint, load_optimizer, load_reference_weights
from paceline.config import Config
from paceline.data import TaskSet, build_tasks, load_rows, system_prompt
from paceline.engines import TrainedEngine
from paceline.engines.local import LocalEngine
from paceline.errors import ConfigError
from paceline.learner import Learner
from paceline.models import (
    Loaded,
    adopt_model,
    choose_device,
    choose_forward,
    context_length,
    frozen_copy,
    load_model,
    load_reference,
    load_tokenizer,
    restore_weights,
)
from paceline.plan import BatchPlan, batch_plan
from paceline.reward_context import reward_context
from paceline.rewards import (
    RewardFunction,
    check_selections,
    default_system_prompt,
    load_reward_model,
    resolve,
    row_check,
    self_test,
    unmet_needs,
)
from paceline.rollouts import Producer
from paceline.train.held_out import check_completion_fits, check_prompts_fit, has_held_out, make_evaluator
from paceline.train.measuring import Meter, reward_meter, training_producer, training_sampler
from paceline.train.memory import Recomputing, check_memory_options, choose_recomputing, memory_for_activations
from paceline.train.rates import SteppedRate
from paceline.train.vllm import make_vllm_engine
from paceline.types import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """Objects of a program's own, each in the place of what the configuration names; None: as configured."""

    model: Any = None
    """A transformers model, with or without an adapter; it is trained in place."""
    adapter: Any = None
    """A configuration of `peft` for a new adapter."""
    tokenizer: PreTrainedTokenizerBase | None = None
    functions: Mapping[str, RewardFunction] | None = None
    reward_models: Mapping[str, str] | None = None
    """Name to directory or Hub name; loaded after everything that is cheap to refuse."""
    reward_tokenizers: Mapping[str, PreTrainedTokenizerBase] = field(default_factory=dict)
    """Tokenizers of `reward_models` by the same names; where there is none, the model's own is read."""
    tasks: TaskSet | None = None
    held_out: Mapping[str, tuple[Task, ...]] | None = None
    """Sets to measure the training rewards on, by name; with `tasks` None means none."""
    optimizer: torch.optim.Optimizer | None = None
    """Over parameters of `model`."""
    make_scheduler: Callable[[torch.optim.Optimizer, int], Any] | None = None
    """From the optimiser and the updates of the run to the torch scheduler that sets its rate, `step()` per update."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What a run works on, checked, before any weight of the policy is read."""

    tokenizer: PreTrainedTokenizerBase
    functions: Mapping[str, RewardFunction]
    tasks: TaskSet
    unverified: tuple[str, ...]
    """Sampled tasks whose gold answer a reward function does not give full marks: too few to refuse the dataset."""
    unmet: tuple[str, ...]
    """What tasks lack that a reward function needs, a sentence each: it gives them no number."""
    meters: tuple[Meter, ...]
    """One per held-out set; none when there are no held-out tasks."""
    plan: BatchPlan
    total_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The two halves around one set of weights."""

    policy: Loaded
    engine: TrainedEngine
    producer: Producer
    learner: Learner
    rate: SteppedRate | None
    """Where a torch scheduler sets the learning rate; None: the options' schedule does."""
    recomputing: Recomputing | None = None
    """What `--gradient-checkpointing auto` chose; None where it did not choose."""


def prepare(config: Config, given: Given | None = None) -> Prepared:
    """Tokenizer, reward functions, tasks and held-out tasks.

    Raises:
        ConfigError, DataError, ModelError, RewardError: the sentence names the option or row and the remedy.
    """
    given = given or Given()
    functions = dict(_configured_functions(config) if given.functions is None else given.functions)
    check_memory_options(config, choose_device(config.model))
    limit, completion = positions(config, given), config.sampling.max_completion_length
    check_completion_fits(completion, limit=limit)
    tokenizer = given.tokenizer or load_tokenizer(config.model)
    tasks = given.tasks or _configured_tasks(config, tokenizer, functions)
    for some in (tasks.tasks, *(given.held_out or {}).values()):
        check_prompts_fit(some, limit=limit, completion=completion)
    check_selections(config.rewards.names, tasks.tasks)
    are_all, timeout = len(functions) == len(config.rewards.names), config.rewards.reward_timeout
    unverified = self_test(functions, tasks.tasks, are_all=are_all, timeout=timeout)
    plan = batch_plan(config, len(tasks.tasks))
    assert plan.steps is not None  # the tasks are counted
    evaluator = make_evaluator(config, tokenizer) if given.tasks is None and has_held_out(config) else None
    functions = _with_reward_models(functions, config, given)
    return Prepared(
        tokenizer=tokenizer,
        functions=functions,
        tasks=tasks,
        unverified=unverified,
        unmet=unmet_needs(functions, tasks.tasks),
        meters=_reward_meters(config, given, functions) if evaluator is None else (evaluator,),
        plan=plan,
        total_steps=plan.steps,
    )


def positions(config: Config, given: Given) -> int | None:
    """Positions that the policy can tell apart, None where its configuration does not say."""
    if given.model is None:
        return context_length(config.model)
    return getattr(given.model.config.get_text_config(), "max_position_embeddings", None)


def _configured_functions(config: Config) -> dict[str, RewardFunction]:
    context = reward_context(config.rewards, config.sampling)
    return {name: resolve(name, context) for name in config.rewards.functions}


def _configured_tasks(
    config: Config, tokenizer: PreTrainedTokenizerBase, functions: Mapping[str, RewardFunction]
) -> TaskSet:
    resolve(config.evaluation.eval_reward_func, reward_context(config.rewards, config.sampling))
    rows = load_rows(config.data.dataset, split=config.data.dataset_split, size=config.data.dataset_size)
    system = system_prompt(config.data, default_system_prompt(config.rewards.functions))
    return build_tasks(rows, tokenizer, config.data, system=system, check=row_check(functions))


def _with_reward_models(
    functions: Mapping[str, RewardFunction], config: Config, given: Given
) -> dict[str, RewardFunction]:
    """Functions and models in the order of the configuration's names."""
    addresses = given.reward_models or {name: name for name in config.rewards.reward_models}
    device = choose_device(config.model)
    models = {
        name: load_reward_model(address, device=device, tokenizer=given.reward_tokenizers.get(name))
        for name, address in addresses.items()
    }
    return {name: functions[name] if name in functions else models[name] for name in config.rewards.names}


def _reward_meters(config: Config, given: Given, functions: Mapping[str, RewardFunction]) -> tuple[Meter, ...]:
    return tuple(
        reward_meter(config, functions, name=name, tasks=tasks, generations=config.evaluation.eval_generations)
        for name, tasks in (given.held_out or {}).items()
    )


def make_engine(config: Config, policy: Loaded, tokenizer: PreTrainedTokenizerBase) -> TrainedEngine:
    """The engine on the policy's own weights, or on vLLM's copy of them."""
    if config.engine.engine == "vllm":
        return make_vllm_engine(config, policy, tokenizer)
    return LocalEngine(
        policy.model,
        tokenizer,
        concurrent_sequences=config.engine.concurrent_sequences,
        compute_dtype=policy.compute_dtype,
        eos_token_ids=policy.eos_token_ids,
    )


def assemble(
    config: Config, prepared: Prepared, given: Given | None = None, *, checkpoint: Checkpoint | None = None
) -> Parts:
    """Read the weights, from the checkpoint where there is one, and build both halves on them.

    A given model is taken as it is: `restore` puts a checkpoint into it.
    """
    given = given or Given()
    policy = _policy(config, given, checkpoint)
    if given.tokenizer is not None and given.tokenizer.eos_token_id is not None:
        policy = replace(policy, eos_token_ids=policy.eos_token_ids | {given.tokenizer.eos_token_id})
    learner = Learner(
        policy,
        replace(choose_forward(policy.model, policy.compute_dtype), offload=config.model.activation_offload),
        reference=_reference(config, given, policy),
        loss=config.loss,
        optim=config.optim,
        temperature=config.sampling.temperature,
        max_completion_length=config.sampling.max_completion_length,
        optimizer=given.optimizer,
    )
    recomputing = choose_recomputing(
        config, learner, prepared.tasks.tasks, free=memory_for_activations(config, learner)
    )
    rate = None
    if given.make_scheduler is not None:
        updates = prepared.total_steps * updates_per_step(config)
        rate = SteppedRate(learner.optimizer, given.make_scheduler(learner.optimizer, updates))
    engine = make_engine(config, policy, prepared.tokenizer)
    if checkpoint is not None:
        _go_on(learner, engine, checkpoint)
    producer = training_producer(config, training_sampler(config, engine, prepared.functions))
    return Parts(policy=policy, engine=engine, producer=producer, learner=learner, rate=rate, recomputing=recomputing)


def restore(config: Config, parts: Parts, checkpoint: Checkpoint) -> None:
    """Put weights, optimiser, rate and counts of a checkpoint into parts that were built without it."""
    restore_weights(parts.policy, checkpoint.model)
    _go_on(parts.learner, parts.engine, checkpoint)
    if parts.rate is not None:
        parts.rate.go_to(checkpoint.progress.step * updates_per_step(config))


def updates_per_step(config: Config) -> int:
    """Updates that a step makes where its completions carry signal."""
    return config.optim.num_iterations * config.optim.num_minibatches


def _go_on(learner: Learner, engine: TrainedEngine, checkpoint: Checkpoint) -> None:
    load_optimizer(checkpoint, learner.optimizer, learner.policy.model)
    learner.policy_version = checkpoint.progress.policy_version
    engine.take_weights(learner.policy_version)
    if learner.loss.ref_sync_steps and learner.reference is not None:
        load_reference_weights(checkpoint, learner.reference)


def _policy(config: Config, given: Given, checkpoint: Checkpoint | None) -> Loaded:
    adapter = config.lora if given.adapter is None else given.adapter
    if given.model is not None:
        return adopt_model(given.model, config.model, adapter, seed=config.loop.seed)
    place = None if checkpoint is None else checkpoint.model
    return load_model(config.model, adapter, checkpoint=place, seed=config.loop.seed)


def _reference(config: Config, given: Given, policy: Loaded) -> Loaded | None:
    if config.loss.beta == 0:
        return None
    if config.loss.ref_sync_steps and policy.adapter is not None:
        raise ConfigError(
            f"--ref-sync-steps must be 0 with an adapter, got {config.loss.ref_sync_steps}; "
            "the reference is the model without it"
        )
    return load_reference(policy, config.model) if given.model is None else frozen_copy(policy)
