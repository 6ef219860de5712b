"""What the benchmarks share: contenders in processes of their own, the machine's description, result files.

The parent asks, one contender works at a time, the others sleep: a line of JSON goes in, a line of JSON comes out.

    parent   with Contender.start(...) as one: one.ask({"repetition": 0}, timeout=900)
    child    channel = Channel.open(); channel.reply({}); for request in channel.requests(): channel.reply({...})

Only the standard library is imported here: a child's peak memory starts at its parent's.
"""

import json
import os
import platform
import resource
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "trl")
QUIET = {
    "CI": "1",  # TRL sends no message home
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}


class ContenderError(RuntimeError):
    """A contender ended or did not answer; the message is the last line that it wrote."""


@dataclass(kw_only=True)
class Contender(AbstractContextManager):
    """A process that measures itself on request. The parent's side."""

    name: str
    process: subprocess.Popen
    log: IO[bytes]
    """What the child writes to standard error, and its libraries to standard output."""

    @classmethod
    def start(cls, name: str, script: str, arguments: Sequence[str], *, threads: int) -> "Contender":
        """Run `benchmarks/<script>` with all its thread pools at `threads`."""
        environment = os.environ | QUIET | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the contender
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
        )
        return cls(name=name, process=process, log=log)

    def read(self, *, timeout: float) -> dict:
        """The next answer; the first one comes unasked, once the contender is loaded.

        Raises:
            ContenderError: the process ended, or `timeout` seconds passed.
        """
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        if not ready:
            raise ContenderError(f"no answer within {timeout:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise ContenderError(self._last_words())
        return json.loads(line)

    def ask(self, request: Mapping[str, object], *, timeout: float) -> dict:
        """Send a request and wait for its answer; errors as `read`."""
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ContenderError(self._last_words()) from None
        return self.read(timeout=timeout)

    def _last_words(self) -> str:
        self.process.wait(timeout=60)
        self.log.seek(0)
        lines = [line for line in self.log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"ended with exit status {self.process.returncode}"

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()


@dataclass(kw_only=True)
class Channel:
    """The child's side. Standard output belongs to the answers: what libraries print goes to standard error."""

    answers: IO[str]

    @classmethod
    def open(cls) -> "Channel":
        """Take standard output over."""
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        return cls(answers=answers)

    def reply(self, answer: Mapping[str, object]) -> None:
        """Answer, with the process's peak memory so far."""
        self.answers.write(json.dumps({**answer, "peak_mib": peak_mib()}) + "\n")
        self.answers.flush()

    def requests(self) -> Iterator[dict]:
        """Requests until the parent closes the pipe."""
        for line in sys.stdin:
            yield json.loads(line)

    def request(self) -> dict:
        """The next request."""
        return next(self.requests())


def peak_mib() -> float:
    """The most memory that this process ever had resident, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def take_turns(
    contenders: Mapping[str, tuple[str, Sequence[str]]], *, repetitions: int, threads: int, timeout: float
) -> dict[str, dict]:
    """Every contender's answers to a warm-up and then to `repetitions` requests, in alternating order.

    Args:
        contenders: by name, the script and its arguments.
        repetitions: how many count; repetition 0 is the warm-up and is thrown away.
        threads: of each contender; only one works at a time.
        timeout: seconds that an answer may take.

    Returns:
        By name: `start`, the first answer, and `repetitions`; or `error`, the sentence it ended with.
    """
    results: dict[str, dict] = {name: {} for name in contenders}
    with ExitStack() as stack:
        alive = []
        for name, (script, arguments) in contenders.items():
            one = stack.enter_context(Contender.start(name, script, arguments, threads=threads))
            _attempt(results[name], alive, one, lambda one=one: {"start": one.read(timeout=timeout), "repetitions": []})
        for repetition in range(repetitions + 1):
            order, alive = alive[:: 1 if repetition % 2 else -1], []
            for one in order:
                _attempt(results[one.name], alive, one, lambda one=one: _repeat(one, results, repetition, timeout))
            alive = sorted(alive, key=lambda one: list(contenders).index(one.name))
    return results


def _repeat(one: Contender, results: Mapping[str, dict], repetition: int, timeout: float) -> dict:
    answer = one.ask({"repetition": repetition}, timeout=timeout)
    print(f"  {one.name}: {'warm-up' if repetition == 0 else f'repetition {repetition}'} {answer['seconds']:.2f} s")
    return {"repetitions": [*results[one.name]["repetitions"], *([answer] if repetition else [])]}


def _attempt(result: dict, alive: list[Contender], one: Contender, act) -> None:
    """Note what `act` gives and keep the contender in the race, or note the sentence that it ended with."""
    try:
        result.update(act())
        alive.append(one)
    except ContenderError as error:
        print(f"  {one.name}: {error}")
        result["error"] = str(error)


def machine(threads: int) -> dict[str, object]:
    """Where and when the figures were measured."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
        "threads": threads,
        "date": datetime.now(UTC).date().isoformat(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def cpu_name() -> str:
    """The processor's own name, where the system tells it."""
    place = Path("/proc/cpuinfo")
    lines = place.read_text().splitlines() if place.is_file() else []
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    if "model name" not in fields:
        return platform.processor() or "unknown"
    return f"{fields['model name']} (family {fields['cpu family']}, model {fields['model']})"


def write_result(directory: Path, result: Mapping[str, object]) -> Path:
    """One JSON file per benchmark and size."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{result['benchmark']}-{result['size']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path
