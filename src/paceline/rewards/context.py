"""What a run's options say to its built-in reward functions, and the sandbox that they share."""

from functools import lru_cache

from paceline.config.sections import RewardConfig, SamplingConfig
from paceline.rewards.function import RewardContext
from paceline.sandbox.levels import Level, open_sandbox
from paceline.sandbox.programs import Sandbox


def reward_context(rewards: RewardConfig, sampling: SamplingConfig) -> RewardContext:
    """The context of every reward function of a run; the sandbox opens when the first program has to run."""
    return RewardContext(
        max_completion_length=sampling.max_completion_length,
        open_sandbox=lambda: _shared_sandbox(rewards.sandbox, rewards.sandbox_url),
    )


@lru_cache(maxsize=4)
def _shared_sandbox(level: Level, url: str | None) -> Sandbox:
    """One for training and evaluation; it closes when the process ends."""
    return open_sandbox(level, url=url)
