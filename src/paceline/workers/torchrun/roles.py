"""Roles of a launch's ranks: all sample and train, or the last ones only sample."""

from dataclasses import dataclass

from paceline.config.layout import ParallelConfig, training_ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """Ranks that train and ranks that sample. The first rank always trains, because it has the loop."""

    training: range
    sampling: range

    @property
    def all(self) -> range:
        """Every rank."""
        return range(self.sampling.stop)

    @property
    def are_apart(self) -> bool:
        """True if the sampling ranks do not train."""
        return self.sampling.start > 0

    @property
    def sentence(self) -> str:
        """Sentence for the user on who does what."""
        if not self.are_apart:
            return f"{len(self.all)} ranks sample and train together"
        train, sample = _counted(self.training, "trains", "train"), _counted(self.sampling, "samples", "sample")
        return f"{train}, {sample}"


def roles_of(options: ParallelConfig, ranks: int) -> Roles:
    """Roles of this many ranks.

    Raises:
        ConfigError: none would be left to train.
    """
    first = training_ranks(options, ranks)
    return Roles(training=range(first), sampling=range(first if options.sampling_ranks else 0, ranks))


def _counted(ranks: range, one: str, several: str) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} {one}"
    return f"ranks {ranks[0]} {'and' if len(ranks) == 2 else 'to'} {ranks[-1]} {several}"
