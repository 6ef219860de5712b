"""A long run on a cluster: memory, open files and the object store of every process, and the age of every token.

    python benchmarks/soak.py [--steps 1000] [--output DIR]

Trains the embedded model with two samplers and two trainers, one step ahead, and looks at the run's processes every
few seconds. Each process is written down at a tenth of the run, when caches are filled, and at its end; growth is the
difference. The run's own rollouts say from which weights every completion was sampled.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring import machine

RESULTS = Path(__file__).parent / "results"
LOOK_SECONDS = 2.0
SAMPLERS, TRAINERS, STALENESS = 2, 2, 1
OPTIONS = (
    f"--cluster --num-producers {SAMPLERS} --num-consumers {TRAINERS} --max-staleness {STALENESS} --eval-steps 0 "
    "--prompts-per-step 4 --num-generations 4 --save-steps 250 --learning-rate 1e-5"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """One process at one moment."""

    role: str
    resident_mib: float
    shared_mib: float
    """Of which the object store, in the process that holds it."""
    files: int


def main() -> int:
    """Run, look, write; the exit status is 1 where the run failed or a token was too old."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = [sys.executable, "-m", "paceline", "train", "--output-dir", str(run)]
        started = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--max-steps", str(asked.steps), *OPTIONS.split()], stdout=subprocess.DEVNULL
        )
        first, last = watch(process, run / "metrics.jsonl", steps=asked.steps)
        ages = [*ages_of(run)]
    result = {
        "benchmark": "soak",
        "machine": machine(0),
        "steps": asked.steps,
        "options": OPTIONS,
        "seconds": time.perf_counter() - started,
        "processes": [
            {"at a tenth": asdict(first[number]), "at the end": asdict(last[number])}
            for number in sorted(first.keys() & last.keys(), key=lambda number: first[number].role)
        ],
        "gone or new": sorted(one.role for one in (*_alone(first, last), *_alone(last, first))),
        "completions": len(ages),
        "oldest": max(ages),
    }
    asked.output.mkdir(exist_ok=True, parents=True)
    place = asked.output / "soak.json"
    place.write_text(json.dumps(result, indent=2) + "\n")
    print(place.read_text())
    return 0 if process.returncode == 0 and max(ages) <= STALENESS else 1


def watch(process: subprocess.Popen[bytes], metrics: Path, *, steps: int) -> tuple[dict[int, Look], dict[int, Look]]:
    """The run's processes by their numbers, at a tenth of its steps and when it was last seen."""
    first, last = dict[int, Look](), dict[int, Look]()
    while process.poll() is None:
        time.sleep(LOOK_SECONDS)
        done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if done >= steps:
            continue  # it is ending: its processes go one by one
        if done >= steps // 10:
            last = dict(looks(process.pid))
            first = first or last
    return first, last


def looks(pid: int) -> Iterator[tuple[int, Look]]:
    """A process and all that it and they have started, those that Ray starts for it included."""
    parents = {int(entry): _parent(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
    family = {pid}
    while found := {child for child, parent in parents.items() if parent in family} - family:
        family |= found
    for number in family:
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{number}/status").read_text().splitlines())
            title = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode().split()
            files = len(os.listdir(f"/proc/{number}/fd"))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "VmRSS" in status:
            resident, shared = _mib(status["VmRSS"]), _mib(status["RssShmem"])
            yield number, Look(role=_role(title), resident_mib=resident, shared_mib=shared, files=files)


def ages_of(run: Path) -> Iterator[int]:
    """Updates by which the weights that each completion was sampled from lay behind those that it trained."""
    before = 0
    for metrics in map(json.loads, Path(run, "metrics.jsonl").read_text().splitlines()):
        for line in Path(run, "rollouts", f"step-{metrics['step']:06d}.jsonl").read_text().splitlines():
            yield before - json.loads(line)["policy_version"]
        before = metrics["policy_version"]


def _parent(number: int) -> int:
    try:
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _role(title: list[str]) -> str:
    """`ray::TrainerActor.update` is a trainer; of others the program's name, or the module that Python runs."""
    if title[0].startswith("ray::"):
        return title[0].removeprefix("ray::").partition(".")[0]
    names = [Path(word).name for word in title if not word.startswith("-")]
    return names[1] if names[0].startswith("python") and len(names) > 1 else names[0]


def _mib(text: str) -> float:
    return int(text.split()[0]) / 1024


def _alone(these: dict[int, Look], others: dict[int, Look]) -> list[Look]:
    return [one for number, one in these.items() if number not in others]


if __name__ == "__main__":
    sys.exit(main())
