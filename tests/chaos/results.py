"""What a campaign has found so far: the records of `results.json`, and the page made of them."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent.parent / "docs" / "survival.md"
Record = dict[str, Any]
NAMES = {"ProducerActor": "sampler", "ConsumerActor": "trainer", "SamplerActor": "sampler", "TrainerActor": "trainer"}
"""Names of killed actors on the page."""

TOP = """# What runs survive

`make chaos` inflicts every fault on this page on short runs of a tiny model, and writes the page. A run has six steps,
three checkpoints and three evaluations. It is compared with an undisturbed run. Both must leave the same final weights
(SHA-256 of the safetensors file) and the same completions. They must also leave the same numbers in `metrics.jsonl` and
`evals.jsonl`, clocks aside. Runs of conversations have three steps, and `--deterministic true`. Moments of kills are
drawn from seed {seed}. `make test` includes a sample of the faults.

{machine} Done: {killed} of {of_kills} kills and {tried} of {of_faults} other faults.
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
    """Keep what was found so far, and the page beside the other documents."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))


def page(results: Record) -> str:
    """The page of these results."""
    done, tried = results["kills"], [one for one in results["faults"] if one["outcome"] != "not tried"]
    top = TOP.format(
        seed=results["seed"],
        machine=results["machine"],
        of_kills=results["of_kills"],
        killed=len(done),
        of_faults=results["of_faults"],
        tried=len(tried),
    )
    return "\n".join([top, *_kills(done), *_faults(results["faults"])])


def is_kept(results: Record) -> bool:
    """Whether every promise was."""
    return all(kill["kept"] for kill in results["kills"]) and not any(
        fault["outcome"] == "broken" for fault in results["faults"]
    )


def _kills(kills: list[Record]) -> list[str]:
    lines = [
        "## `kill -9`",
        "",
        "Two thirds of the kills of one process happen by the clock, spread from the creation of the run's",
        "directory to its end. One third happens before a call of `fsync`, `replace` or `rename`. On a cluster the",
        "driver, a sampler and the trainer are killed in turn. Then the run is resumed, or continues by itself.",
        "",
        "| killed | times | same end | committed completions | sampled again |",
        "|---|---|---|---|---|",
    ]
    for target in dict.fromkeys(kill["target"] for kill in kills):
        own = [kill for kill in kills if kill["target"] == target]
        same, committed = sum(kill["is_same"] for kill in own), sum(kill["committed"] for kill in own)
        again = sum(kill["generated_twice"] for kill in own)
        lines.append(f"| {NAMES.get(target, target)} | {len(own)} | {same} | {committed} | {again} |")
    found = Counter(kill["found"] for kill in kills if kill["target"] == "one process")
    lines += ["", "| kills of one process, by what the run was doing | times |", "|---|---|"]
    return [*lines, *(f"| {place} | {count} |" for place, count in sorted(found.items())), ""]


def _faults(faults: list[Record]) -> list[str]:
    lines = [
        "## Other faults",
        "",
        "*Kept* means that the run did what is promised.",
        "",
        "| fault | promise | outcome |",
        "|---|---|---|",
    ]
    for fault in faults:
        why = f": {fault['why']}" if fault["why"] else ""
        lines.append(f"| {fault['injected']} | {fault['promised']} | {fault['outcome']}{why} |".replace("\n", " "))
    return [*lines, ""]
