"""The sampler that the options describe, and the reward models that it grades with."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

import torch
from transformers import PreTrainedTokenizerBase

from paceline.chat.escaping import ChatTokenizer
from paceline.chat.turns import TurnTokens
from paceline.config.rules import require
from paceline.config.sampling import SamplingConfig
from paceline.config.sections import Config
from paceline.engines import Engine, Sampling
from paceline.environments import EnvironmentSpec
from paceline.environments.hosting import MOST_PROCESSES, Hosts
from paceline.episodes.conversations import Completer, Conversations, EpisodeLimits
from paceline.objective.advantages import GroupAdvantage
from paceline.rewards.function import RewardFunction
from paceline.runtime.devices import choose_device
from paceline.training.rollouts.grouping import OVERLONG
from paceline.training.rollouts.rounds import EngineSampler, RoundSampler
from paceline.training.rollouts.sampler import Sampler


def sampling_of(options: SamplingConfig) -> Sampling:
    """Return how an engine draws tokens under the options of training."""
    return Sampling(
        max_completion_length=options.max_completion_length,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        stop=options.stop,
    )


def training_rounds(
    config: Config,
    engine: Engine,
    functions: Mapping[str, RewardFunction],
    conversations: Conversations | None,
    completer: Completer | None = None,
) -> EngineSampler:
    """Make the sampling and scoring of training."""
    return EngineSampler(
        engine=engine,
        functions=functions,
        sampling=sampling_of(config.sampling),
        num_generations=config.sampling.num_generations,
        advantage=config.advantage,
        reward_timeout=config.rewards.reward_timeout,
        seed=config.loop.seed,
        conversations=conversations,
        completer=completer,
    )


def training_sampler(
    config: Config, rounds: RoundSampler, own_advantage: GroupAdvantage | None, *, needs_reward: bool = True
) -> Sampler:
    """Make the sampler of training; `own_advantage` is the function that the options name, if any."""
    return Sampler(
        rounds=rounds,
        weights=config.rewards.weights,
        advantage=config.advantage,
        max_completion_length=config.sampling.max_completion_length,
        max_failure_rate=config.rewards.max_reward_failure_rate,
        own_advantage=own_advantage,
        turn_credit=config.environment.turn_credit,
        max_turns=config.environment.max_turns,
        needs_reward=needs_reward,
    )


def make_conversations(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    environments: Mapping[str, EnvironmentSpec],
    end_tokens: frozenset[int],
) -> Conversations | None:
    """Make the conversations that the options describe; None without an environment.

    Raises:
        ConfigError: an environment has the name of a reward, or prompts are to be cut.
        ConfigError, ModelError: the chat template cannot hold one; the sentence says what it fails at.
    """
    if not environments:
        return None
    options = config.environment
    step_seconds, episode_seconds = options.environment_timeout
    rule, why = "not be truncate_left with --environment", "a conversation goes on from whole messages; use drop"
    require(config.data.long_prompts != "truncate_left", "long_prompts", config.data.long_prompts, rule, why)
    by_name = {spec.name: spec for spec in environments.values()}  # one may be called by several names
    taken = (*config.rewards.names, *((OVERLONG,) if config.advantage.overlong_share else ()))
    for name in by_name:
        rule, why = "not have the name of a reward", "rewards are recorded by name; give it another as NAME=ADDRESS"
        require(name not in taken, "environment", name, rule, why)
    tokens = {
        name: TurnTokens(
            cast(ChatTokenizer, tokenizer),
            tools=spec.tools,
            switches=config.data.switches,
            stop_ids=end_tokens,
            history=options.history,
        )
        for name, spec in by_name.items()
    }
    return Conversations(
        specs=environments,
        tokens=tokens,
        hosts=Hosts(step_seconds=step_seconds, most_processes=max(MOST_PROCESSES, config.sampling.num_generations)),
        limits=EpisodeLimits(
            turns=options.max_turns,
            turn_tokens=options.max_turn_length,
            message_tokens=options.max_observation_length,
            prompt_tokens=config.data.max_prompt_length,
            episode_seconds=episode_seconds,
        ),
        in_rounds=config.model.deterministic,
    )


def with_reward_models(
    functions: Mapping[str, RewardFunction],
    config: Config,
    *,
    addresses: Mapping[str, str] | None = None,
    tokenizers: Mapping[str, PreTrainedTokenizerBase] = MappingProxyType({}),
) -> dict[str, RewardFunction]:
    """Functions, and the models that are read now, in the order of the configuration's names.

    `addresses` and `tokenizers` are a program's own, by name of the model.
    """
    addresses = addresses or {name: name for name in config.rewards.reward_models}
    models = dict[str, RewardFunction]()
    if addresses:
        # imported here: the models of transformers take seconds to import, and most runs have no reward model
        from paceline.rewards.model import load_reward_model

        # the driver of another cluster may have no GPU, and measures held-out tasks with them all the same
        is_driver = config.cluster.ray_address is not None and not torch.cuda.is_available()
        device = torch.device("cpu") if is_driver else choose_device(config.model)
        for name, address in addresses.items():
            models[name] = load_reward_model(address, device=device, tokenizer=tokenizers.get(name))
    return {name: functions[name] if name in functions else models[name] for name in config.rewards.names}
