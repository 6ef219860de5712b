"""From a configuration, and objects that a program hands over, to all of a run that needs no weights.

So mistakes cost seconds, whichever entry point a run comes from.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from paceline.chat.escaping import ChatTokenizer
from paceline.chat.messages import row_tools
from paceline.checkpoints.run_directory import IMAGES
from paceline.config.objective import PROGRAM
from paceline.config.packages import install_command
from paceline.config.reading import is_code
from paceline.config.rules import require
from paceline.config.sections import OTHER_ADAPTER, Config
from paceline.data.duplicates import training_rows
from paceline.data.sources import has_split
from paceline.data.tasks import TaskSet, build_tasks
from paceline.environments import EnvironmentSpec
from paceline.episodes.conversations import Conversations
from paceline.errors import ConfigError, ModelError
from paceline.kernels.float8 import float8_problem
from paceline.models.families import layer_plans, unplanned_layer
from paceline.models.places import check_completion_fits, model_place
from paceline.models.pretrained import (
    end_token_ids,
    load_tokenizer,
    positions_in,
    read_config,
    read_generation_config,
    vocabulary_size,
)
from paceline.models.weight_headers import check_quantised
from paceline.objective.advantages import GroupAdvantage, check_advantage
from paceline.objective.own_loss import PolicyLoss, check_policy_loss
from paceline.rewards.function import check_selections, row_check
from paceline.rewards.startup import self_test, unmet_needs
from paceline.runtime.devices import choose_device
from paceline.training.evaluation import Evaluator
from paceline.training.identity import model_digests
from paceline.training.plan.batches import batch_plan
from paceline.training.setup.checks import NO_OBJECTS, own_advantage, own_policy_loss, resolved
from paceline.training.setup.held_out import check_prompts_fit, make_evaluators, reward_evaluator
from paceline.training.setup.images import check_images, image_processor, with_placeholders
from paceline.training.setup.inputs import RunInputs, RunObjects
from paceline.training.setup.run_request import RunRequest
from paceline.training.setup.samplers import make_conversations, with_reward_models
from paceline.types import Task


def prepare(config: Config, objects: RunObjects = NO_OBJECTS, *, images: Path | None = None) -> RunInputs:
    """Prepare tokenizer, reward functions, tasks and held-out tasks, from what the cheap stage has resolved if it has.

    `images`: folder of the run's images, from which other processes read them; None: memory alone has them.

    Raises:
        ConfigError, DataError, ModelError, RewardError: the sentence names the option or row and the remedy.
    """
    _refuse_lost_objects(config, objects)
    objects = objects if objects.is_resolved else resolved(config, objects)
    functions, completion = dict(objects.functions), config.sampling.max_completion_length
    advantage, policy_loss = own_objective(config, objects)
    # what needs the model's configuration alone
    # the machines of another cluster may have what this one has not
    device = choose_device(config.model) if config.cluster.ray_address is None else None
    check_memory_options(config, device)
    check_quantisation(config, objects)
    described = read_config(config.model) if objects.model is None else objects.model.config
    has_experts = any(plan.experts for plan in layer_plans(described.get_text_config()))
    replay, why = config.engine.router_replay, "it has no experts to choose from"
    require(replay != "true" or has_experts, "router_replay", replay, "be auto or false for this model", why)
    if objects.model is None and device is not None:  # a program's own is loaded already
        check_eight_bits(config, described, device)
    limit = positions_in(described)
    check_completion_fits(completion, limit=limit)
    # the tasks, and what they must be
    tokenizer = objects.tokenizer or load_tokenizer(config.model)
    conversations = conversations_of(config, tokenizer, objects.environments, described, objects.model)
    objects = with_placeholders(config, objects, tokenizer, folder=images)
    tasks = objects.tasks
    if tasks is None:
        tasks = _training_tasks(config, objects, tokenizer, conversations)
    tasks.add_check(partial(_check_tasks, config, objects, conversations, limit))
    if conversations is not None:
        conversations.check_choice(tasks.looked_at)
    for some in (objects.held_out or {}).values():
        check_prompts_fit(some, limit=limit, completion=completion)
    unverified = self_test(
        functions,
        tasks.looked_at,
        are_all=objects.needs_reward and len(functions) == len(config.rewards.names),
        timeout=config.rewards.reward_timeout,
        num_generations=config.sampling.num_generations,
    )
    plan = batch_plan(config, len(tasks.tasks))
    assert plan.steps is not None  # the tasks are counted
    evaluators: tuple[Evaluator, ...] = ()
    if _has_held_out_options(config, objects):
        trained = tasks.looked_at
        evaluators = make_evaluators(config, tokenizer, objects, conversations, limit=limit, training=trained)
    functions = with_reward_models(
        functions, config, addresses=objects.reward_models, tokenizers=objects.reward_tokenizers
    )
    evaluators += tuple(
        reward_evaluator(config, name, held_out, functions, conversations, objects.completer)
        for name, held_out in (objects.held_out or {}).items()
    )
    has_adapter = objects.adapter is not None or hasattr(objects.model, "peft_config")
    has_images = any(task.media for some in (tasks.looked_at, *(each.tasks for each in evaluators)) for task in some)
    check_images(config, objects, has_images=has_images)
    return RunInputs(
        objects=objects,
        tokenizer=tokenizer,
        functions=functions,
        tasks=tasks,
        unverified=unverified,
        unmet=unmet_needs(functions, tasks.looked_at),
        evaluators=evaluators,
        model_digests=model_digests(
            config,
            tokenizer,
            objects.model,
            has_adapter=has_adapter,
            image_processor=image_processor(config, objects) if has_images else None,
        ),
        plan=plan,
        total_steps=plan.steps,
        conversations=conversations,
        advantage=advantage,
        policy_loss=policy_loss,
        pictures=objects.images.pictures if has_images and objects.images else None,
    )


def prepare_request(request: RunRequest, objects: RunObjects) -> RunInputs:
    """Prepare what a request asks for: a run that began without held-out tasks goes on without any."""
    images = request.output_dir / IMAGES
    return prepare(request.config, objects if request.evaluates else replace(objects, held_out={}), images=images)


def _refuse_lost_objects(config: Config, objects: RunObjects) -> None:
    """Refuse what stands in the options for an object that only the program has which gave it (ConfigError)."""
    if config.optim.optimizer == PROGRAM and objects.optimizer is None:
        raise ConfigError(
            f"--optimizer {PROGRAM} stands for an optimizer of a program's own, which only that program has",
            remedies=["go on with that program", "start a new run with --model and one of its checkpoints' model/"],
        )
    if config.optim.lr_scheduler == PROGRAM and objects.make_scheduler is None:
        raise ConfigError(
            f"--lr-scheduler {PROGRAM} stands for a scheduler of a program's own, which only that program has",
            remedies=["go on with that program", "give another, as in --lr-scheduler linear --override lr_scheduler"],
        )
    if config.sampling.rollout_func is not None and objects.completer is None:
        raise ConfigError(
            f"--rollout-func {PROGRAM} stands for a function of a program's own that samples, which only that program "
            "has",
            remedies=[
                "go on with that program",
                "let the engine sample by --rollout-func none --override rollout_func",
            ],
        )
    kind = config.lora.settings.get(OTHER_ADAPTER)
    if kind is not None and objects.adapter is None and not hasattr(objects.model, "peft_config"):
        raise ConfigError(
            f"--lora-settings {OTHER_ADAPTER}={kind} stands for an adapter that only the program has which gave it; go "
            "on with that program, or train an adapter by --lora-rank"
        )


def _training_tasks(
    config: Config,
    objects: RunObjects,
    tokenizer: PreTrainedTokenizerBase,
    conversations: Conversations | None,
) -> TaskSet:
    """Make the tasks of the rows that are trained on."""
    rows, _ = training_rows(config.data, seed=config.loop.seed, files=objects.files, images=objects.images)
    return build_tasks(
        rows,
        cast(ChatTokenizer, tokenizer),
        config.data,
        system=objects.system,
        check=row_check(objects.functions),
        tools_of=row_tools if conversations is None else conversations.tools_of,
        images=objects.images,
    )


def _has_held_out_options(config: Config, objects: RunObjects) -> bool:
    """Return True if options name held-out tasks: a program's own tasks say that they name none."""
    if objects.tasks is not None or objects.held_out is not None:
        return False
    data = config.data
    if data.eval_dataset is not None or data.eval_share is not None:
        return True
    return any(has_split(dataset, data.eval_split, objects.files) for dataset in data.datasets)


def conversations_of(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    environments: Mapping[str, EnvironmentSpec],
    described: PretrainedConfig,
    model: Any,
) -> Conversations | None:
    """Make the conversations of a run for the configured model, or for a program's own, before any weight is read."""
    if not environments:
        return None
    generation = read_generation_config(config.model) if model is None else model.generation_config
    return make_conversations(config, tokenizer, environments, end_token_ids(tokenizer, generation, described))


def own_objective(config: Config, objects: RunObjects) -> tuple[GroupAdvantage | None, PolicyLoss | None]:
    """Find the advantage and the policy loss of the user's own, and try them on made-up groups and sequences.

    Raises:
        ConfigError: one of them cannot be trained with; or it is an object, and the options do not name it.
        RewardError: what the options name is not there.
    """
    pairs = (
        ("advantage", objects.advantage, config.advantage.advantage),
        ("bound", objects.policy_loss, config.loss.bound),
    )
    for option, function, name in pairs:
        rule = "name the function that is given as an object"
        require(function is None or is_code(name), option, name, rule, "write module:function there")
    advantage = objects.advantage or own_advantage(config.advantage)
    loss = objects.policy_loss or own_policy_loss(config.loss)
    if advantage is not None:
        check_advantage(advantage, config.advantage.advantage)
    if loss is not None:
        check_policy_loss(loss, config.loss.bound)
    return advantage, loss


def _check_tasks(
    config: Config,
    objects: RunObjects,
    conversations: Conversations | None,
    limit: int | None,
    tasks: Sequence[Task],
) -> None:
    size = vocabulary_size(config.model) if objects.model is None else None
    for task in tasks:
        if size is not None and max(task.prompt_ids) >= size:  # by a tokenizer of another model
            raise ModelError(
                f"--model {config.model.model} has weights for {size} tokens, and its tokenizer gives the prompt of "
                f"row {task.task_id} the token {max(task.prompt_ids)}; put the model's own tokenizer beside it"
            )
    if conversations is not None:
        conversations.check(tasks)
    check_prompts_fit(tasks, limit=limit, completion=config.sampling.max_completion_length)
    check_selections(config.rewards.names, tasks)


def check_quantisation(config: Config, objects: RunObjects) -> None:
    """Refuse quantised weights that cannot be trained on, and what cannot be done with those below an adapter.

    Raises:
        ModelError, ConfigError: see `weight_headers.check_quantised`; an engine, a cluster or a merge.
    """
    has_adapter = config.lora.lora_rank > 0 or objects.adapter is not None
    if objects.model is None:
        label, described = f"--model {config.model.model}", read_config(config.model).to_dict()
        has_adapter = has_adapter or model_place(config.model.model).adapter is not None
    else:
        label, described = "the model", objects.model.config.to_dict()
        has_adapter = has_adapter or hasattr(objects.model, "peft_config")
    check_quantised(described, label, has_adapter=has_adapter)
    if not described.get("quantization_config"):
        return
    beside, engine = "with quantised weights", config.engine.engine
    require(engine == "local", "engine", engine, f"be local {beside}", "vLLM takes them in full")
    require(not config.cluster.cluster, "cluster", True, f"be false {beside}", "one process trains on them")
    remedy = "merge the adapter of final/ into the weights in full, which are not rounded"
    require(not config.lora.merge_lora, "merge_lora", True, f"be false {beside}", remedy)
    taken = config.engine.engine_quantization
    require(taken == "none", "engine_quantization", taken, f"be none {beside}", "they are rounded already")


def check_eight_bits(config: Config, described: PretrainedConfig, device: torch.device) -> None:
    """Refuse sampling in eight bits, by a ConfigError, where the engine would once the weights are loaded."""
    taken, dtype = config.engine.engine_quantization, config.model.dtype
    if taken == "none":
        return
    names = [name for name in described.architectures or () if name.endswith("ForCausalLM")]
    unknown = [unplanned_layer(layer_plans(described, name), name) for name in names]
    computed = torch.float32 if dtype == "float32" else torch.bfloat16
    problem = next(filter(None, (*unknown, float8_problem(device, computed))), None)
    require(problem is None, "engine_quantization", taken, "be none for this model on this device", problem or "")


def check_memory_options(config: Config, device: torch.device | None) -> None:
    """Refuse what can have no effect here, and a library that is not there, by a ConfigError.

    `device`: None where the devices of other machines decide.
    """
    moved = config.optim.offload
    for name in ("activations", "optimizer"):
        right = name not in moved or device is None or device.type == "cuda"
        require(right, "offload", moved, f"not name {name} on a CPU", "everything lies in main memory already")
    if config.optim.optimizer == "adamw_8bit" and importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(f"--optimizer adamw_8bit needs the package bitsandbytes; `{install_command('bitsandbytes')}`")
