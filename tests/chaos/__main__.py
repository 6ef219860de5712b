"""`make chaos`: every kill and every fault, one after the other; status 1 if a promise was not kept."""

import argparse
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.faults import FAULTS, Fault
from tests.chaos.kills import TARGETS, Life, draw, kill, kill_of_cluster, live, live_on_cluster, records
from tests.chaos.results import PAGE, Record, is_kept, write
from tests.chaos.scene import Impossible, Scene

# read once per process, and the same for all of a cluster's
os.environ.setdefault("RAY_AUTH_TOKEN", f"{random.SystemRandom().getrandbits(256):064x}")


def main(argv: list[str]) -> int:
    """Do what the command says; the exit status."""
    given = _parser().parse_args(argv)
    root = Path(tempfile.mkdtemp(prefix="paceline-chaos-"))
    life = live(root / "life")
    killed = _kills(root, life, given.kills, seed=given.seed)
    killed += _cluster_kills(root, life, given.cluster_kills, seed=given.seed)
    chosen = [fault for fault in FAULTS if not given.only or fault.done.__name__ in given.only]
    found = [try_fault(fault, root, life, may_cluster=given.cluster_kills > 0 or bool(given.only)) for fault in chosen]
    results = {"seed": given.seed, "machine": _machine(), "kills": killed, "faults": found}
    kept = is_kept(results)
    if not given.only:
        write(results)
        print(f"page    {PAGE}")
    if kept:
        shutil.rmtree(root)
    else:
        print(f"what was left of broken promises is in {root}")
    return 0 if kept else 1


def try_fault(fault: Fault, root: Path, life: Life, *, may_cluster: bool) -> Record:
    """One fault, and whether its promise was kept."""
    scene = Scene(root=root / fault.done.__name__, life=life, finished=root / "life-again")
    started, outcome, why = time.perf_counter(), "kept", ""
    try:
        if fault.needs == "a cluster" and not may_cluster:
            raise Impossible("--cluster-kills 0 leaves clusters out")
        fault.done(scene)
    except Impossible as reason:
        outcome, why = "not tried", str(reason)
    except AssertionError as broken:
        outcome, why = "broken", str(broken).replace(str(root), "...")[:200]
    seconds = time.perf_counter() - started
    print(f"{seconds:6.1f} s  {outcome:8} {fault.name}{': ' + why if why else ''}", flush=True)
    if outcome == "kept" and scene.root.exists():
        shutil.rmtree(scene.root)
    return {
        "name": fault.name,
        "injected": fault.injected,
        "promised": fault.promised,
        "outcome": outcome,
        "why": why,
        "seconds": round(seconds, 1),
    }


def _kills(root: Path, life: Life, count: int, *, seed: int) -> list[Record]:
    found = []
    for number, moment in enumerate(draw(life, count, seed=seed)):
        one = kill(root / f"kill-{number}", moment, life)
        print(f"kill {number + 1} of {count}, {one.moment}, {one.found}: {'kept' if one.is_kept else one}", flush=True)
        found.append(one)
    return records(found)


def _cluster_kills(root: Path, life: Life, count: int, *, seed: int) -> list[Record]:
    if count == 0:
        return []
    drawn, found = random.Random(seed), []
    cluster, seconds = live_on_cluster(root / "cluster", life)
    for number in range(count):
        target, share = TARGETS[number % len(TARGETS)], drawn.random()
        one = kill_of_cluster(root / f"cluster-kill-{number}", target, share * seconds, cluster)
        print(f"kill {number + 1} of {count} of {target}, {one.moment}: {'kept' if one.is_kept else one}", flush=True)
        found.append(one)
    return records(found)


def _machine() -> str:
    return (
        f"Last run on {os.cpu_count()} cores of {platform.machine()}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of a run in one process")
    parser.add_argument("--cluster-kills", type=int, default=20, help="of a run on a cluster; 0: nor its faults")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", nargs="+", default=[], help="functions of faults; then nothing is written down")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
