"""The consumer half in a process of its own: the learner, its optimiser, its checkpoints."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.checkpoint import Checkpoint, Progress, read_checkpoint
from paceline.cluster.weights import Manifest, manifest_of, read_bucket
from paceline.config import Config, EngineConfig
from paceline.learner import UpdateStats
from paceline.train import OneProcess, assemble, make_feed, path_sentences, prepare
from paceline.types import RolloutGroup


class ConsumingProcess:
    """What a consumer's actor does: the same halves as in one process, of which only the consumer's is called."""

    def __init__(self, config: Config, directory: Path, checkpoint: Path | None) -> None:
        """Read everything anew, from a checkpoint where there is one.

        `directory` is what the configuration's paths are relative to.
        """
        os.chdir(directory)
        config = replace(config, engine=EngineConfig())  # nothing is sampled here
        prepared = prepare(config)
        found = None if checkpoint is None else read_checkpoint(checkpoint)
        self.parts = assemble(config, prepared, checkpoint=found)
        feed = make_feed(config, prepared, found)
        self.halves = OneProcess(config=config, prepared=prepared, parts=self.parts, feed=feed)

    def sentences(self) -> tuple[str, ...]:
        """What a person should know of how the model is computed."""
        return tuple(path_sentences(self.parts))

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        """See `Halves`."""
        return self.halves.update(number, groups)

    def manifest(self, version: int) -> Manifest:
        """Of the weights as they are."""
        policy_version = self.parts.learner.policy_version
        return manifest_of(self.parts.policy.model, version=version, policy_version=policy_version)

    def bucket(self, names: Sequence[str]) -> list[np.ndarray]:
        """One bucket of the weights as they are."""
        return read_bucket(self.parts.policy.model, names)

    def written(self) -> None:
        """Answers when all calls before are done."""

    def save(self, root: Path, progress: Progress, protected: Collection[Path]) -> Checkpoint:
        """See `Halves`."""
        return self.halves.save(root, progress, protected)

    def export(self, folder: Path) -> None:
        """See `Halves`."""
        self.halves.export(folder)
