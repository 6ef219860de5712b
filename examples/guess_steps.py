"""The game of the dataset `guess` as an environment of SkyRL-Gym, which `skyrl_gym:guess_steps:guess-steps` plays.

    PYTHONPATH=examples paceline train --model embedded-agent --environment skyrl_gym:guess_steps:guess-steps \
        --eval-reward-func guess-steps
"""

import re

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput


class GuessSteps(BaseTextEnv):
    """Five guesses, each answered by `higher` or `lower`."""

    def __init__(self, env_config, extras) -> None:
        super().__init__()
        self.secret, self.left = int(extras["answer"]), 5

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Answer a guess; the reward is 1 for the right one."""
        self.left -= 1
        numbers = re.findall(r"\d+", action)
        guess = int(numbers[-1]) if numbers else 0
        hint = {"role": "user", "content": "higher" if guess < self.secret else "lower"}
        found = guess == self.secret
        done = found or self.left == 0
        return BaseTextEnvStepOutput(observations=[] if done else [hint], reward=float(found), done=done, metadata={})


skyrl_gym.register(id="guess-steps", entry_point="guess_steps:GuessSteps")
