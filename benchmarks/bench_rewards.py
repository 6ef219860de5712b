"""Reward functions: answers compared and programs run per second, by Paceline and the plain way, on one machine.

    python benchmarks/bench_rewards.py [--part answers|programs|all] [--threads 2] [--quick] [--output DIR]

| answers     | what it is                                                                                        |
|-------------|---------------------------------------------------------------------------------------------------|
| paceline    | `math_verdicts` in batches of 256: rules in the calling process, proofs in worker processes        |
| math-verify | `verify(parse(gold), parse(answer))`, one by one in one process, with its own time limits         |

Each repetition is a process of its own with an empty memory, imports and workers ready; the batch is another one each
time, and the same for both. Both may use all cores. Verdicts are compared with those that the pairs deserve.

| programs | what it is                                                                                           |
|----------|------------------------------------------------------------------------------------------------------|
| paceline | `Sandbox.execute`, isolated at the level that `--sandbox auto` takes                                  |
| process  | a fresh `python -I` process for each, its input through a pipe, nothing isolated                      |

Both run as many at a time as there are threads. The outputs must be the same.

Contenders take turns in alternating order. The figure is the median over the repetitions.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from measuring import Contender, Entry, machine, take_turns
from reward_workloads import ANSWERS, Pair, answers, fingerprint
from running import RESULTS, write_result

PACKAGES = ("math-verify", "sympy")
REPETITIONS = 3
TIMEOUT = 300.0
"""Seconds for the batch of one repetition; what does not end by then is reported so."""


def main() -> int:
    """Measure, print, write; 1 where programs gave other outputs or a contender did not end on ordinary work."""
    given = arguments()
    complaints = []
    for part, measure in (("answers", measure_answers), ("programs", measure_programs)):
        if given.part not in (part, "all"):
            continue
        conditions = machine(given.threads, packages=PACKAGES)
        workloads = measure(is_quick=given.quick, threads=given.threads)
        complaints += [f"{name}: {one}" for name, workload in workloads.items() for one in workload["complaints"]]
        if given.output is not None:
            result = {"benchmark": "rewards", "size": part, "quick": given.quick, "machine": conditions}
            print(write_result(given.output, {**result, "workloads": workloads}))
    print("\n".join(complaints) or "every contender did its work")
    return 1 if complaints else 0


def measure_answers(*, is_quick: bool, threads: int) -> dict[str, dict]:
    """Answers per second and verdicts right, for every workload."""
    return {name: _answers(name, is_quick=is_quick, threads=threads) for name in ANSWERS}


def _answers(name: str, *, is_quick: bool, threads: int) -> dict:
    scripts = {"paceline": "answers_paceline.py", "math-verify": "answers_math_verify.py"}
    contenders: dict[str, list[dict]] = {contender: [] for contender in scripts}
    for repetition in range(1, REPETITIONS + 1):
        batch = answers(name, repetition, is_quick=is_quick)
        for contender in list(scripts)[:: 1 if repetition % 2 else -1]:
            if contenders[contender] and "error" in contenders[contender][-1]:
                continue
            given = [name, str(int(is_quick)), str(threads)]
            with Contender.start(Entry(script=scripts[contender], arguments=given), threads=threads) as one:
                one.read(timeout=TIMEOUT)
                answer = one.ask({"repetition": repetition}, timeout=TIMEOUT)
            contenders[contender].append(judged(answer, batch))
            print(f"  {name}, {contender}, repetition {repetition}: {_said(contenders[contender][-1])}", flush=True)
    return compared(name, contenders, distinct=len(set(batch)), count=len(batch))


def judged(answer: Mapping, batch: Sequence[Pair]) -> dict:
    """A repetition's rate and verdicts against those that are deserved; `error` where there are none."""
    if "error" in answer:
        return {"error": answer["error"]}
    if answer["batch"] != fingerprint(batch):
        return {"error": "judged another batch: tests/support/math_cases.py changed meanwhile"}
    pairs = [(bool(verdict), deserved) for verdict, (_, _, deserved) in zip(answer["verdicts"], batch, strict=True)]
    return {
        "seconds": answer["seconds"],
        "answers": len(pairs),
        "right": sum(verdict == deserved for verdict, deserved in pairs),
        "wrongly_right": sum(verdict and not deserved for verdict, deserved in pairs),
        "verdicts": answer["verdicts"],
    }


def compared(name: str, contenders: Mapping[str, list[dict]], *, distinct: int, count: int) -> dict:
    """The figures of each contender, Paceline's ratio, and on how many answers the verdicts agree."""
    figures = {contender: _figures(found) for contender, found in contenders.items()}
    mine, peer = (figures[contender] for contender in ("paceline", "math-verify"))
    both = zip(contenders["paceline"], contenders["math-verify"], strict=False)
    same = [one == other for m, p in both for one, other in _verdicts(m, p)]
    for found in contenders.values():
        for repetition in found:
            repetition.pop("verdicts", None)
    failed = [f"{contender} ended: {one['error']}" for contender, one in figures.items() if "error" in one]
    # What a library without limits on work does with hostile answers is a result, not a fault of the measurement.
    complaints = [one for one in failed if name != "hostile" or one.startswith("paceline")]
    has_ratio = "rate" in mine and "rate" in peer
    return {
        "answers": count,
        "distinct": distinct,
        "contenders": figures,
        "paceline_faster_by": mine["rate"] / peer["rate"] if has_ratio else None,
        "agreement": sum(same) / len(same) if same else None,
        "complaints": complaints,
    }


def _verdicts(mine: Mapping, peer: Mapping) -> list[tuple[int, int]]:
    if "error" in mine or "error" in peer:
        return []
    return list(zip(mine["verdicts"], peer["verdicts"], strict=True))


def _figures(found: Sequence[dict]) -> dict:
    done = [one for one in found if "error" not in one]
    figures: dict = {"repetitions": list(found)}
    if done:
        total = sum(one["answers"] for one in done)
        figures["rate"] = median(one["answers"] / one["seconds"] for one in done)
        figures["right"] = sum(one["right"] for one in done) / total
        figures["wrongly_right"] = sum(one["wrongly_right"] for one in done) / total
    errors = [one["error"] for one in found if "error" in one]
    return {**figures, "error": errors[0]} if errors else figures


def measure_programs(*, is_quick: bool, threads: int) -> dict[str, dict]:
    """Programs per second."""
    given = [str(int(is_quick)), str(threads)]
    scripts = {"paceline": "programs_paceline.py", "process": "programs_process.py"}
    contenders = {name: Entry(script=script, arguments=given) for name, script in scripts.items()}
    found = take_turns(contenders, repetitions=REPETITIONS, threads=threads, timeout=TIMEOUT)
    complaints = [f"{name} ended: {one['error']}" for name, one in found.items() if "error" in one]
    if not complaints:
        pairs = zip(*(one["repetitions"] for one in found.values()), strict=True)
        differing = sum(
            mine != peer for one, other in pairs for mine, peer in zip(one["outputs"], other["outputs"], strict=True)
        )
        complaints += [f"{differing} programs gave other outputs"] if differing else []
        for one in found.values():
            one["rate"] = median(repetition["programs"] / repetition["seconds"] for repetition in one["repetitions"])
    for one in found.values():
        for repetition in one.get("repetitions", []):
            repetition.pop("outputs", None)
    relative = None if complaints else found["paceline"]["rate"] / found["process"]["rate"]
    print(f"  programs: Paceline's rate is {relative and round(relative, 2)} of the unisolated one")
    return {"programs": {"contenders": found, "paceline_faster_by": relative, "complaints": complaints}}


def _said(repetition: Mapping) -> str:
    if "error" in repetition:
        return repetition["error"]
    rate, right = repetition["answers"] / repetition["seconds"], repetition["right"] / repetition["answers"]
    return f"{rate:,.0f} answers/s, {right:.1%} of the verdicts right"


def arguments() -> argparse.Namespace:
    """Part, threads, quick, output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["answers", "programs", "all"], default="all")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="programs at a time (default: one per core)"
    )
    parser.add_argument("--quick", action="store_true", help="a few answers; writes nothing unless --output is given")
    parser.add_argument("--output", type=Path, help="directory of the JSON files (default benchmarks/results)")
    given = parser.parse_args()
    if given.output is None and not given.quick:
        given.output = RESULTS
    return given


if __name__ == "__main__":
    raise SystemExit(main())
