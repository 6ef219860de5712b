"""Build a `Config` from a flat mapping of option names, and check the rules between options."""

import re
from collections.abc import Mapping
from typing import Any, cast

from paceline.config.algorithms import BOUNDS, CREDITED
from paceline.config.layout import divisors, layout
from paceline.config.objective import PROGRAM, SCHEDULERS
from paceline.config.presets import preset_values
from paceline.config.reading import (
    NULL_WORDS,
    base_name,
    find_option,
    is_code,
    options,
    parameter_texts,
    parse_value,
    scheduler_of,
    section_classes,
    served_judges,
    served_model,
    values_of,
)
from paceline.config.rules import require
from paceline.config.sections import MODEL, OTHER_ADAPTER, Config
from paceline.errors import ConfigError

SEEDED = ("gymnasium", "textarena", "openenv")
"""Packages whose environments make their tasks from seeds, by the first word of an address of `environment`."""
EXAMPLES = {"model": "Qwen/Qwen2.5-1.5B-Instruct", "dataset": "train.jsonl"}
"""Examples of the required options, for the sentence that asks for them."""
MAY_BE_EMPTY = ("system_prompt",)
"""Text options that may be empty; elsewhere an empty text is taken for an unset shell variable."""


def following_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return the defaults that follow from other options.

    With `max_staleness` completions are of older weights, with `engine_quantization` of rounded ones, which the loss
    would ignore without a correction. CISPO needs a bound of the ratio that is far from 1.

    >>> following_values({"max_staleness": 1})
    {'rollout_correction': 'token_truncate'}
    """
    differs = values.get("max_staleness") or values.get("engine_quantization") == "fp8"
    others: dict[str, object] = {"rollout_correction": "token_truncate"} if differs else {}
    bound = BOUNDS.get(str(values.get("bound")))
    if bound is not None and bound.clip_eps_high is not None:
        others["clip_eps_high"] = bound.clip_eps_high
    return others


def tasks_of(environment: str) -> str | None:
    """Return the dataset of an environment that makes its own tasks, by its address; None: it makes none.

    >>> tasks_of("gymnasium:FrozenLake-v1"), tasks_of("gym=reasoning_gym:chain_sum(max_terms=3, attempts=2)")
    ('seeds', 'reasoning_gym:chain_sum(max_terms=3)')
    """
    address = re.sub(r"^[A-Za-z_][\w-]*=", "", environment)
    package, _, name = address.partition(":")
    if package in SEEDED and name:
        return "seeds"
    if package == "verifiers" and name:
        return address
    if package != "reasoning_gym" or not name:
        return None
    texts = parameter_texts(address, label=f"--environment {address}", error=ConfigError)
    settings = ", ".join(f"{key}={value}" for key, value in texts.items() if key != "attempts")
    return f"{base_name(address)}({settings})" if settings else base_name(address)


def build_config(chosen: Mapping[str, object], *, for_training: bool = True) -> Config:
    """Build the configuration from the given options, all others at their defaults.

    Names may have hyphens or underscores; values may be text or already of the option's type. `for_training`: the
    sampling must be one that a group can learn from.

    Raises:
        ConfigError: an unknown or repeated name, a wrong value, a missing required option, or options at odds.
    """
    values: dict[str, object] = {}
    for spelling, value in chosen.items():
        option = find_option(spelling)
        if option.name in values:
            raise ConfigError(f"{option.flag} is given twice, with a hyphen and with an underscore; keep one of them")
        values[option.name] = parse_value(option, value)
    environments = cast(tuple[str, ...], values["environment"]) if "environment" in values else ()
    if "dataset" not in values and len(environments) == 1 and (tasks := tasks_of(environments[0])) is not None:
        values["dataset"] = tasks
    missing = [option for option in options() if option.required and option.name not in values]
    if missing:
        absent = " and ".join(option.flag for option in missing)
        flags = " ".join(f"{option.flag} {EXAMPLES[option.name]}" for option in missing)
        raise ConfigError(f"missing {absent}; give it as a flag, for example {flags}, or in the --config file")
    values = {**preset_values(values.get("preset")), **following_values(values), **values}
    # rewards that other options imply, so that the resolved configuration names them
    if values.get("reward_funcs") is None:
        values["reward_funcs"] = () if values.get("environment") else ("accuracy",)
    names = [name.removeprefix(MODEL) for name in cast(tuple[str, ...], values["reward_funcs"])]
    if "eval_reward_func" not in values:  # answers are read as in training
        judge = find_option("eval_reward_func").default
        values["eval_reward_func"] = next((name for name in names if base_name(name) == judge), judge)
    if values.get("filter_range") is not None and values.get("filter_func") is None and names:
        judge = values["eval_reward_func"]
        values["filter_func"] = judge if judge in names else names[0]
    by_section: dict[str, dict[str, Any]] = {section: {} for section in section_classes()}
    for option in options():
        if option.name in values:
            by_section[option.section][option.name] = values[option.name]
    config = Config(**{name: make(**by_section[name]) for name, make in section_classes().items()})
    temperature, why = config.sampling.temperature, "greedy completions of one prompt are all the same"
    right = temperature > 0 or not for_training
    require(right, "temperature", temperature, "be above 0", f"{why}; evaluation has --eval-temperature")
    _check(config)
    return config


def _check(config: Config) -> None:
    """Check the rules between options; a refusal names both that are at odds."""
    _check_texts(config)
    generations, advantage, loss = config.sampling.num_generations, config.advantage, config.loss

    # the number of completions, and what they are compared with
    why = "an advantage compares completions of one prompt (only --advantage batch compares prompts)"
    right = generations >= 2 or advantage.advantage == "batch" or is_code(advantage.advantage)
    require(right, "num_generations", generations, "be at least 2", why)
    rule = "be at least 2 with --reward-aggregation normalize_then_sum"
    why = "each reward is compared with that of the prompt's other completions first"
    right = generations >= 2 or advantage.reward_aggregation == "sum_then_normalize"
    require(right, "num_generations", generations, rule, why)
    right = loss.ref_sync is None or config.lora.lora_rank == 0
    why = "the reference is the model without its adapter"
    require(right, "ref_sync", loss.ref_sync, "be none with --lora-rank", why)
    right = not config.lora.lora_settings or config.lora.lora_rank > 0 or OTHER_ADAPTER in config.lora.settings
    require(right, "lora_settings", config.lora.lora_settings, "be left out without --lora-rank")
    right = not config.lora.lora_parameters or config.lora.lora_rank > 0
    require(right, "lora_parameters", config.lora.lora_parameters, "be left out without --lora-rank")
    has_adapter = config.lora.lora_rank > 0 or OTHER_ADAPTER in config.lora.settings
    for option, trained in (
        ("train_vision", config.vision.train_vision),
        ("train_projector", config.vision.train_projector),
    ):
        right, why = not (trained and has_adapter), "all weights are frozen then; --lora-vision adapts these layers too"
        require(right, option, trained, "be false with --lora-rank", why)
    right, why = has_adapter or not config.vision.lora_vision, "--train-vision trains the encoder's own weights"
    require(right, "lora_vision", config.vision.lora_vision, "be false without --lora-rank", why)
    parts, rollouts = config.optim.num_minibatches, config.loop.prompts_per_step * generations
    fitting = divisors(rollouts)
    nearest = [*[n for n in fitting if n < parts][-1:], *[n for n in fitting if n > parts][:1]]
    why = f"the nearest that do are {' and '.join(map(str, nearest))}"
    require(rollouts % parts == 0, "num_minibatches", parts, f"divide the {rollouts} completions of a step", why)

    # turns that are compared
    for option, value, known in (
        ("advantage", advantage.advantage, CREDITED),
        ("reward_aggregation", advantage.reward_aggregation, ("sum_then_normalize",)),
    ):
        right, rule = config.environment.turn_credit is None or value in known, f"be {' or '.join(known)}"
        why = "leave --turn-credit out to compare whole episodes"
        require(right, option, value, f"{rule} with --turn-credit", why)

    # names of rewards that other options refer to
    names, name = config.rewards.names, advantage.filter_func
    right = bool(names) or bool(config.environment.environment)
    require(right, "reward_funcs", names, "name at least one function without --environment")
    rule = "not name a function overlong with --overlong-share"
    why = "rewards are recorded by name, and that is the penalty's"
    require(advantage.overlong_share == 0 or "overlong" not in names, "reward_funcs", names, rule, why)
    if name is not None:
        require(advantage.filter_range is not None, "filter_func", name, "be left out without --filter-range")
        rule = f"be one of the rewards ({', '.join(names)})" if names else "be left out here"
        why = "" if names else "where there is no function, the environment's own reward judges a group"
        require(name in names, "filter_func", name, rule, why)
    _check_processes(config)
    _check_scheduler(config)
    if config.loop.max_steps is not None:
        warmup_steps, rule = config.optim.warmup_steps, f"be at most --max-steps ({config.loop.max_steps})"
        right, why = warmup_steps <= config.loop.max_steps, "the peak learning rate would never be reached"
        require(right, "warmup_steps", warmup_steps, rule, why)


def _check_scheduler(config: Config) -> None:
    """Check name and parameters of `lr_scheduler`; their values are transformers' business."""
    text = config.optim.lr_scheduler
    if text is None or text == PROGRAM:
        return
    name, parameters = scheduler_of(text)
    require(name in SCHEDULERS, "lr_scheduler", text, f"be one of {', '.join(SCHEDULERS)}")
    known = ("warmup", *SCHEDULERS[name])
    right, rule = set(parameters) <= {*known}, f"have no parameters of {name} but {', '.join(known)}"
    require(right, "lr_scheduler", text, rule)
    warmup = parameters.get("warmup", 0)
    right = isinstance(warmup, int | float) and not isinstance(warmup, bool) and warmup >= 0
    require(right, "lr_scheduler", text, "have a warmup of at least 0")


def _check_processes(config: Config) -> None:
    """Check the training processes, whose number is known here for a cluster only, and `deterministic`."""
    kind = config.optim.optimizer
    if config.cluster.cluster:
        layout(config.parallel, config.cluster.num_consumers)
        sampling_ranks = config.parallel.sampling_ranks
        require(
            sampling_ranks == 0, "sampling_ranks", sampling_ranks, "be 0 with --cluster", "there --num-producers sample"
        )
        refuse_served_judges(config, "with --cluster")
    elif config.parallel.sampling_ranks == 0:
        ahead, rule = config.cluster.max_staleness, "be 0 without --cluster or --sampling-ranks"
        require(ahead == 0, "max_staleness", ahead, rule, "those who sample also train, and take turns")
    replay, rule = config.engine.router_replay, "be auto or false with --pipeline-parallel"
    right, why = replay != "true" or config.parallel.pipeline_parallel == 1, "its stages take no routes"
    require(right, "router_replay", replay, rule, why)
    if config.parallel.zero_stage:
        rule = "be adamw with --zero-stage above 0"
        require(kind == "adamw", "optimizer", kind, rule, "its state is sliced already")
        name, rule, why = "optimizer", "above 0", "parameters moves its state too"
    else:
        name, rule, why = "parameters", "0", "it would have no effect"
    moved = config.optim.offload
    require(name not in moved, "offload", moved, f"not name {name} with --zero-stage {rule}", why)
    if config.model.deterministic:
        on_new_weights, rule = config.cluster.on_new_weights, "be finish with --deterministic"
        require(on_new_weights == "finish", "on_new_weights", on_new_weights, rule, "the time of new weights varies")
        engine = config.engine.engine
        require(engine == "local", "engine", engine, "be local with --deterministic", "vLLM promises no such thing")
        rule, why = "be adamw with --deterministic", "bitsandbytes promises no such thing"
        require(kind != "adamw_8bit", "optimizer", kind, rule, why)


def refuse_served_judges(config: Config, where: str) -> None:
    """Refuse, with a ConfigError, judges that each of several grading processes would serve; `where` names the run."""
    for name in served_judges(config):
        option = "reward_funcs" if name in config.rewards.functions else "eval_reward_func"
        rule, model = f"give the address of a judge {where}", served_model(name)
        remedy = f"serve it once, by `paceline serve --model {model}`, as judge:http://HOST:PORT/v1(model={model})"
        require(False, option, name, rule, f"every process that grades would load it; {remedy}")


def _check_texts(config: Config) -> None:
    for option, value in zip(options(), values_of(config).values(), strict=True):
        if option.plain_type is not str or value is None:
            continue
        for text in value if isinstance(value, tuple) else (value,):
            require(text != "" or option.name in MAY_BE_EMPTY, option.name, value, "not be empty")
            is_null_word = option.optional and text.strip().lower() in NULL_WORDS
            require(not is_null_word, option.name, value, "not be a word that files and flags read as None")
