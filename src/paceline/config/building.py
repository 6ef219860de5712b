"""Build a `Config` from a flat mapping of option names, and check the rules between options."""

from collections.abc import Mapping
from typing import Any, cast

from paceline.config.layout import layout
from paceline.config.presets import preset_values
from paceline.config.reading import NULL_WORDS, find_option, options, parse_value, section_classes
from paceline.config.rules import require
from paceline.config.sections import MODEL, Config
from paceline.errors import ConfigError

MAY_BE_EMPTY = ("system_prompt",)
"""Text options for which the empty text has a meaning; elsewhere it is an unset shell variable."""


def following_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return the defaults that follow from other options.

    With `max_staleness` completions are of older weights, which the loss would ignore without a correction. CISPO
    needs a bound of the ratio that is far from 1.

    >>> following_values({"max_staleness": 1})
    {'rollout_correction': 'token_truncate'}
    """
    stale: dict[str, object] = {"rollout_correction": "token_truncate"} if values.get("max_staleness") else {}
    return stale | ({"clip_eps_high": 4.0} if values.get("bound") == "cispo" else {})


def build_config(given: Mapping[str, object]) -> Config:
    """Build the configuration from the given options, all others at their defaults.

    Names may have hyphens or underscores; values may be text or already of the option's type.

    Raises:
        ConfigError: an unknown or repeated name, a wrong value, a missing required option, or options at odds.
    """
    values: dict[str, object] = {}
    for spelling, value in given.items():
        option = find_option(spelling)
        if option.name in values:
            raise ConfigError(f"{option.flag} is given twice, with a hyphen and with an underscore; keep one of them")
        values[option.name] = parse_value(option, value)
    missing = [option for option in options() if option.required and option.name not in values]
    if missing:
        meanings = "; ".join(f"{option.flag} ({option.help.rstrip('.')})" for option in missing)
        raise ConfigError(f"missing {meanings}: give it as a flag or in the --config file")
    values = _with_rewards_named({**preset_values(values.get("preset")), **following_values(values), **values})
    by_section: dict[str, dict[str, Any]] = {section: {} for section in section_classes()}
    for option in options():
        if option.name in values:
            by_section[option.section][option.name] = values[option.name]
    config = Config(**{name: make(**by_section[name]) for name, make in section_classes().items()})
    check(config)
    return config


def _with_rewards_named(values: Mapping[str, object]) -> dict[str, object]:
    """Fill in the rewards that other options imply, so that the resolved configuration names them."""
    named = dict(values)
    if values.get("reward_funcs") is None:
        named["reward_funcs"] = ("accuracy",)
    names = [name.removeprefix(MODEL) for name in cast(tuple[str, ...], named["reward_funcs"])]
    if values.get("filter_range") is not None and values.get("filter_func") is None and names:
        judge = values.get("eval_reward_func", find_option("eval_reward_func").default)
        named["filter_func"] = judge if judge in names else names[0]
    return named


def check(config: Config) -> None:
    """Check the rules between options.

    Raises:
        ConfigError: two options are at odds; the sentence names both.
    """
    _check_texts(config)
    _check_groups(config)
    _check_rewards(config)
    _check_layout(config)
    _check_deterministic(config)
    if config.loop.max_steps is not None:
        require(
            config.optim.warmup_steps <= config.loop.max_steps,
            "warmup_steps",
            config.optim.warmup_steps,
            f"be at most --max-steps ({config.loop.max_steps})",
            "the peak learning rate would never be reached",
        )


def _check_groups(config: Config) -> None:
    """Check the number of completions and what they are compared with."""
    generations, advantage, loss = config.sampling.num_generations, config.advantage, config.loss
    require(
        generations >= 2 or advantage.advantage == "batch",
        "num_generations",
        generations,
        "be at least 2",
        "an advantage compares completions of one prompt (only --advantage batch compares prompts)",
    )
    require(
        generations >= 2 or advantage.reward_aggregation == "sum_then_normalize",
        "num_generations",
        generations,
        "be at least 2 with --reward-aggregation normalize_then_sum",
        "each reward is compared with that of the prompt's other completions first",
    )
    require(
        loss.ref_sync_steps == 0 or config.lora.lora_rank == 0,
        "ref_sync_steps",
        loss.ref_sync_steps,
        "be 0 with --lora-rank",
        "the reference is the model without its adapter",
    )
    parts, rollouts = config.optim.num_minibatches, config.loop.prompts_per_step * generations
    require(
        rollouts % parts == 0,
        "num_minibatches",
        parts,
        f"divide the {rollouts} completions of a step",
        f"the nearest that do are {' and '.join(map(str, _nearest_divisors(rollouts, parts)))}",
    )


def _check_layout(config: Config) -> None:
    """Check the number of training processes, which is known here for a cluster only."""
    if config.cluster.cluster:
        layout(config.parallel, config.cluster.num_consumers)
        apart = config.parallel.sampling_ranks
        require(apart == 0, "sampling_ranks", apart, "be 0 with --cluster", "there --num-producers sample")
    if config.parallel.zero_stage:
        kept, name = config.optim.optimizer, "optimizer"
        require(kept == "adamw", name, kept, "be adamw with --zero-stage above 0", "its state is sliced already")
    moved, sliced = config.optim.offload, config.parallel.zero_stage > 0
    name, rule, why = (
        ("optimizer", "above 0", "parameters moves its state too")
        if sliced
        else ("parameters", "0", "it would have no effect")
    )
    require(name not in moved, "offload", moved, f"not name {name} with --zero-stage {rule}", why)


def _check_deterministic(config: Config) -> None:
    """Refuse options that depend on timing, or on a library that promises no determinism."""
    if config.model.deterministic:
        taken, name = config.cluster.on_new_weights, "on_new_weights"
        require(taken == "finish", name, taken, "be finish with --deterministic", "the time of new weights varies")
        engine = config.engine.engine
        require(engine == "local", "engine", engine, "be local with --deterministic", "vLLM promises no such thing")
        kind = config.optim.optimizer
        require(
            kind == "adamw", "optimizer", kind, "be adamw with --deterministic", "bitsandbytes promises no such thing"
        )


def _check_rewards(config: Config) -> None:
    """Check reward names that other options refer to."""
    advantage, names = config.advantage, config.rewards.names
    require(
        advantage.overlong_share == 0 or "overlong" not in names,
        "reward_funcs",
        names,
        "not name a function overlong with --overlong-share",
        "rewards are recorded by name, and that is the penalty's",
    )
    name = advantage.filter_func
    if name is not None:
        require(advantage.filter_range is not None, "filter_func", name, "be left out without --filter-range")
        require(name in names, "filter_func", name, f"be one of the rewards ({', '.join(names)})")


def _nearest_divisors(whole: int, wanted: int) -> list[int]:
    """Return the divisors of `whole` next to `wanted`, one below and one above where they exist."""
    divisors = [number for number in range(1, whole + 1) if whole % number == 0]
    return [*[n for n in divisors if n < wanted][-1:], *[n for n in divisors if n > wanted][:1]]


def _check_texts(config: Config) -> None:
    for option in options():
        value = getattr(getattr(config, option.section), option.name)
        if option.plain_type is not str or value is None:
            continue
        for text in value if isinstance(value, tuple) else (value,):
            require(text != "" or option.name in MAY_BE_EMPTY, option.name, value, "not be empty")
            is_null_word = option.optional and text.strip().lower() in NULL_WORDS
            require(not is_null_word, option.name, value, "not be a word that files and flags read as None")
