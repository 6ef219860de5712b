"""From a configuration to the parts of a run: first all that needs no weights, so that mistakes cost seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from paceline.checkpoint import Checkpoint, load_optimizer
from paceline.config import Config
from paceline.data import TaskSet, build_tasks, has_split, load_rows, system_prompt
from paceline.engines import Sampling
from paceline.engines.local import LocalEngine
from paceline.errors import ConfigError
from paceline.evaluate import EvalSet, Evaluator
from paceline.learner import Learner
from paceline.models import Loaded, choose_device, choose_forward, context_length, load_model, load_tokenizer
from paceline.plan import BatchPlan, batch_plan
from paceline.rewards import RewardFunction, default_system_prompt, resolve, self_test
from paceline.rollouts import Producer
from paceline.types import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What a run works on, checked, before any weight is read."""

    tokenizer: PreTrainedTokenizerBase
    functions: Mapping[str, RewardFunction]
    tasks: TaskSet
    unverified: tuple[str, ...]
    """Sampled tasks whose gold answer a reward function does not give full marks: too few to refuse the dataset."""
    evaluator: Evaluator | None
    """None when there are no held-out tasks."""
    plan: BatchPlan
    total_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The two halves around one set of weights."""

    policy: Loaded
    engine: LocalEngine
    producer: Producer
    learner: Learner


def prepare(config: Config) -> Prepared:
    """Tokenizer, reward functions, tasks and held-out tasks.

    Raises:
        ConfigError, DataError, ModelError, RewardError: the sentence names the option or row and the remedy.
    """
    functions = {name: resolve(name) for name in config.rewards.reward_funcs}
    resolve(config.evaluation.eval_reward_func)
    choose_device(config.model)
    check_completion_fits(config)
    rows = load_rows(config.data.dataset, split=config.data.dataset_split, size=config.data.dataset_size)
    tokenizer = load_tokenizer(config.model)
    system = system_prompt(config.data, default_system_prompt(config.rewards.reward_funcs))
    tasks = build_tasks(rows, tokenizer, config.data, system=system)
    check_prompts_fit(config, tasks.tasks)
    unverified = self_test(functions, tasks.tasks)
    plan = batch_plan(config, len(tasks.tasks))
    assert plan.steps is not None  # the tasks are counted
    return Prepared(
        tokenizer=tokenizer,
        functions=functions,
        tasks=tasks,
        unverified=unverified,
        evaluator=make_evaluator(config, tokenizer) if has_held_out(config) else None,
        plan=plan,
        total_steps=plan.steps,
    )


def has_held_out(config: Config) -> bool:
    """Whether there are tasks to evaluate on that are not trained on."""
    return config.data.eval_dataset is not None or has_split(config.data.dataset, config.data.eval_split)


def make_evaluator(config: Config, tokenizer: PreTrainedTokenizerBase) -> Evaluator:
    """The held-out tasks and how they are graded: the same in training, at its end, and in `paceline eval`."""
    dataset, options = config.data.eval_dataset or config.data.dataset, config.evaluation
    split = config.data.eval_split if has_split(dataset, config.data.eval_split) else None
    rows = load_rows(dataset, split=split or config.data.dataset_split, size=options.eval_size)
    system = system_prompt(config.data, default_system_prompt(config.rewards.reward_funcs))
    tasks = build_tasks(rows, tokenizer, config.data, system=system).tasks
    check_prompts_fit(config, tasks)
    function = {options.eval_reward_func: resolve(options.eval_reward_func)}
    self_test(function, tasks)
    return Evaluator(
        eval_set=EvalSet(name=dataset if split is None else f"{dataset}:{split}", tasks=tasks),
        function=function,
        sampling=Sampling(
            max_completion_length=config.sampling.max_completion_length,
            temperature=options.eval_temperature,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            stop=config.sampling.stop,
        ),
        generations=options.eval_generations,
        max_failure_rate=config.rewards.max_reward_failure_rate,
        seed=config.loop.seed,
    )


def check_completion_fits(config: Config) -> None:
    """Refuse a completion length that leaves no room for any prompt, before the dataset is read."""
    limit, length = context_length(config.model), config.sampling.max_completion_length
    if limit is not None and length >= limit:
        raise ConfigError(
            f"--max-completion-length must be below the model's {limit} positions, got {length}; leave room for prompts"
        )


def check_prompts_fit(config: Config, tasks: tuple[Task, ...]) -> None:
    """Refuse tasks whose prompt and longest completion do not fit the positions that the model can tell apart."""
    limit = context_length(config.model)
    longest = max(tasks, key=lambda task: len(task.prompt_ids))
    needed = len(longest.prompt_ids) + config.sampling.max_completion_length
    if limit is not None and needed > limit:
        raise ConfigError(
            f"--max-completion-length must leave room for the prompt within the model's {limit} positions, got "
            f"{config.sampling.max_completion_length} with {len(longest.prompt_ids)} prompt tokens in row "
            f"{longest.task_id}; give at most {max(1, limit - len(longest.prompt_ids))}, or shorter prompts"
        )


def make_engine(config: Config, policy: Loaded, tokenizer: PreTrainedTokenizerBase) -> LocalEngine:
    """The engine on the policy's own weights."""
    return LocalEngine(
        policy.model,
        tokenizer,
        concurrent_sequences=config.engine.concurrent_sequences,
        compute_dtype=policy.compute_dtype,
        eos_token_ids=policy.eos_token_ids,
    )


def assemble(config: Config, prepared: Prepared, checkpoint: Checkpoint | None) -> Parts:
    """Read the weights, from the checkpoint where there is one, and build both halves on them."""
    policy = load_model(config.model if checkpoint is None else replace(config.model, model=str(checkpoint.model)))
    forward = choose_forward(policy.model)
    reference = load_model(config.model) if config.loss.beta > 0 else None
    if reference is not None:
        reference.model.requires_grad_(False)
        choose_forward(reference.model)
    learner = Learner(
        policy,
        forward,
        reference=reference,
        loss=config.loss,
        optim=config.optim,
        temperature=config.sampling.temperature,
        max_completion_length=config.sampling.max_completion_length,
    )
    engine = make_engine(config, policy, prepared.tokenizer)
    if checkpoint is not None:
        load_optimizer(checkpoint, learner.optimizer, policy.model)
        learner.policy_version = engine.policy_version = checkpoint.progress.policy_version
    return Parts(policy=policy, engine=engine, producer=_producer(config, prepared, engine), learner=learner)


def _producer(config: Config, prepared: Prepared, engine: LocalEngine) -> Producer:
    weights = config.rewards.reward_weights or (1.0,) * len(config.rewards.reward_funcs)
    return Producer(
        engine=engine,
        functions=prepared.functions,
        weights=dict(zip(config.rewards.reward_funcs, weights, strict=True)),
        sampling=Sampling(
            max_completion_length=config.sampling.max_completion_length,
            temperature=config.sampling.temperature,
            top_p=config.sampling.top_p,
            top_k=config.sampling.top_k,
            min_p=config.sampling.min_p,
            stop=config.sampling.stop,
        ),
        num_generations=config.sampling.num_generations,
        advantage=config.loss.advantage,
        max_failure_rate=config.rewards.max_reward_failure_rate,
        seed=config.loop.seed,
    )
