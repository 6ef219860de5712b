"""A judge's service of the run's own: `paceline serve` of a model as a child process, on a port that is free.

It ends with the run, and with this process however that ends: the kernel then closes its standard input, and it stops
at that (`--end-with-input`). It has a session of its own, so that Ctrl-C lets the step in hand have its verdicts.
"""

import os
import secrets
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.config.sections import JUDGE
from paceline.errors import RewardError
from paceline.processes.starting import import_variables, start_python
from paceline.rewards.judges.settings import JudgeSettings
from paceline.rewards.model_files import language_model_files, sampled_digest
from paceline.runtime.activity import ACTIVITY

KEY = "PACELINE_API_KEY"
"""Environment variable in which `paceline serve` finds its key."""
READY, LAST = " responds at ", "key: "
"""What `paceline serve` prints before its address, and the start of the last line before it responds."""
START_SECONDS = 3600.0
"""Until it responds, at most: a model from the Hub is fetched first."""
WAIT_SECONDS = 1.0  # between two looks at that deadline


@dataclass(kw_only=True, slots=True)
class ServeProcess:
    """The child process, and what it has printed."""

    process: "subprocess.Popen[bytes]"
    url: str = ""
    """Its address, once it is printed."""
    last_line: str = ""
    """The last line that it has printed."""
    is_known: threading.Event = field(default_factory=threading.Event)
    """Set when it responds or has ended."""

    def read(self) -> None:
        """Read what it prints until it ends; a full pipe would stop it."""
        assert self.process.stdout is not None
        with self.process.stdout as pipe, open(pipe.fileno(), "rb", closefd=False) as lines:
            for line in (line.decode("utf-8", "replace").strip() for line in lines):
                self.last_line = line or self.last_line
                if READY in line:
                    self.url = line.rpartition(READY)[2].partition(",")[0]
                if line.startswith(LAST):
                    self.is_known.set()
        self.process.wait()
        self.is_known.set()


class OwnService:
    """The service of one model, started when it is first asked."""

    def __init__(self, model: str, options: tuple[str, ...]) -> None:
        """`options`: those of `paceline serve` that decide its size."""
        self.model, self._options = model, options
        self.key = secrets.token_hex(16)
        """What its clients send; it is in no file and on no command line."""
        self.identity: tuple[str, ...] = (model,)
        """What verdicts are kept by in the place of address and name: digests of the model's files; of one that is not
        on this disk, its name."""
        self._lock = threading.RLock()
        self._running: ServeProcess | None = None
        self._end: Callable[[], object] = lambda: None

    @property
    def url(self) -> str:
        """The address before `/chat/completions`; empty before it responds."""
        return "" if self._running is None else self._running.url

    @property
    def why_ended(self) -> str:
        """Why it does not respond, in a sentence; empty while it does."""
        running = self._running
        if running is None:
            return "its `paceline serve` was ended with a run"
        status = running.process.poll()
        if status is None:
            return ""
        return f"its `paceline serve` has ended with status {status}: {running.last_line.removeprefix('paceline: ')}"

    def start(self) -> None:
        """Start it and wait until it responds, unless it was started already; one that has ended by itself stays so.

        Raises:
            RewardError: it does not respond; the sentence is what it said last.
        """
        with self._lock:
            if self._running is not None:
                return
            running = self._running = self._started()
            until = time.monotonic() + START_SECONDS
            try:
                while not running.is_known.wait(WAIT_SECONDS):
                    ACTIVITY.beat("judge", f"{self.model} is being loaded")
                    if time.monotonic() > until:
                        raise RewardError(
                            f"--reward-funcs {JUDGE}{self.model} cannot be served: it was not loaded after "
                            f"{START_SECONDS:.0f} seconds, and last said: {running.last_line}"
                        )
                if why := self.why_ended:
                    raise RewardError(f"--reward-funcs {JUDGE}{self.model} cannot be served: {why}")
            except BaseException:  # an interrupt too: what is half begun is no service
                self.end()
                raise
            self.identity = tuple(map(sampled_digest, language_model_files(self.model))) or (self.model,)

    def _started(self) -> ServeProcess:
        words = ("--model", self.model, *self._options, "--port", "0", "--end-with-input", "--stop-grace", "0")
        process = start_python(
            *("-m", "paceline", "serve", *words),
            variables={**import_variables(), KEY: self.key},
            stderr=subprocess.STDOUT,
        )
        # also where nobody ends it: once nobody has this object any more, and when Python ends
        self._end = weakref.finalize(self, _end, process, os.getpid())
        running = ServeProcess(process=process)
        threading.Thread(target=running.read, name="judge's service", daemon=True).start()
        return running

    def end(self) -> None:
        """End it; the next `start` makes a new one."""
        with self._lock:
            self._end()
            self._running = None


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    """Kill the process, unless this one was only forked from its owner; nothing of it is worth a grace."""
    if os.getpid() != owner:
        return
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


_services: "weakref.WeakValueDictionary[tuple[str, ...], OwnService]" = weakref.WeakValueDictionary()


def serve_options(settings: JudgeSettings) -> tuple[str, ...]:
    """Options of `paceline serve` for a judge: judges of a model that have the same share a process."""
    return (
        *("--concurrent-sequences", str(settings.concurrency)),
        *("--max-prompt-length", str(settings.prompt_tokens)),
        *("--max-completion-length", str(settings.verdict_tokens)),
    )


def own_service(settings: JudgeSettings) -> OwnService:
    """The service of a judge's model in this process: one for all judges of the same model and sizes."""
    options = serve_options(settings)
    service = _services.get((settings.model, *options))
    if service is None:
        service = _services[settings.model, *options] = OwnService(settings.model, options)
    return service


def end_services() -> None:
    """End the services of this process, at the end of a run; a judge that is asked again starts its own anew."""
    for service in list(_services.values()):
        service.end()
