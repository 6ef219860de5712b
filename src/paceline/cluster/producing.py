"""The producer half in a process of its own: a copy of the weights, an engine on it, the reward functions."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paceline.cluster.weights import Manifest, write_buckets
from paceline.config import Config
from paceline.engines import Request, Sampling
from paceline.models import load_model, load_tokenizer
from paceline.rollouts import Drawn, Round
from paceline.train import configured_functions, make_engine, training_sampler, with_reward_models
from paceline.types import Completion


class ProducingProcess:
    """What a producer's actor does. It samples from nothing before its first weights."""

    def __init__(self, config: Config, directory: Path) -> None:
        """Read model, tokenizer and reward functions; the sandbox of programs is found here, on this machine.

        `directory` is what the configuration's paths are relative to.
        """
        os.chdir(directory)
        self.policy = load_model(config.model, config.lora, seed=config.loop.seed)
        self.engine = make_engine(config, self.policy, load_tokenizer(config.model))
        functions = with_reward_models(configured_functions(config), config)
        self.sampler = training_sampler(config, self.engine, functions)

    def load(self, manifest: Manifest, *buckets: Sequence[np.ndarray]) -> None:
        """Take these weights, and sample from them from now on.

        Raises:
            TrainingError: what arrived is not what was sent, or not what the engine then computes with.
            EngineError: the engine failed.
        """
        write_buckets(self.policy.model, manifest, buckets)
        self.engine.take_weights(manifest.policy_version)

    def sample(self, drawn: Drawn) -> Round:
        """A share of a round."""
        return self.sampler.sample(drawn)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """A share of what is measured; whoever asked grades it."""
        return self.engine.generate(requests, sampling)
