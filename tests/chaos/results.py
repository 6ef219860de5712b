"""What a campaign has found so far: the records of `results.json`, and the pages made of them."""

import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.chaos.faults import FAULTS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs" / "survival.md"
LIST = ROOT / "benchmarks" / "results" / "survival.md"
Record = dict[str, Any]
NAMES = {"ProducerActor": "sampler", "ConsumerActor": "trainer", "SamplerActor": "sampler", "TrainerActor": "trainer"}
"""Names of killed actors on the page."""

AREAS = (
    (
        "truncated weights",
        "damaged checkpoints",
        "the newest whole checkpoint is used and the run ends the same; damaged ones are named and kept; no pickle is "
        "loaded; without a whole one the run is refused",
    ),
    (
        "torn metrics line",
        "damaged records",
        "a torn last line is cut and counted; damaged rollouts are sampled again; damaged metrics are refused",
    ),
    (
        "changed option",
        "changed options, data or model; a second run",
        "refused with status 2, nothing changed; undone, or named by `--override`, the run continues",
    ),
    (
        "sigterm in generation",
        "signals",
        "SIGTERM and SIGHUP: a checkpoint after the current step, status 130; SIGKILL anywhere: the resumed run ends "
        "the same",
    ),
    (
        "full disk in save",
        "disks, clock, paths",
        "a disk that is full, broken or read-only ends the run with status 1, the last checkpoint whole; once it "
        "works, the resumed run ends the same; the clock, slow writes and odd paths change nothing",
    ),
    (
        "raises",
        "reward functions that raise, hang, exit or crash",
        "the run stops with status 1 and the function's name; once it is fixed, `--resume` ends the same; allowed "
        "failures are counted and not trained on",
    ),
    (
        "dead environments",
        "environments that die, hang, flood or lie; conversations interrupted",
        "the run stops with status 1 and the first cause; once it is gone, the resumed run ends the same",
    ),
    (
        "no memory",
        "memory, NaN",
        "the update is repeated in smaller micro-batches; an update that is not finite is left out and counted, and no "
        "such weights are written",
    ),
    (
        "dead producer",
        "a cluster's processes killed or stopped",
        "samplers are replaced and trainers restart by themselves; the run ends the same",
    ),
    (
        "dead rank",
        "ranks killed or stopped",
        "all end within a deadline and name the lost rank; the resumed run ends the same",
    ),
)
"""Each area of the page: its first fault in the order of the list, its title, and the promise in short."""
TOP = """# What runs survive

`make chaos` harms short runs of a tiny model and writes this page. A run has six steps, three checkpoints and three
evaluations. After each fault its final weights (SHA-256), completions and metrics must equal those of an undisturbed
run, times aside. [The whole list](../benchmarks/results/survival.md) has every fault with its promise. `make test`
tries a sample.

{machine} Seed {seed}. Done: {killed} of {of_kills} kills and {tried} of {of_faults} other faults.
"""


def begin(asked: Mapping[str, int], *, machine: str, go_on: bool) -> Record:
    """The records of a campaign for which so much was `asked`: none yet, or those of one that broke off.

    Raises:
        ValueError: the one that broke off was of another seed, whose moments are others.
    """
    if not go_on:
        return {**asked, "machine": machine, "kills": [], "faults": []}
    found: Record = json.loads(RESULTS.read_text())
    if found["seed"] != asked["seed"]:
        raise ValueError(f"{RESULTS} is of --seed {found['seed']}, got {asked['seed']}; give the same, or begin anew")
    return {**found, **asked, "machine": machine}


def write(results: Record) -> None:
    """Keep what was found so far, the page beside the other documents, and the whole list."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))
    LIST.write_text(whole_list(results))


def page(results: Record) -> str:
    """The page of these results."""
    done, tried = results["kills"], [fault for fault in results["faults"] if fault["outcome"] != "not tried"]
    top = TOP.format(
        seed=results["seed"],
        machine=results["machine"],
        of_kills=results["of_kills"],
        killed=len(done),
        of_faults=results["of_faults"],
        tried=len(tried),
    )
    return "\n".join([top, *_kills(done), *_areas(results["faults"])])


def whole_list(results: Record) -> str:
    """Every fault with its promise and what came of it."""
    lines = [
        "# Faults: the full record behind [docs/survival.md](../../docs/survival.md)",
        "",
        "*Kept* means that the run did what is promised.",
        "",
        "| fault | promise | outcome |",
        "|---|---|---|",
    ]
    for fault in results["faults"]:
        why = f": {fault['why']}" if fault["why"] else ""
        lines.append(f"| {fault['injected']} | {fault['promised']} | {fault['outcome']}{why} |".replace("\n", " "))
    return "\n".join([*lines, ""])


def is_kept(results: Record) -> bool:
    """Whether every promise was."""
    return all(kill["kept"] for kill in results["kills"]) and not any(
        fault["outcome"] == "broken" for fault in results["faults"]
    )


def _kills(kills: list[Record]) -> list[str]:
    lines = [
        "## `kill -9`",
        "",
        "One process is killed at random moments, or just before a call of `fsync`, `replace` or `rename`. On a",
        "cluster the driver, a sampler and the trainer are killed in turn. Then the run is resumed, or goes on alone.",
        "",
        "| killed | times | same end | committed completions | sampled again |",
        "|---|--:|--:|--:|--:|",
    ]
    for target in dict.fromkeys(kill["target"] for kill in kills):
        killed = [kill for kill in kills if kill["target"] == target]
        same, committed = sum(kill["is_same"] for kill in killed), sum(kill["committed"] for kill in killed)
        again = sum(kill["generated_twice"] for kill in killed)
        lines.append(f"| {NAMES.get(target, target)} | {len(killed)} | {same} | {committed} | {again} |")
    moments = Counter(kill["found"] for kill in kills if kill["target"] == "one process")
    stages = ", ".join(f"{moment} ({count})" for moment, count in sorted(moments.items()))
    return [*lines, "", f"One process was killed: {stages}.", ""]


def _areas(faults: list[Record]) -> list[str]:
    lines = ["## Other faults", "", "| area | faults | kept | what is promised |", "|---|--:|--:|---|"]
    for (_, title, promise), names in zip(AREAS, _names_of_areas(), strict=True):
        tried = [fault for fault in faults if fault["name"] in names and fault["outcome"] != "not tried"]
        kept = sum(fault["outcome"] == "kept" for fault in tried)
        lines.append(f"| {title} | {len(tried)} | {kept} | {promise} |")
    return [*lines, ""]


def _names_of_areas() -> list[set[str]]:
    """The names of each area's faults: from its first one to that of the next area."""
    names = [fault.name for fault in FAULTS]
    starts = [names.index(first) for first, _, _ in AREAS]
    return [set(names[start:end]) for start, end in pairwise([*starts, len(names)])]
