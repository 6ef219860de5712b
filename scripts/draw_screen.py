"""Draw the terminal's screen of a run for the documents, from the run's own records, as it was in the middle of a step.

make demo
python scripts/draw_screen.py runs/demo/seed-0 --step 45
"""

import argparse
import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from paceline.checkpoints.run_directory import RunDir
from paceline.reports.console import RunDisplay

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "images" / "live.svg"
WITHOUT_FONTS = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""rich's own picture without its addresses of fonts: it is looked at without a network."""
MEMORY = 515_000_000
"""Bytes that the embedded model's run has in use, as its screen says: no record has them."""
GENERATED = 0.6
"""Of the step's tokens, at the moment of the picture."""
ENDED = 0.35
"""Of its completions by then."""


def replayed(run: RunDir, display: RunDisplay, clock: list[float], *, step: int) -> Mapping[str, Any]:
    """Tell the display what the run told it up to the middle of the step; the step's record."""
    records, evals = run.metrics(), run.evals()
    for one in evals[:1]:
        display.evaluation(one)
    for record in records[: step - 1]:
        clock[0] += record["clock"]["total"]
        display.step(record)
        for one in evals[1:]:
            if one["step"] == record["step"]:
                clock[0] += one["clock"]["seconds"]
                display.evaluation(one)
    return records[step - 1]


def draw(path: Path, *, step: int) -> str:
    """The picture as SVG."""
    run, clock = RunDir(path), [0.0]
    console = Console(record=True, force_terminal=True, file=StringIO(), width=80, height=24)
    display = RunDisplay(
        console,
        name=f"runs/{path.parent.name}/{path.name}",
        total_steps=len(run.metrics()),
        done=0,
        memory=lambda: MEMORY,
        clock=lambda: clock[0],
    )
    now = replayed(run, display, clock, step=step)
    display.progress.begin(f"step {step}")
    display.progress.phase("generate", 0, now["rollouts"])
    clock[0] += GENERATED * now["clock"]["generate"]
    tokens = round(GENERATED * now["tokens_generated"])
    display.progress.phase("generate", round(ENDED * now["rollouts"]), now["rollouts"], tokens=tokens)
    console.print(display.frame())
    return console.export_svg(title="paceline train", code_format=WITHOUT_FONTS, unique_id="live")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--step", type=int, default=45)
    given = parser.parse_args()
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(draw(given.run, step=given.step))


if __name__ == "__main__":
    main()
