"""A run's numbers to the trackers that people know: TensorBoard, Weights & Biases, Trackio, MLflow.

__init__.py   from the names of `--report-to` to open trackers: check_trackers, open_trackers, Trackers, flat_numbers
libraries.py  one class per tracking library
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from paceline.config.packages import install_command
from paceline.errors import ConfigError, first_line
from paceline.reports.trackers.libraries import (
    MlflowTracker,
    TensorBoardTracker,
    Tracker,
    TrackioTracker,
    WandbTracker,
)

MOST_WAITING = 2000
"""Most entries that wait for a tracker that does not answer, a step's numbers each: about 10 MB."""
RETRY_SECONDS = 60.0
"""Least seconds between two tries."""
LARGEST_SHARE = 0.05
"""Largest share of the run's time that retries may take.

A library may wait for minutes before it says that a server is gone.
"""


class Sender:
    """A tracker whose outage ends no run: what it does not take waits and is sent, in order, when it answers again."""

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        *,
        notify: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` is the tracker's in `--report-to`; `notify` is called when an outage begins and ends."""
        self._name, self._tracker, self._notify, self._clock = name, tracker, notify, clock
        self.url = tracker.url
        self._waiting = deque[tuple[Mapping[str, float], int]]()
        self._given_up = 0
        self._is_out = False
        self._due = 0.0

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the numbers after those that wait, or have them wait; beyond `MOST_WAITING` the oldest are given up."""
        if len(self._waiting) == MOST_WAITING:
            self._waiting.popleft()
            self._given_up += 1
        self._waiting.append((dict(numbers), step))
        if not self._is_out or self._clock() >= self._due:
            self._send()

    def finish(self) -> None:
        """Try once more, close the tracker, and say what it was not sent."""
        self._send()
        missing = len(self._waiting) + self._given_up
        if missing:
            self._notify(
                f"--report-to {self._name} was not sent {missing} entries; the run's metrics.jsonl and evals.jsonl "
                "have them"
            )
        fault = fault_of(self._tracker.finish)
        if fault:
            self._notify(f"--report-to {self._name} could not be closed ({fault})")

    def _send(self) -> None:
        started, fault = self._clock(), ""
        while self._waiting and not fault:
            numbers, step = self._waiting[0]
            fault = fault_of(lambda: self._tracker.log(numbers, step))  # noqa: B023 - called at once
            if not fault:
                self._waiting.popleft()
        if fault and not self._is_out:
            self._notify(
                f"--report-to {self._name} takes no numbers ({fault}): the run goes on, and up to {MOST_WAITING} "
                "entries wait until it does"
            )
        if self._is_out and not fault:
            self._notify(f"--report-to {self._name} takes numbers again, and has been sent what waited")
        self._is_out, ended = bool(fault), self._clock()
        self._due = ended + max(RETRY_SECONDS, (ended - started) / LARGEST_SHARE)


def fault_of(call: Callable[[], None]) -> str:
    """Call a tracking library; return the error that it raised as text, or an empty text.

    A border: each library has its own exceptions for a server that is gone, and those of the libraries below it.
    """
    try:
        call()
    except Exception as error:  # noqa: BLE001 - reported, counted, and tried again
        return f"{type(error).__name__}: {first_line(error)}"
    return ""


LIBRARIES: Mapping[str, Callable[..., Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "trackio": TrackioTracker,
    "mlflow": MlflowTracker,
}
"""Classes by the name of a tracker, which is also that of its module and its package: one for each of `TRACKERS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trackers:
    """All trackers of a run together; without any, nothing happens."""

    opened: tuple[Tracker, ...]

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the run's curves."""
        return tuple(tracker.url for tracker in self.opened if tracker.url is not None)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Add one point to each named curve in every tracker."""
        for tracker in self.opened:
            tracker.log(numbers, step)

    def finish(self) -> None:
        """Close every tracker, the others too when one of them fails."""
        with ExitStack() as closing:
            for tracker in self.opened:
                closing.callback(tracker.finish)


def check_trackers(names: Sequence[str]) -> tuple[str, ...]:
    """The trackers that `--report-to` means: `all` is every installed one, `none` is none. Imports no library.

    Raises:
        ConfigError: an unknown name, `all` or `none` beside another, or a library that is not installed.
    """
    choices = (*LIBRARIES, "all", "none")
    for name in names:
        if name not in choices:
            close = get_close_matches(name.lower(), choices, n=1)
            nearest = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"--report-to: no tracker {name!r}{nearest}; choose from {', '.join(choices)}")
        if name in ("all", "none") and len(set(names)) > 1:
            raise ConfigError(f"--report-to {' '.join(names)}: {name!r} must stand alone; leave it or the others out")
    if "all" in names:
        return tuple(name for name in LIBRARIES if _is_installed(name))
    wanted = tuple(name for name in dict.fromkeys(names) if name != "none")
    missing = [name for name in wanted if not _is_installed(name)]
    if missing:
        raise ConfigError(
            f"--report-to {' '.join(missing)}: not installed; run `{install_command(*missing)}`, or leave it out"
        )
    return wanted


def open_trackers(
    names: Sequence[str],
    *,
    project: str,
    run_name: str,
    directory: Path,
    settings: Mapping[str, object],
    notify: Callable[[str], None],
) -> Trackers:
    """Open a run named `run_name` in every named tracker; files go under `directory`, `settings` beside the curves.

    `notify` is called with sentences on outages, which end nothing.

    Raises:
        ConfigError: as `check_trackers`, or a library that opens no run.
    """
    with ExitStack() as opening:
        opened = []
        for name in check_trackers(names):
            library = LIBRARIES[name](project=project, run_name=run_name, directory=directory, settings=settings)
            tracker = Sender(name, library, notify=notify)
            opening.callback(tracker.finish)
            opened.append(tracker)
        opening.pop_all()
    return Trackers(opened=tuple(opened))


def _is_installed(name: str) -> bool:
    # a module without a file is a mere directory, such as the `wandb` that past runs left
    spec = find_spec(name)
    return spec is not None and spec.origin is not None


_REFUSED = re.compile(r"[^\w.: -]")
"""Characters that some tracker refuses in a name; a slash would also make a group."""


def flat_numbers(record: Mapping[str, object]) -> dict[str, float]:
    """The numbers of a line of `metrics.jsonl` or `evals.jsonl`, nested names joined by a slash.

    None (no number this time) and text are left out; True and False are 1.0 and 0.0. What a tracker could refuse within
    a name becomes an underscore, such as the slashes of a reward function's file.

    >>> flat_numbers({"loss": 0.5, "kl": None, "rewards": {"my/file.py:f": {"mean": 1}}})
    {'loss': 0.5, 'rewards/my_file.py:f/mean': 1.0}

    Raises:
        ValueError: two names become the same one.
    """
    pairs = list(_pairs(record, ()))
    numbers = dict(pairs)
    if len(numbers) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"two numbers have the same name: {sorted({name for name in names if names.count(name) > 1})}")
    return numbers


def _pairs(record: Mapping[str, object], above: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        path = (*above, _REFUSED.sub("_", name))
        if isinstance(value, Mapping):
            yield from _pairs(value, path)
        elif isinstance(value, int | float):
            yield "/".join(path), float(value)
