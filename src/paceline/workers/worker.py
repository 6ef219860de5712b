"""Workers in processes of their own: a sampler, and one rank of the trainer.

A sampler has an engine on a copy of the weights, and the reward functions; a trainer has learner, optimiser and
checkpoints.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from paceline.checkpoints.finding import Checkpoint
from paceline.config.sections import Config
from paceline.data.pictures import PictureStore
from paceline.engines import Request, Sampling
from paceline.environments.resolving import specs
from paceline.episodes.conversations import Drawn
from paceline.kernels.checksums import fingerprint
from paceline.models.loaded import Loaded
from paceline.models.loading import adopt_model, load_model, restore_weights
from paceline.models.parallel.mesh_ranks import MeshRanks
from paceline.models.parallel.pieces import piece_of
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.models.pretrained import end_token_ids, load_tokenizer
from paceline.training.assembly import make_engine
from paceline.training.learner.stats import UpdateStats
from paceline.training.records import engine_sentences, trainer_sentences
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.training.setup.checks import NO_OBJECTS, resolve_functions
from paceline.training.setup.inputs import RunObjects, RunSize
from paceline.training.setup.samplers import make_conversations, training_rounds, with_reward_models
from paceline.training.trainer import make_trainer
from paceline.types import Completion, RolloutGroup
from paceline.workers.weight_sync import Manifest, WeightsChecksum, manifest_of, read_bucket, weights_in, write_weights


def load_copy(
    config: Config, objects: RunObjects, checkpoint: Checkpoint | None, *, is_apart: bool, images: Path | None
) -> Loaded:
    """Load a copy of the whole model to sample from. `is_apart`: a program's own model is no one else's here.

    `images`: folder of the run's images; None: there are none.
    Parameters that are trained elsewhere say so here too: an engine with weights of its own takes those alone.
    """
    adapter, seed = objects.adapter or config.lora, config.loop.seed
    weights = None if checkpoint is None else checkpoint.model
    pictures = None if images is None else PictureStore(images)
    if objects.model is None:
        policy = load_model(
            config.model, adapter, checkpoint=weights, seed=seed, pictures=pictures, vision=config.vision
        )
    else:
        model = objects.model if is_apart else copy.deepcopy(objects.model)
        processor, vision = objects.image_processor, config.vision
        policy = adopt_model(
            model, config.model, adapter, seed=seed, pictures=pictures, vision=vision, image_processor=processor
        )
        if weights is not None:
            restore_weights(policy, weights)
    return policy


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


COLLECTIVE_SECONDS = 1800.0
"""Timeout of a collective, in seconds; ranks' shares of an update differ in size. Heartbeats find a rank that is gone
or stopped, and sooner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerUpdate:
    """Result of a step's updates on a rank."""

    stats: UpdateStats
    learning_rate: float
    policy_version: int
    held: WeightsChecksum | None
    """Fingerprint of this rank's weights; None if no other rank holds a copy."""


class TrainerWorker:
    """The methods of a trainer's process. All trainers get the same calls, and make them together."""

    def __init__(
        self,
        config: Config,
        run_size: RunSize,
        checkpoint: Checkpoint | None,
        *,
        objects: RunObjects = NO_OBJECTS,
        ranks: Ranks = ONE_RANK,
        before_update: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the weights, from a checkpoint if there is one, or take a program's own model of `objects`.

        `before_update` lets go of memory for an update.
        """
        self._ranks, self._before_update = ranks, before_update
        self.kept = dict[int, dict[str, Tensor]]()
        """Whole weights by version and name, on the first rank: those that ranks which only sample may still load."""
        self._goes_on = config.cluster.max_staleness > 0
        tokenizer, has_model = objects.tokenizer or load_tokenizer(config.model), objects.model is not None
        start = None if has_model else checkpoint
        self.trainer = make_trainer(config, tokenizer, run_size, objects, checkpoint=start, ranks=ranks)
        if has_model and checkpoint is not None:
            self.trainer.restore(checkpoint)

    def sentences(self) -> tuple[str, ...]:
        """Sentences for the user on how the model is computed."""
        return tuple(trainer_sentences(self.trainer))

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> TrainerUpdate:
        """Run all updates of a step."""
        self._before_update()
        stats, rate = self.trainer.update(number, groups)
        held = None
        if isinstance(self._ranks, MeshRanks) and self._ranks.mesh.has_copies:
            trained = (parameter for parameter in self.trainer.policy.model.parameters() if parameter.requires_grad)
            checksum = fingerprint(piece_of(piece).tensor.contiguous() for piece in trained)
            held = WeightsChecksum(part=self._ranks.mesh.part, fingerprint=checksum)
        version = self.trainer.policy_version
        return TrainerUpdate(stats=stats, learning_rate=rate, policy_version=version, held=held)

    def manifest(self, version: int, keep: Callable[[str, Tensor], None] | None = None) -> Manifest | None:
        """Manifest of the current weights, on the first rank; `keep` is given each of them in its turn."""
        model, policy_version = self.trainer.policy.model, self.trainer.policy_version
        return manifest_of(model, version=version, policy_version=policy_version, ranks=self._ranks, keep=keep)

    def hold(self, version: int) -> Manifest | None:
        """Keep the whole trained weights as this version, on the first rank; all that train call it together."""
        weights, is_split = dict[str, Tensor](), self._ranks.sizes.splits_the_model

        def keep(name: str, weight: Tensor) -> None:
            # gathered ones lie on the device, of which there is little; others change while this version is kept
            weights[name] = weight.to("cpu", copy=not is_split) if self._goes_on or is_split else weight

        manifest = self.manifest(version, keep)
        if manifest is not None:
            self.kept[version] = weights
        return manifest

    def bucket(self, names: Sequence[str]) -> list[np.ndarray]:
        """One bucket of the current weights; the first rank returns it, the others help to gather."""
        return read_bucket(self.trainer.policy.model, names, self._ranks)
