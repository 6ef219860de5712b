"""Conversations: how busy the engine is while environments take their time, what many weigh, what one turn costs.

    python benchmarks/bench_conversations.py [--part NAME ...] [--quick] [--output DIR]

| part      | what is measured                                                                        |
|-----------|------------------------------------------------------------------------------------------|
| latencies | 256 episodes of 1 to 20 turns, whose environments take 0 to 2 s to begin and to observe  |
| crowd     | 4,096 episodes at once with the embedded model: memory beyond its weights and cache      |
| cost      | steps of the embedded recipe, two models, without an environment and in one of one turn   |

`latencies` runs with a model that leaves the engine time, and with one that does not. Two shares say how busy the
engine is: seconds in prompts and rounds over seconds in which at least one conversation was ready to go on, and the
seconds of a simulated optimum over those measured. In the optimum whatever is ready joins the next round as long as
there is a row, a round takes what rounds of so many rows took, and nothing but prompts and rounds takes any time.

In `cost` two runs take turns step by step, and the other one sleeps. A ratio is of two steps that follow each other;
the figure is the median. Both runs must end with the same weights. `instant` is an environment as built-in games are,
`thread` one in this process that may wait, `process` one of a program's own, in a process for each episode.
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

from conversation_work import SETTINGS, EpisodeWork, Setting, TurnWork, covered, line_through, optimum
from measuring import Contender, Entry, machine

RESULTS = Path(__file__).parent / "results"
PARTS = ("latencies", "crowd", "cost")
LEAST_BUSY = 0.85
MOST_BYTES_MIB = 2e9 / 2**20
MOST_COST = 1.03
GROUP = 8
KINDS = ("instant", "thread", "process")
COSTS = (("embedded", "instant"), ("13m", "instant"), ("embedded", "thread"), ("embedded", "process"))
"""Models and kinds of environments; the first has all steps, the others a quarter."""
LIMITED = ("13m", "instant")
"""What the limit is for: a step of the embedded model takes a fifth of a second, and shows what else there is."""
WARM_UP = 3
"""Steps of each run that do not count."""
TIMEOUT = 300.0
"""Seconds that a response of a contender may take."""


def main() -> int:
    """Measure, print, write; the exit status: 1 where a limit is not held or runs ended with different weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="may be given again (default: all)")
    parser.add_argument("--setting", choices=list(SETTINGS), action="append", help="models (default: all)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="of `cost` (default: all)")
    parser.add_argument("--episodes", type=int, default=4096, help="of `crowd`")
    parser.add_argument("--steps", type=int, default=40, help="of each run of `cost`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--quick", action="store_true", help="a few episodes and steps; writes nothing without --output"
    )
    parser.add_argument("--output", type=Path, help="directory of the JSON file (default benchmarks/results)")
    asked = parser.parse_args()
    if asked.quick:
        asked.episodes, asked.steps = 128, 8
    where, found, complaints = machine(asked.threads, packages=("torch", "transformers")), dict[str, object](), []
    for part in asked.part or PARTS:
        measured, said = {"latencies": latencies, "crowd": crowd, "cost": cost}[part](asked)
        found[part] = measured
        complaints += said
    result = {"benchmark": "conversations", "size": "cpu", "quick": asked.quick, "machine": where, **found}
    if asked.output is not None or not (asked.quick or asked.part):
        place = asked.output or RESULTS
        place.mkdir(parents=True, exist_ok=True)
        (place / "conversations-cpu.json").write_text(json.dumps(result, indent=1) + "\n")
        print(place / "conversations-cpu.json")
    print("\n".join(complaints) or "every limit is held")
    return 1 if complaints else 0


# --- latencies


def latencies(asked: argparse.Namespace) -> tuple[dict[str, object], list[str]]:
    """By setting, how busy the engine was."""
    found, complaints = dict[str, object](), list[str]()
    for name in asked.setting or SETTINGS:
        with tempfile.TemporaryDirectory() as directory, contender("latencies", name, directory, asked=asked) as one:
            start = answer_of(one.read(timeout=TIMEOUT))
            episodes = 32 if asked.quick else SETTINGS[name].episodes
            answer_of(one.ask({"episodes": 16}, timeout=TIMEOUT))  # a warm-up
            answer = answer_of(one.ask({"episodes": episodes}, timeout=TIMEOUT))
        shares = busy_shares(answer, SETTINGS[name])
        found[name] = {**start, **shares, "tokens": answer["tokens"], "peak_mib": answer["peak_mib"]}
        print(f"latencies, {name}: {shares}", flush=True)
        best = max(float(shares["of_optimum"]), float(shares["of_ready"]))
        if best < LEAST_BUSY:
            complaints.append(
                f"latencies, {name}: the engine is busy {best:.0%} of its time, at least {LEAST_BUSY:.0%}"
            )
        if shares["sleeping_rows"]:
            complaints.append(f"latencies, {name}: {shares['sleeping_rows']} times a row belonged to one that waits")
        if answer["ends"] != ["done"]:
            complaints.append(f"latencies, {name}: episodes ended with {', '.join(answer['ends'])}, not done")
    return found, complaints


def busy_shares(answer: Mapping, setting: Setting) -> dict[str, float]:
    """How busy the engine was, and what else there is to say of its rows."""
    works, ready = works_of(answer), ready_times(answer)
    rounds = answer["rounds"]
    by_rows = defaultdict[int, list[float]](list)
    for one in rounds:
        by_rows[one["rows"]].append(one["seconds"])
    # medians, each as often as it came: a round beside another program is no longer round of the engine
    points = [(count, median(seconds)) for count, seconds in by_rows.items() for _ in seconds]
    base, slope = line_through(points)
    prompts = sum(seconds for _, seconds in answer["prompts"])
    firsts = sum(count for count, _ in answer["prompts"])
    best = optimum(
        works,
        rows=setting.rows,
        round_seconds=lambda count: base + slope * count,
        prompt_seconds=prompts / len(works),
    )
    busy = prompts + sum(one["seconds"] for one in rounds)
    has_work = covered(ready)
    return {
        "episodes": len(works),
        "turns": sum(len(one.turns) for one in works),
        "seconds": answer["seconds"],
        "optimum_seconds": best.seconds,
        "of_optimum": best.seconds / answer["seconds"],
        "busy": busy,
        "has_work": has_work,
        "of_ready": busy / has_work,
        "optimum_busy": best.busy,
        "rounds": len(rounds),
        "mean_rows": sum(one["rows"] for one in rounds) / len(rounds),
        "round_base": base,
        "round_per_row": slope,
        "prompts": firsts,
        "prompt_seconds": prompts,
        "sleeping_rows": sum(one["sleeping"] for one in rounds),
        "kept_out_rows": sum(one["kept_out"] for one in rounds),
        "row_rounds": sum(one["rows"] for one in rounds),
    }


def works_of(answer: Mapping) -> list[EpisodeWork]:
    """What each episode did."""
    moments, works = moments_of(answer), list[EpisodeWork]()
    for number, turns in enumerate(answer["turns"]):
        first = number // GROUP * GROUP
        latency = [answered - asked for asked, answered in moments[number]]
        read = [0, *(observed for _, observed in turns)]
        works.append(
            EpisodeWork(
                starts=max(moments[one][0][1] for one in range(first, first + GROUP)),
                turns=tuple(
                    TurnWork(read=read[at], sampled=sampled, latency=latency[at + 1])
                    for at, (sampled, _) in enumerate(turns)
                ),
            )
        )
    return works


def ready_times(answer: Mapping) -> list[tuple[float, float]]:
    """Of each turn when it might begin, and when it had ended."""
    moments, found = moments_of(answer), list[tuple[float, float]]()
    for number, of_one in moments.items():
        first = number // GROUP * GROUP
        begun = max(moments[one][0][1] for one in range(first, first + GROUP))
        starts = [begun, *(answered for _, answered in of_one[1:])]
        found += [(start, asked) for start, (asked, _) in zip(starts, of_one[1:], strict=False)]
    return found


def moments_of(answer: Mapping) -> dict[int, list[tuple[float, float]]]:
    """By episode, when each method of its environment was called and when it returned."""
    found = defaultdict[int, list[tuple[float, float]]](list)
    for number, asked, answered in sorted(answer["moments"], key=lambda one: one[1]):
        found[number].append((asked, answered))
    return found


# --- crowd


def crowd(asked: argparse.Namespace) -> tuple[dict[str, object], list[str]]:
    """Memory of many episodes at once."""
    with contender("crowd", str(asked.episodes), asked=asked) as one:
        start = answer_of(one.read(timeout=TIMEOUT))
        answer = answer_of(one.ask({}, timeout=TIMEOUT))
    grown = answer["peak_mib"] - start["peak_mib"]
    beyond = grown - answer["rows_mib"] - answer["parked_mib"]
    found = {**start, **answer, "before_mib": start["peak_mib"], "grown_mib": grown, "beyond_cache_mib": beyond}
    print(f"crowd: {found}", flush=True)
    complaints = [f"crowd: {beyond:.0f} MiB beyond weights and cache"] if beyond > MOST_BYTES_MIB else []
    if answer["failed"]:
        complaints.append(f"crowd: {answer['failed']} episodes failed")
    return found, complaints


# --- cost


def cost(asked: argparse.Namespace) -> tuple[dict[str, object], list[str]]:
    """By kind of environment: seconds of steps without and with it, their ratios, and whether the weights are equal."""
    found, complaints = dict[str, object](), list[str]()
    for name, kind in COSTS:
        if (asked.kind and kind not in asked.kind) or (asked.setting and name not in asked.setting):
            continue
        steps = asked.steps if (name, kind) == COSTS[0] else max(WARM_UP + 3, asked.steps // 4)
        seconds, weights = in_turns(("plain", kind), name, steps, asked)
        pairs = list(zip(seconds[kind], seconds["plain"], strict=True))[WARM_UP:]
        low, middle, high = quantiles(one / plain for one, plain in pairs)
        found[f"{name}, {kind}"] = {
            "ratio": {"median": middle, "quarter": low, "three_quarters": high, "pairs": len(pairs)},
            "step_seconds": {name: median(taken[WARM_UP:]) for name, taken in seconds.items()},
            "weights": weights,
            "seconds": seconds,
        }
        print(f"cost, {name}, {kind}: {found[f'{name}, {kind}']['ratio']}", flush=True)
        if weights[kind] != weights["plain"]:
            complaints.append(f"cost, {name}, {kind}: the run ends with other weights than without an environment")
        if (name, kind) == LIMITED and middle > MOST_COST:
            complaints.append(
                f"cost, {name}, {kind}: a step takes {middle - 1:.1%} longer, at most {MOST_COST - 1:.0%}"
            )
    return found, complaints


def in_turns(
    kinds: tuple[str, ...], name: str, steps: int, asked: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Run so many steps of each kind, step by step in alternating order: their seconds, and hashes of the weights."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        runs = dict[str, Contender]()
        for kind in kinds:
            arguments = ("train", kind, name, str(Path(directory) / kind), str(steps))
            runs[kind] = stack.enter_context(contender(*arguments, asked=asked))
            answer_of(runs[kind].read(timeout=TIMEOUT))
        for step in range(steps):
            for kind in kinds[:: 1 if step % 2 else -1]:
                seconds[kind].append(answer_of(runs[kind].ask({}, timeout=TIMEOUT))["seconds"])
        return seconds, {kind: answer_of(one.read(timeout=TIMEOUT))["weights"] for kind, one in runs.items()}


# --- what they share


def contender(*arguments: str, asked: argparse.Namespace) -> Contender:
    """A process of converse.py."""
    return Contender.start(Entry(script="converse.py", arguments=arguments), threads=asked.threads)


def answer_of(answer: dict) -> dict:
    """Return an answer; SystemExit where the contender has ended."""
    if "error" in answer:
        raise SystemExit(f"a contender ended: {answer['error']}")
    return answer


if __name__ == "__main__":
    sys.exit(main())
