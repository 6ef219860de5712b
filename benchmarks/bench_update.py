"""The update alone: seconds, MFU and peak memory of one optimiser step, by what is done to save memory.

    python benchmarks/bench_update.py [--size NAME]... [--device cpu|cuda] [--threads 2] [--repetitions 2]
                                      [--timeout 90] [--quick] [--output DIR]

A row is a process of its own: a model of a known shape with random weights, 4 groups of 16 completions whose 65,472
tokens fill micro-batches of 16,384 without a remainder, one warm-up, the repetitions. `update_work.py` has the rows.
The result file is written after each row, so that a run which is broken off keeps what it has.

| figure  | what it is                                                                                            |
|---------|-------------------------------------------------------------------------------------------------------|
| seconds | of the whole optimiser step, median                                                                   |
| MFU     | operations that the step needs over seconds times the data sheet's rate (docs/performance.md)          |
| peak    | on a GPU the most that torch had allocated; on a CPU the process's largest resident size               |
| planned | what `paceline plan` counts for the same update, without the libraries' own memory                     |
"""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import torch
from floors import data_sheet
from machine import described
from measuring import Contender, Entry
from running import RESULTS, write_result
from update_work import QUICK, ROWS, Row

from paceline.training.plan.shape import CPU, Device, gpu_of

LOADING = 120.0
"""Seconds that a row's process may take to load."""


def measured(row: Row, device: str, *, threads: int, repetitions: int, timeout: float) -> dict[str, object]:
    """A warm-up and the repetitions in a process; `error` where it ended early."""
    arguments = [json.dumps(asdict(row)), device]
    with Contender.start(Entry(script="update_paceline.py", arguments=arguments), threads=threads) as one:
        start = one.read(timeout=LOADING)
        answers = [start]
        for repetition in range(repetitions + 1):
            if "error" not in answers[-1]:
                answers.append(one.ask({"repetition": repetition}, timeout=timeout))
    if "error" in answers[-1]:
        return {"error": answers[-1]["error"]}
    return {"start": start, "repetitions": answers[2:]}


def figures(row: Row, answer: dict, on: Device) -> dict[str, object]:
    """What the page shows of a row."""
    told = {**asdict(row), "name": row.name, "operations": row.operations, "planned_mib": row.planned(on) / 2**20}
    if "error" in answer:
        return {**told, "error": answer["error"]}
    steps = answer["repetitions"]
    seconds = median(step["seconds"] for step in steps)
    peak, sheet = max(step.get("device_peak_mib", step["peak_mib"]) for step in steps), data_sheet(on.name)
    return {
        **told,
        **answer,
        "seconds": seconds,
        "mfu": None if sheet is None else row.operations / seconds / sheet.matrix,
        "peak_mib": peak,
    }


def line(found: dict) -> str:
    """A row as text."""
    if "error" in found:
        return f"{found['name']}: ended: {found['error']}"
    mfu = "" if found["mfu"] is None else f", MFU {found['mfu']:.1%}"
    return (
        f"{found['name']}: {found['seconds']:.3f} s{mfu}, peak {found['peak_mib']:,.0f} MiB, "
        f"planned {found['planned_mib']:,.0f} MiB"
    )


def main() -> int:
    """Measure, print, write; the exit status: 1 where a row ended early."""
    asked = _arguments()
    on = CPU
    if asked.device == "cuda":
        on = gpu_of(torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory >> 20)
    where = described(asked.device, asked.threads)
    failed = False
    for size in asked.size:
        rows = list[dict]()
        for row in ROWS[size]:
            tried = replace(row, **QUICK) if asked.quick else row
            answer = measured(
                tried,
                asked.device,
                threads=asked.threads,
                repetitions=1 if asked.quick else asked.repetitions,
                timeout=asked.timeout,
            )
            rows.append(figures(tried, answer, on))
            failed |= "error" in rows[-1]
            print(line(rows[-1]), flush=True)
            if asked.output is not None:
                result = {"benchmark": "update", "size": size, "quick": asked.quick, "machine": where, "rows": rows}
                write_result(asked.output, result, prefix="gpu-" if asked.device == "cuda" else "")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(ROWS), action="append", help="may be given again")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=2, help="after the warm-up (default 2)")
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds that one step may take (default 90)")
    parser.add_argument("--quick", action="store_true", help="a few tokens; writes nothing unless --output is given")
    parser.add_argument("--output", type=Path, help="directory of the JSON files (default benchmarks/results)")
    asked = parser.parse_args()
    if asked.size is None:
        asked.size = ["30m"] if asked.device == "cpu" else ["qwen-1.5b", "qwen-7b", "qwen-0.5b"]
    if asked.output is None and not asked.quick:
        asked.output = RESULTS
    return asked


if __name__ == "__main__":
    raise SystemExit(main())
