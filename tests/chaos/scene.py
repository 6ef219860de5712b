"""What a fault needs: places to be done in, what the undisturbed run left, and the words for what must hold."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.kills import Life
from tests.chaos.runs import Outcome, Place, behave, furnish
from tests.support.forked import Ended
from tests.support.tiny import Kind

REMEDY = "--resume run"


class Impossible(Exception):
    """This machine cannot bring the fault about; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """Where one fault is done."""

    root: Path
    """A new directory."""
    life: Life
    finished: Path
    """The undisturbed run's place, which is copied and never changed."""

    def place(self, name: str = "place", kind: Kind = "qwen3") -> Place:
        """A new one, with nothing done in it."""
        return furnish(self.root / name, kind)

    def stopped(self, *, last: int = 6) -> Place:
        """The undisturbed run without its end, as a kill after the checkpoint of step `last` leaves it."""
        place = Place(folder=Path(shutil.copytree(self.finished, self.root / "place")))
        for file in ("summary.json", "report.html"):
            (place.run.path / file).unlink()
        shutil.rmtree(place.run.path / "final")
        for checkpoint in place.checkpoints():
            if checkpoint.name > f"step-{last:06d}":
                shutil.rmtree(checkpoint)
        return place

    def must_resume(self, place: Place, *words: str, override: str | None = None) -> Ended:
        """Going on ends as if nothing had happened, and says these words."""
        behave(place)
        ended = place.resume(*([] if override is None else ["--override", override]))
        must(ended, 0, *words)
        self.must_be_whole(place.outcome())
        return ended

    def must_be_whole(self, outcome: Outcome) -> None:
        """It is what the undisturbed run left."""
        for name in ("weights", "metrics", "evals", "completions"):
            assert getattr(outcome, name) == getattr(self.life.outcome, name), (
                f"{name} differ from the undisturbed run's"
            )


def must(ended: Ended, status: int, *words: str) -> None:
    """A process ended with this status and said all of this, and no traceback of ours."""
    assert ended.returncode == status, f"status {ended.returncode} and not {status}: {ended.said[-600:]}"
    for word in words:
        assert word in ended.said, f"did not say {word!r}: {ended.said[-600:]}"
    assert "Traceback" not in ended.said or "reward.py" in ended.said, ended.said[-600:]


def must_refuse(place: Place, *words: str, options: tuple[object, ...] = ()) -> None:
    """Going on is refused in a sentence with these words, and changes no file of the run."""
    before = contents(place.run.path)
    must(place.resume(*options), 2, *words)
    assert contents(place.run.path) == before, "a refusal changed the run"


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file but the lock, which names whoever had it last."""
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != ".lock"}
