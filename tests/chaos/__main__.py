"""`make chaos`: every kill and every fault, one after the other; status 1 if a promise was not kept."""

import argparse
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.faults import FAULTS, Fault
from tests.chaos.kills import TARGETS, Kill, Life, draw, kill, kill_of_cluster, live, live_on_cluster
from tests.chaos.results import PAGE, Record, begin, is_kept, write
from tests.chaos.scene import Impossible, Scene

# read once per process, and the same for all of a cluster's
os.environ.setdefault("RAY_AUTH_TOKEN", f"{random.SystemRandom().getrandbits(256):064x}")


def main(argv: list[str]) -> int:
    """Do what the command says; the exit status."""
    given = _parser().parse_args(argv)
    asked = {"seed": given.seed, "of_kills": given.kills + given.cluster_kills, "of_faults": len(FAULTS)}
    results = begin(asked, machine=_machine(), go_on=given.go_on)
    root = Path(tempfile.mkdtemp(prefix="paceline-chaos-"))
    for kind, record in _campaign(root, live(root / "life"), given, results):
        results[kind] = [*(one for one in results[kind] if kind == "kills" or one["name"] != record["name"]), record]
        if given.go_on or not given.only:
            write(results)  # each as it comes: a campaign that is cut off was not for nothing
    is_whole = is_kept(results)
    if is_whole:
        shutil.rmtree(root)
    else:
        print(f"what was left of broken promises is in {root}")
    print(f"page    {PAGE}")
    return 0 if is_whole else 1


def _campaign(root: Path, life: Life, given: argparse.Namespace, before: Record) -> Iterator[tuple[str, Record]]:
    """What is done now, behind what was done `before`: its kind and what came of it, one after the other."""
    if not given.only:
        single = sum(one["target"] == "one process" for one in before["kills"])
        for kills in (
            _kills(root, life, given, done=single),
            _cluster_kills(root, life, given, done=len(before["kills"]) - single),
        ):
            yield from (("kills", one) for one in kills)
    kept = {one["name"] for one in before["faults"] if one["outcome"] == "kept"}
    for fault in FAULTS:
        is_wanted = fault.done.__name__ in given.only if given.only else fault.name not in kept
        if is_wanted:
            yield "faults", try_fault(fault, root, life, may_cluster=given.cluster_kills > 0 or bool(given.only))


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


def _kills(root: Path, life: Life, given: argparse.Namespace, *, done: int) -> Iterator[Record]:
    """Of one process, behind those that are `done` already."""
    moments = draw(life, given.kills, seed=given.seed)
    for number, moment in enumerate(moments[done:], start=done + 1):
        one = kill(root / f"kill-{number}", moment, life)
        print(f"kill {number} of {given.kills}, {one.moment}, {one.found}: {_outcome(one)}", flush=True)
        yield one.record()


def _cluster_kills(root: Path, life: Life, given: argparse.Namespace, *, done: int) -> Iterator[Record]:
    """The same on a cluster."""
    drawn = random.Random(given.seed)
    shares = [drawn.random() for _ in range(given.cluster_kills)]
    if not shares[done:]:
        return
    cluster, seconds = live_on_cluster(root / "cluster", life)
    for number, share in enumerate(shares[done:], start=done + 1):
        target = TARGETS[(number - 1) % len(TARGETS)]
        one = kill_of_cluster(root / f"cluster-kill-{number}", target, share * seconds, cluster)
        print(f"kill {number} of {given.cluster_kills} of {target}, {one.moment}: {_outcome(one)}", flush=True)
        yield one.record()


def _outcome(one: Kill) -> str:
    return "kept" if one.is_kept else str(one)


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
    parser.add_argument("--only", nargs="+", default=[], help="functions of faults, tried and not written down")
    parser.add_argument(
        "--go-on",
        action="store_true",
        help="with a campaign that broke off: kills that were done and faults that were survived are not done again",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
