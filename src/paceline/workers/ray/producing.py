"""A sampler's process on a cluster: a copy of the weights, an engine on it, the reward functions."""

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paceline.config.sections import Config
from paceline.engines import Request, Sampling
from paceline.models.loading import load_model
from paceline.models.pretrained import load_tokenizer
from paceline.training.assembly import make_engine
from paceline.training.rollouts.rounds import Drawn, Round
from paceline.training.setup.functions import configured_functions, with_reward_models
from paceline.training.setup.samplers import training_rounds
from paceline.types import Completion
from paceline.workers.ray.weights import Manifest, write_buckets


class ProducingProcess:
    """The methods of a sampler's actor. It samples nothing before its first weights."""

    def __init__(self, config: Config, directory: Path) -> None:
        """Read model, tokenizer and reward functions; the program sandbox is this machine's.

        `directory` is what the configuration's paths are relative to.
        """
        os.chdir(directory)
        self.policy = load_model(config.model, config.lora, seed=config.loop.seed)
        self._version = -1  # of the weights that the model has: none yet
        self._offers: deque[tuple[Manifest, tuple[Sequence[np.ndarray], ...]]] = deque(maxlen=1)
        take_newer = self._take_newer if config.cluster.on_new_weights == "continue" else None
        self.engine = make_engine(config, self.policy, load_tokenizer(config.model), take_newer=take_newer)
        functions = with_reward_models(configured_functions(config), config)
        self.sampler = training_rounds(config, self.engine, functions)

    def load(self, manifest: Manifest, *buckets: Sequence[np.ndarray]) -> None:
        """Load these weights and sample from them from now on.

        Raises:
            TrainingError: what arrived is not what was sent, or not what the engine then computes with.
            EngineError: the engine failed.
        """
        if manifest.version != self._version:
            self._write(manifest, buckets)
        self.engine.take_weights(manifest.policy_version)

    def offer(self, manifest: Manifest, *buckets: Sequence[np.ndarray]) -> None:
        """Offer newer weights, to be taken after the next token; the last offer counts.

        From any thread: the one that samples takes them.
        """
        self._offers.append((manifest, buckets))

    def sample(self, drawn: Drawn) -> Round:
        """Sample and score a share of a round."""
        return self.sampler.sample(drawn)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Generate a share of an evaluation; the caller grades it."""
        return self.engine.generate(requests, sampling)

    def _take_newer(self) -> int | None:
        """Load the offered weights if they are newer and return their policy version, a `TakeNewer`."""
        if not self._offers:
            return None
        manifest, buckets = self._offers.pop()
        if manifest.version <= self._version:
            return None
        self._write(manifest, buckets)
        return manifest.policy_version

    def _write(self, manifest: Manifest, buckets: Sequence[Sequence[np.ndarray]]) -> None:
        write_buckets(self.policy.model, manifest, buckets)
        self._version = manifest.version
