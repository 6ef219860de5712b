"""The sampler as the options want it for training, around an engine that is there."""

from collections.abc import Mapping

from paceline.config.sections import Config
from paceline.engines import Engine, Sampling
from paceline.rewards.function import RewardFunction
from paceline.runtime.progress import NULL_PROGRESS, Progress
from paceline.training.rollouts.rounds import EngineSampler, RoundSampler
from paceline.training.rollouts.sampler import Sampler


def training_rounds(
    config: Config, engine: Engine, functions: Mapping[str, RewardFunction], *, progress: Progress = NULL_PROGRESS
) -> EngineSampler:
    """Sampling and scoring as the options want it for training."""
    sampling = config.sampling
    return EngineSampler(
        engine=engine,
        functions=functions,
        sampling=Sampling(
            max_completion_length=sampling.max_completion_length,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            stop=sampling.stop,
        ),
        num_generations=sampling.num_generations,
        advantage=config.advantage,
        reward_timeout=config.rewards.reward_timeout,
        seed=config.loop.seed,
        progress=progress,
    )


def training_sampler(config: Config, rounds: RoundSampler) -> Sampler:
    """The sampler as the options want it for training."""
    return Sampler(
        rounds=rounds,
        weights=config.rewards.weights,
        advantage=config.advantage,
        max_completion_length=config.sampling.max_completion_length,
        max_failure_rate=config.rewards.max_reward_failure_rate,
    )
