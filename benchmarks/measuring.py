"""What the benchmarks share: contenders in processes of their own, the machine's description, result files.

The parent asks, one contender works at a time, the others sleep: a line of JSON goes in, a line of JSON comes out.

    parent   with Contender.start(entry, threads=2) as one: one.read(timeout=9); one.ask({"repetition": 0}, timeout=9)
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
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO

PACKAGES = ("torch", "transformers", "trl")
QUIET = {
    "CI": "1",  # TRL sends no message home
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Who takes part: a script of `benchmarks/`, or of a path of its own, and how to run it."""

    script: str
    arguments: Sequence[str]
    python: str = sys.executable
    repetitions: int | None = None
    """Where fewer than the others' are enough; None: as many."""
    sources: Path | None = None
    """Directory that the package is imported from; None: where it is installed."""


@dataclass(kw_only=True)
class Contender(AbstractContextManager):
    """A process that measures itself on request. The parent's side."""

    process: subprocess.Popen
    log: IO[bytes]
    """What the child writes to standard error, and its libraries to standard output."""

    @classmethod
    def start(cls, entry: Entry, *, threads: int) -> "Contender":
        """Run it with all its thread pools at `threads`."""
        environment = os.environ | QUIET | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        if entry.sources is not None:
            environment["PYTHONPATH"] = str(entry.sources)
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the contender
        process = subprocess.Popen(
            [entry.python, str(Path(__file__).parent / entry.script), *entry.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
        )
        return cls(process=process, log=log)

    def read(self, *, timeout: float) -> dict:
        """The next answer; the first one comes unasked, once the contender is loaded.

        Returns:
            The answer, or `error`: the last line that the process wrote before it ended, or that `timeout` seconds
            passed.
        """
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        if not ready:
            return {"error": f"no answer within {timeout:.0f} s"}
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": self._last_words()}

    def ask(self, request: Mapping[str, object], *, timeout: float) -> dict:
        """Send a request and wait for its answer, as `read`."""
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": self._last_words()}
        return self.read(timeout=timeout)

    def _last_words(self) -> str:
        self.process.wait(timeout=60)
        self.log.seek(0)
        lines = [line for line in self.log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"ended with exit status {self.process.returncode}"

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        with suppress(BrokenPipeError):  # an unread request of one that ended
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
    entries: Mapping[str, Entry], *, repetitions: int, threads: int, timeout: float, together: bool = True
) -> dict[str, dict]:
    """Every contender's answers to a warm-up and then to its repetitions.

    Args:
        entries: by name.
        repetitions: how many count; repetition 0 is the warm-up and is thrown away.
        threads: of each contender; only one works at a time.
        timeout: seconds that an answer may take.
        together: all stay in memory and alternate, in alternating order; else one runs after the other.

    Returns:
        By name: `start`, the first answer, and `repetitions`; for one that ended early, `error` says why.
    """
    if not together:
        parts = ({name: entry} for name, entry in entries.items())
        alone = (take_turns(one, repetitions=repetitions, threads=threads, timeout=timeout) for one in parts)
        return {name: result for one in alone for name, result in one.items()}
    results: dict[str, dict] = {}
    with ExitStack() as stack:
        running: dict[str, Contender] = {}
        for name, entry in entries.items():
            running[name] = stack.enter_context(Contender.start(entry, threads=threads))
            results[name] = _started(running[name].read(timeout=timeout))
        for repetition in range(repetitions + 1):
            for name in list(entries)[:: 1 if repetition % 2 else -1]:
                own = entries[name].repetitions
                if "error" not in results[name] and repetition <= (repetitions if own is None else own):
                    answer = running[name].ask({"repetition": repetition}, timeout=timeout)
                    _note(name, results[name], answer, repetition)
    return results


def _started(answer: dict) -> dict:
    return answer if "error" in answer else {"start": answer, "repetitions": []}


def _note(name: str, result: dict, answer: dict, repetition: int) -> None:
    what = answer["error"] if "error" in answer else f"{answer['seconds']:.2f} s"
    print(f"  {name}, {f'repetition {repetition}' if repetition else 'warm-up'}: {what}", flush=True)
    if "error" in answer:
        result["error"] = answer["error"]
    elif repetition:
        result["repetitions"].append(answer)


def machine(threads: int, packages: Sequence[str] = PACKAGES) -> dict[str, object]:
    """Where and when the figures were measured."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: found for package in packages if (found := installed(package)) is not None},
        "threads": threads,
        "date": datetime.now(UTC).date().isoformat(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def installed(package: str) -> str | None:
    """Its version; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def installed_in(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Versions of the packages that another environment has, by name."""
    script = (
        "import json, sys\n"
        "from importlib.metadata import distributions\n"
        "found = {one.name.lower(): one.version for one in distributions()}\n"
        "print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))"
    )
    answer = subprocess.run([str(python), "-c", script, *packages], capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


def cpu_name() -> str:
    """The processor's own name, where the system tells it."""
    place = Path("/proc/cpuinfo")
    lines = place.read_text().splitlines() if place.is_file() else []
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    if "model name" not in fields:
        return platform.processor() or "unknown"
    return f"{fields['model name']} (family {fields['cpu family']}, model {fields['model']})"
