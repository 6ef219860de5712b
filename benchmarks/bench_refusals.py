"""How long a wrong command takes to be refused: every case of `tests/support/wrong_inputs.py` as a process of its own.

    python benchmarks/bench_refusals.py [--only NAME ...] [--output DIRECTORY]

From the start of Python to its end, imports included. Each must end with status 2 and one sentence that names what is
wrong, without a traceback, within five seconds. A first command, which is not counted, reads Python's files from disk.
"""

import argparse
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from measuring import QUIET, machine
from running import RESULTS, write_result

sys.path.append(str(Path(__file__).parents[1]))

from tests.support.wrong_inputs import CASES, furnish, make_model

ROOT = Path(__file__).parents[1]
LIMIT = 5.0
"""Seconds that a refusal may take."""
TIMEOUT = 120.0
"""Seconds after which a command is taken to have hung."""


def refuse(line: str, named: list[str], place: Path) -> dict[str, object]:
    """Run a wrong command in `place`: the seconds it took, those of processors, and what is wrong with its refusal."""
    environment = os.environ | QUIET | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    before, started = _processor_seconds(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "paceline", *shlex.split(line)],
        env=environment,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    seconds, said = time.perf_counter() - started, done.stderr
    is_sentence = said.startswith("paceline: ") and said.count("\n") == 1 and all(word in said for word in named)
    wrong = "" if done.returncode == 2 and is_sentence else f"status {done.returncode}: {said[-300:]}"
    return {"seconds": seconds, "processor_seconds": _processor_seconds() - before, "wrong": wrong}


def failures(cases: Mapping[str, Mapping[str, object]]) -> list[str]:
    """A sentence for every case that was refused wrongly or too late."""
    wrong = [f"{name}: {one['wrong']}" for name, one in cases.items() if one["wrong"]]
    late = {name: float(str(one["seconds"])) for name, one in cases.items()}
    return wrong + [f"{name}: {seconds:.1f} s" for name, seconds in late.items() if seconds > LIMIT]


def main() -> int:
    """Refuse, print, write; the exit status: 1 where a refusal was wrong or late."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="NAME", help="these alone; writes nothing")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of the JSON file")
    asked = parser.parse_args()
    where, found = machine(threads=os.cpu_count() or 1), dict[str, dict[str, object]]()
    with tempfile.TemporaryDirectory() as folder:
        model, place = Path(folder) / "tiny", Path(folder) / "here"
        make_model(model)
        place.mkdir()
        furnish(place, model)
        refuse("train --model folder", [], place)
        for name in asked.only or CASES:
            line, named = CASES[name]
            found[name] = refuse(line, named, place)
            print(f"{found[name]['seconds']:5.2f} s  {name}  {found[name]['wrong']}".rstrip(), flush=True)
    if not asked.only:
        result = {"benchmark": "refusals", "size": "processes", "limit": LIMIT, "machine": where, "cases": found}
        print(write_result(asked.output, result))
    complaints = failures(found)
    print("\n".join(complaints) or f"{len(found)} commands were refused, each within {LIMIT:g} s")
    return 1 if complaints else 0


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
