"""The record of what came out of an audit."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Honest:
    """How the gold answer did in one form."""

    form: str
    tasks: int
    """Tasks that it was handed in for."""
    full: int
    """Those of them on which it scored full."""
    best: float | None
    """The highest score; None: no number was given."""
    is_promised: bool
    """True if the function says that it takes this form."""

    @property
    def is_short(self) -> bool:
        """True if the function does not keep what it says."""
        return self.is_promised and self.full < self.tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """How one attack did."""

    attack: str
    what: str
    tasks: int
    """Tasks that gave something to try; 0: there was nothing to try."""
    completions: int
    full: int
    """Tasks on which a completion scored full."""
    partial: int
    """Tasks on which one scored something, and none full."""
    failed: int
    """Completions on which the function failed: nothing is known of them."""
    best: float | None
    """The highest score; None: no number was given."""
    forms: tuple[str, ...]
    """The forms that scored full, or else something."""
    example: str | None
    """The completion that scored most, where it scored anything."""
    row: str | None
    """Its row."""
    counts: bool
    """False: the function may give its full score here."""

    @property
    def is_cheated(self) -> bool:
        """True if a cheat scored full that must not."""
        return self.counts and self.full > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """What attacks on one reward function came to."""

    name: str
    tasks: int
    threshold: float | None
    """The full score; None: nothing scored above an empty completion, so what a full one is stays unknown."""
    threshold_from: str
    """Where that is known from."""
    exception: str
    """Why some attacks do not count against this function; empty: all do."""
    honest: tuple[Honest, ...]
    findings: tuple[Finding, ...]
    failure: str | None
    """The first failure of the function: its message and traceback."""

    @property
    def cheats(self) -> tuple[Finding, ...]:
        """The attacks that scored full and must not."""
        return tuple(finding for finding in self.findings if finding.is_cheated)

    @property
    def failed(self) -> int:
        """Completions on which the function failed."""
        return sum(finding.failed for finding in self.findings)

    @property
    def is_silent(self) -> bool:
        """True if the function gave no number at all."""
        return all(one.best is None for one in self.honest) and all(one.best is None for one in self.findings)

    @property
    def is_clean(self) -> bool:
        """True if no cheat scored full, and the gold answer did wherever the function says so."""
        return not self.cheats and not self.is_silent and not any(one.is_short for one in self.honest)
