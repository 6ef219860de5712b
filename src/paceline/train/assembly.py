"""From a configuration, and objects that a program hands over, to the parts of a run: first all that needs no weights.

So mistakes cost seconds, whichever door a run comes through.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from paceline.checkpoint import Checkpoint
from paceline.config import Config, ModelConfig
from paceline.data import TaskSet, build_tasks, load_rows, system_prompt
from paceline.devices import choose_device
from paceline.engines import TakeNewer, TrainedEngine
from paceline.engines.local import LocalEngine
from paceline.errors import ModelError
from paceline.headway import UNWATCHED, Headway
from paceline.model_places import check_completion_fits
from paceline.models import Loaded
from paceline.plan import BatchPlan, batch_plan
from paceline.pretrained import context_length, load_tokenizer, vocabulary_size
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
from paceline.train.consumer import ConsumerHalf, Extent, make_consumer
from paceline.train.given import Given
from paceline.train.held_out import check_prompts_fit, has_held_out, make_evaluators
from paceline.train.measuring import Meter, reward_meter, training_producer, training_sampler
from paceline.train.memory import check_memory_options
from paceline.train.vllm import make_vllm_engine
from paceline.types import Task


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
    headway: Headway = UNWATCHED
    """Who is told how far the work at hand has come."""

    @property
    def extent(self) -> Extent:
        """What the consumer half must know of all this."""
        longest = max(len(task.prompt_ids) for task in self.tasks.tasks)
        return Extent(total_steps=self.total_steps, longest_prompt=longest)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The two halves around one set of weights."""

    consumer: ConsumerHalf
    engine: TrainedEngine
    producer: Producer


def prepare(config: Config, given: Given | None = None) -> Prepared:
    """Tokenizer, reward functions, tasks and held-out tasks.

    Raises:
        ConfigError, DataError, ModelError, RewardError: the sentence names the option or row and the remedy.
    """
    given = given or Given()
    functions = dict(configured_functions(config) if given.functions is None else given.functions)
    check_memory_options(config, choose_device(config.model))
    limit, completion = positions(config, given), config.sampling.max_completion_length
    check_completion_fits(completion, limit=limit)
    tokenizer = given.tokenizer or load_tokenizer(config.model)
    tasks = given.tasks or _configured_tasks(config, tokenizer, functions)
    if given.model is None:
        check_tokens(config.model, tasks.tasks)
    for some in (tasks.tasks, *(given.held_out or {}).values()):
        check_prompts_fit(some, limit=limit, completion=completion)
    check_selections(config.rewards.names, tasks.tasks)
    are_all, timeout = len(functions) == len(config.rewards.names), config.rewards.reward_timeout
    unverified = self_test(functions, tasks.tasks, are_all=are_all, timeout=timeout)
    plan = batch_plan(config, len(tasks.tasks))
    assert plan.steps is not None  # the tasks are counted
    evaluators = make_evaluators(config, tokenizer) if given.tasks is None and has_held_out(config) else ()
    functions = with_reward_models(functions, config, given)
    return Prepared(
        tokenizer=tokenizer,
        functions=functions,
        tasks=tasks,
        unverified=unverified,
        unmet=unmet_needs(functions, tasks.tasks),
        meters=evaluators or _reward_meters(config, given, functions),
        plan=plan,
        total_steps=plan.steps,
    )


def check_tokens(model: ModelConfig, tasks: Sequence[Task]) -> None:
    """Refuse prompts that hold tokens which the model has no weights for: a tokenizer of another model."""
    size = vocabulary_size(model)
    for task in tasks:
        if size is not None and max(task.prompt_ids) >= size:
            raise ModelError(
                f"--model {model.model} has weights for {size} tokens, and its tokenizer gives the prompt of row "
                f"{task.task_id} the token {max(task.prompt_ids)}; put the model's own tokenizer beside it"
            )


def positions(config: Config, given: Given) -> int | None:
    """Positions that the policy can tell apart, None where its configuration does not say."""
    if given.model is None:
        return context_length(config.model)
    return getattr(given.model.config.get_text_config(), "max_position_embeddings", None)


def configured_functions(config: Config) -> dict[str, RewardFunction]:
    """Every reward function that the options name, without reward models."""
    context = reward_context(config.rewards, config.sampling)
    return {name: resolve(name, context) for name in config.rewards.functions}


def _configured_tasks(
    config: Config, tokenizer: PreTrainedTokenizerBase, functions: Mapping[str, RewardFunction]
) -> TaskSet:
    resolve(config.evaluation.eval_reward_func, reward_context(config.rewards, config.sampling))
    rows = load_rows(config.data.dataset, split=config.data.dataset_split, size=config.data.dataset_size)
    system = system_prompt(config.data, default_system_prompt(config.rewards.functions))
    return build_tasks(rows, tokenizer, config.data, system=system, check=row_check(functions))


def with_reward_models(
    functions: Mapping[str, RewardFunction], config: Config, given: Given | None = None
) -> dict[str, RewardFunction]:
    """Functions, and the models that are read now, in the order of the configuration's names."""
    given = given or Given()
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


def make_engine(
    config: Config,
    policy: Loaded,
    tokenizer: PreTrainedTokenizerBase,
    *,
    take_newer: TakeNewer | None = None,
    headway: Headway = UNWATCHED,
) -> TrainedEngine:
    """The engine on the policy's own weights, or on vLLM's copy of them."""
    if config.engine.engine == "vllm":
        return make_vllm_engine(config, policy, tokenizer, take_newer=take_newer, headway=headway)
    return LocalEngine(
        policy.model,
        tokenizer,
        concurrent_sequences=config.engine.concurrent_sequences,
        compute_dtype=policy.compute_dtype,
        eos_token_ids=policy.eos_token_ids,
        take_newer=take_newer,
        headway=headway,
    )


def assemble(
    config: Config, prepared: Prepared, given: Given | None = None, *, checkpoint: Checkpoint | None = None
) -> Parts:
    """Both halves in this process: see `make_consumer`."""
    headway = prepared.headway
    consumer = make_consumer(config, prepared.tokenizer, prepared.extent, given, checkpoint=checkpoint, headway=headway)
    engine = make_engine(config, consumer.policy, prepared.tokenizer, headway=headway)
    if checkpoint is not None:
        engine.take_weights(consumer.policy_version)
    producer = training_producer(config, training_sampler(config, engine, prepared.functions, headway=headway))
    return Parts(consumer=consumer, engine=engine, producer=producer)
