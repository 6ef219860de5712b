"""The measured parts of results/performance.md between its markers: python benchmarks/performance.py [DIRECTORY [PAGE]]

Reads the results of machine.py and phases.py in benchmarks/results; predictions are computed. Words outside the markers
are left alone.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from machine import RESULTS
from predictions import all_predictions, table

PAGE = RESULTS / "performance.md"
SHOWN = ("shipped", "30m", "qwen-0.5b", "qwen-0.5b-long", "qwen-1.5b-long")
"""Workloads in the order of the page, those without a result left out."""
NOT_MEASURED = "Not measured yet."


def filled(page: str, parts: dict[str, str]) -> str:
    """The page with new text between `<!-- name -->` and `<!-- end of name -->`.

    Raises:
        ValueError: a part has no place in the page.
    """
    for name, text in parts.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        if not place.search(page):
            raise ValueError(
                f"the page has no place for {name!r}: a line <!-- {name} --> and one <!-- end of {name} -->"
            )
        page = place.sub(lambda found, text=text: f"{found[1]}\n{text}\n\n{found[2]}", page)
    return page


def machines(results: Sequence[dict]) -> str:
    """What every measured machine can do, one after the other."""
    return "\n\n".join(_machine(result) for result in results) or NOT_MEASURED


def _machine(result: dict) -> str:
    where = result["machine"]
    name = where.get("gpu", f"{where['cpu']}, {where['threads']} threads")
    lines = [
        f"**{name}**, torch {where['torch']}, measured on {where['date']}. GFLOP/s of the best repetition:",
        "",
        "| product | rows x inputs x outputs | float32 | bfloat16 |",
        "|---|---|---|---|",
    ]
    for product in dict.fromkeys(one["name"] for one in result["matrix"]):
        rows = [one for one in result["matrix"] if one["name"] == product]
        size = f"{rows[0]['rows']:,} x {rows[0]['inputs']:,} x {rows[0]['outputs']:,}"
        cells = " | ".join(_by_library(rows, dtype) for dtype in ("float32", "bfloat16"))
        lines.append(f"| {product} | {size} | {cells} |")
    lines += ["", "| | " + " | ".join(_size(size) for size in _sizes(result)) + " |"]
    lines.append("|---" * (1 + len(_sizes(result))) + "|")
    for kind in ("read", "copy"):
        rates = (f"{one['rate'] / 1e9:.0f} GB/s" for one in result["bandwidth"] if one["kind"] == kind)
        lines.append(f"| {kind} | {' | '.join(rates)} |")
    told = ", ".join(f"{one['name']} {one['best'] * 1e6:.1f} us" for one in result["calls"])
    return "\n".join([*lines, "", f"One call: {told}."])


def _by_library(rows: Sequence[dict], dtype: str) -> str:
    cells = (f"{one['library']} {one['rate'] / 1e9:,.0f}" for one in rows if one["dtype"] == dtype)
    return ", ".join(cells)


def _sizes(result: dict) -> list[int]:
    return list(dict.fromkeys(one["bytes"] for one in result["bandwidth"]))


def _size(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def phases(results: Sequence[dict]) -> str:
    """Every workload's phases over their floors."""
    return "\n\n".join(_phases(result) for result in results) or NOT_MEASURED


def _phases(result: dict) -> str:
    workload, where = result["workload"], result["machine"]
    rate = result["rates"]["matrix"] / 1e9
    lines = [
        f"**`{result['size']}`**: {result['parameters'] / 1e6:.1f} million weights in {result['dtype']}, "
        f"{workload['prompts']} prompts x {workload['num_generations']} completions of at most "
        f"{workload['max_new_tokens']} tokens. {result['seconds']:.2f} s per step, median of "
        f"{len(result['repetitions'])}; {where.get('gpu', where['cpu'])}, {where['threads']} threads (the step used "
        f"{result['threads_of_the_step']}), {where['date']}. Floors: {rate:,.0f} GFLOP/s.",
        "",
        "| phase | seconds | floor | floor set by | times its floor |",
        "|---|--:|--:|---|--:|",
    ]
    for name, one in result["phases"].items():
        floor, over = (f"{one['floor']:.3g}", f"{one['over']:.1f}x") if one["floor"] else ("none", "")
        lines.append(f"| {name} | {one['seconds']:.3g} | {floor} | {one['limit'] or ''} | {over} |")
    told = (
        f"Tokens forwarded in training per token that exists: {result['forwarded_over_exist']:.3f}; for prompts alone: "
    )
    return "\n".join([*lines, "", f"{told}{result['prompts_forwarded_over_exist']:.3f}."])


def savings(results: Sequence[dict]) -> str:
    """What the layout of the training pass leaves out, counted on the completions of the first measured step."""
    blocks = []
    for result in results:
        rows = result["repetitions"][0]["layouts"]
        last = rows[-1]
        lines = [
            f"**`{result['size']}`**, one forward pass over all completions:",
            "",
            "| layout | tokens | relative to the last row | TFLOP | relative to the last row |",
            "|---|--:|--:|--:|--:|",
        ]
        for one in rows:
            more, work = one["tokens"] / last["tokens"], one["operations"] / last["operations"]
            lines.append(
                f"| {one['name']} | {one['tokens']:,} | {more:.2f}x | {one['operations'] / 1e12:.3g} | {work:.2f}x |"
            )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) or NOT_MEASURED


def main(results: Path = RESULTS, page: Path = PAGE) -> None:
    found = [results / f"{prefix}phases-{name}.json" for prefix in ("", "gpu-") for name in SHOWN]
    steps = [json.loads(path.read_text()) for path in found if path.is_file()]
    measured = [json.loads(path.read_text()) for path in sorted(results.glob("*machine*.json"))[::-1]]
    parts = {
        "machines": machines(measured),
        "phases": phases(steps),
        "savings": savings(steps),
        "predictions": table(all_predictions()),
    }
    page.write_text(filled(page.read_text(), parts))
    print(page)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
