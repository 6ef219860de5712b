"""A sampler's process: an engine on a copy of the weights, and the reward functions."""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor

from paceline.config.sections import Config
from paceline.engines import Request, Sampling
from paceline.environments.resolving import specs
from paceline.episodes.conversations import Drawn
from paceline.models.loaded import Loaded
from paceline.models.pretrained import end_token_ids, load_tokenizer
from paceline.training.records import engine_sentences
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.training.setup.checks import NO_OBJECTS, resolve_functions
from paceline.training.setup.inputs import RunObjects
from paceline.training.setup.samplers import make_conversations, make_engine, training_rounds, with_reward_models
from paceline.types import Completion
from paceline.workers.weight_sync import Manifest, weights_in, write_weights


class SamplerWorker:
    """The methods of a sampler's process."""

    def __init__(self, config: Config, policy: Loaded, objects: RunObjects = NO_OBJECTS) -> None:
        """Build engine and scoring, with tokenizer and reward functions of `objects` or of the configuration."""
        self.policy = policy
        self._version = -1  # of the weights from the store that the model has: none yet
        self._offers: deque[tuple[Manifest, tuple[Sequence[np.ndarray], ...]]] = deque(maxlen=1)
        take_newer = self._take_newer if config.cluster.on_new_weights == "continue" else None
        tokenizer = objects.tokenizer or load_tokenizer(config.model)
        self.engine = make_engine(config, policy, tokenizer, take_newer=take_newer)
        functions = resolve_functions(config, config.rewards.functions, objects.functions)
        if not functions.keys() >= set(config.rewards.names):
            addresses, tokenizers = objects.reward_models, objects.reward_tokenizers
            functions = with_reward_models(functions, config, addresses=addresses, tokenizers=tokenizers)
        environments = objects.environments or specs(config.environment.environment, sandbox=config.rewards.sandbox)
        ends = end_token_ids(tokenizer, policy.model.generation_config, policy.model.config)
        conversations = make_conversations(config, tokenizer, environments, ends)
        self._rounds = training_rounds(config, self.engine, functions, conversations, objects.completer)

    def sentences(self) -> tuple[str, ...]:
        """Sentences for the user on how completions are computed."""
        return tuple(engine_sentences(self.engine))

    def sample(self, drawn: Drawn) -> RolloutBatch:
        """Sample and score a share of a round."""
        return self._rounds.sample(drawn)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Generate a share of an evaluation; the caller grades it."""
        return self.engine.generate(requests, sampling)

    def load(self, manifest: Manifest, *buckets: Sequence[np.ndarray]) -> None:
        """Load these weights and sample from them from now on.

        Raises:
            TrainingError: what arrived is not what was sent, or not what the engine then computes with.
            EngineError: the engine failed.
        """
        if manifest.version != self._version:
            self.write(manifest, weights_in(self.policy.model, manifest, buckets))
        self.engine.take_weights(manifest.policy_version)

    def write(self, manifest: Manifest, arrived: Iterable[tuple[str, Tensor]]) -> None:
        """Put what arrives in place of this process's weights; raises as `load` does."""
        write_weights(self.policy.model, manifest, arrived)
        self._version = manifest.version

    def offer(self, manifest: Manifest, *buckets: Sequence[np.ndarray]) -> None:
        """Offer newer weights, from any thread; the one that samples takes the last offer after its next token."""
        self._offers.append((manifest, buckets))

    def _take_newer(self) -> int | None:
        """Load the offered weights if they are newer and return their policy version, a `TakeNewer`."""
        if not self._offers:
            return None
        manifest, buckets = self._offers.pop()
        if manifest.version <= self._version:
            return None
        self.write(manifest, weights_in(self.policy.model, manifest, buckets))
        return manifest.policy_version
