"""Draw the curves of the documents: held-out accuracy over steps, tokens or seconds, of runs and of a benchmark.

pip install matplotlib
make demo demo-agent demo-vision real studies real-studies
python scripts/draw_curves.py
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
from real_studies import SEEDS, STUDIES, directory

from paceline.checkpoints.run_directory import RunDir

ROOT = Path(__file__).parents[1]
LEARNING = ROOT / "benchmarks" / "results" / "learning-smollm2-135m.json"
BLUES, ORANGES = ("#0072b2", "#56b4e9", "#4b3f9e"), ("#d55e00", "#e69f00", "#a63603")
GREENS = ("#009e73", "#66a61e", "#1b5e20")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    run: str
    """Below `runs/`."""
    label: str
    colour: str
    style: str = "-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    lines: tuple[Line, ...]
    axis: str
    place: Callable[[RunDir], Mapping[int, float]]
    """From step to the place on the horizontal axis."""


def steps(run: RunDir) -> dict[int, float]:
    return {record["step"]: record["step"] for record in run.evals()}


def million_tokens(run: RunDir) -> dict[int, float]:
    generated = accumulate(record["tokens_generated"] for record in run.metrics())
    return {0: 0.0, **{step: tokens / 1e6 for step, tokens in enumerate(generated, start=1)}}


def seeds(name: str, label: str, colours: tuple[str, ...], style: str = "-") -> tuple[Line, ...]:
    return tuple(
        Line(run=f"studies/{name}-{seed}", label=f"{label}, seed {seed}", colour=colour, style=style)
        for seed, colour in enumerate(colours)
    )


def demo(directory: str, random_reward: str) -> Figure:
    return Figure(
        lines=(
            Line(run=f"{directory}/seed-0", label="seed 0", colour="#0072b2"),
            Line(run=f"{directory}/seed-1", label="seed 1", colour="#56b4e9"),
            Line(run=f"{directory}/seed-2", label="seed 2", colour="#009e73"),
            Line(run=f"{directory}/learning-rate-0", label="control: learning rate 0", colour="#8a919b", style="--"),
            Line(run=f"{directory}/random-reward", label=f"control: {random_reward}", colour="#d55e00", style=":"),
        ),
        axis="step",
        place=steps,
    )


FIGURES = {
    "reward-curve": demo("demo", "random reward, 5e-6"),
    "agent-curve": demo("demo-agent", "random reward"),
    "vision-curve": demo("demo-vision", "random reward, 5e-6"),
    "real-curve": demo("real", "random reward"),
    "guesser-curve": Figure(
        lines=(Line(run="guesser", label="guesser.py", colour="#0072b2"),), axis="step", place=steps
    ),
    "adapter-curve": Figure(
        lines=(*seeds("full", "all weights, 1e-4", BLUES), *seeds("lora", "adapter of rank 1, 1e-3", ORANGES, "--")),
        axis="step",
        place=steps,
    ),
    "dapo-curve": Figure(
        lines=(
            *seeds("grpo", "grpo", BLUES),
            *seeds("dapo", "dapo", ORANGES, "--"),
            *seeds("dapo0", "dapo, max_refills 0", GREENS, ":"),
        ),
        axis="million sampled tokens",
        place=million_tokens,
    ),
    "programs-curve": Figure(
        lines=(
            *seeds("programs", "code", BLUES),
            *seeds("programs-random", "control: random reward", ORANGES, ":"),
        ),
        axis="step",
        place=steps,
    ),
}


def draw(name: str, figure: Figure) -> None:
    canvas, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for line in figure.lines:
        run = RunDir(ROOT / "runs" / line.run)
        places = figure.place(run)
        across = [places[record["step"]] for record in run.evals()]
        low, middle, high = ([100 * record[key] for record in run.evals()] for key in ("ci_low", "accuracy", "ci_high"))
        axes.plot(across, middle, line.style, color=line.colour, label=line.label, linewidth=1.8)
        axes.fill_between(across, low, high, color=line.colour, alpha=0.12, linewidth=0)
    finish(axes, figure.axis)
    axes.legend(frameon=False, loc="lower right" if "studies" in figure.lines[0].run else "center right")
    canvas.savefig(ROOT / "docs" / f"{name}.svg", metadata={"Date": None})


def finish(axes: plt.Axes, across: str) -> None:
    """What the axes of all figures have alike."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel=across, ylabel="held-out accuracy, %", ylim=(0, 100), xlim=(0, None))
    axes.grid(axis="y", color="#e6e3dd", linewidth=0.8)


def draw_learning(result: Mapping[str, Any]) -> None:
    """Both trainers' accuracy over time and over tokens: the mean of the seeds, and from the lowest to the highest."""
    canvas, panels = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
    panel_of = {"minutes of training": ("seconds", 60), "thousand sampled tokens": ("tokens", 1000)}
    for axes, (across, (key, unit)) in zip(panels, panel_of.items(), strict=True):
        for library, label, colour in (("paceline", "Paceline", "#0072b2"), ("trl", "TRL", "#d55e00")):
            runs = [
                [one for one in run["steps"] if one["right"] is not None]
                for run in result["runs"]
                if run["library"] == library
            ]
            points = list(zip(*runs, strict=True))
            right = [[100 * one["right"] / result["settings"]["held_out"] for one in point] for point in points]
            places = [mean(one[key] for one in point) / unit for point in points]
            axes.plot(places, list(map(mean, right)), "o-", color=colour, label=label, linewidth=1.8, markersize=4)
            axes.fill_between(
                places, list(map(min, right)), list(map(max, right)), color=colour, alpha=0.15, linewidth=0
            )
        finish(axes, across)
    panels[0].legend(frameon=False, loc="lower right")
    canvas.savefig(ROOT / "docs" / "learning-curve.svg", metadata={"Date": None})


def draw_studies() -> None:
    """The arms of the studies on the real model, one below the other: accuracies with intervals, and the mean."""
    made = [
        (study, arms)
        for study, arms in STUDIES.items()
        if all((directory(one, seed) / "summary.json").is_file() for one in arms.values() for seed in SEEDS)
    ]
    if missing := STUDIES.keys() - {study for study, _ in made}:
        print(f"real-studies without {', '.join(sorted(missing))}: their runs are not all there")
    if not made:
        return
    rows = [(study, arm, options) for study, arms in made for arm, options in arms.items()]
    canvas, axes = plt.subplots(figsize=(8, 0.36 * len(rows) + 0.8), layout="constrained")
    for row, (study, _, options) in enumerate(rows):
        lasts = [RunDir(directory(options, seed)).evals()[-1] for seed in SEEDS]
        for seed, last in zip(SEEDS, lasts, strict=True):
            place, colour = row + 0.2 * (seed - 1), BLUES[seed]
            axes.plot([100 * last["ci_low"], 100 * last["ci_high"]], [place, place], color=colour, linewidth=1.2)
            axes.plot(100 * last["accuracy"], place, "o", color=colour, markersize=4, label=f"seed {seed}" * (not row))
        middle = 100 * mean(last["accuracy"] for last in lasts)
        axes.plot([middle, middle], [row - 0.36, row + 0.36], color="black", linewidth=1.6, label="mean" * (not row))
        if row and study != rows[row - 1][0]:
            axes.axhline(row - 0.5, color="#c9c4ba", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{study}: {arm}" for study, arm, _ in rows])
    axes.set(xlabel="held-out accuracy after training, %", xlim=(0, 100), ylim=(len(rows) - 0.5, -0.5))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#e6e3dd", linewidth=0.8)
    axes.legend(frameon=False, loc="lower right")
    canvas.savefig(ROOT / "docs" / "real-studies.svg", metadata={"Date": None})


def main() -> None:
    plt.rcParams["svg.hashsalt"] = "paceline"  # with no date either, the same runs give the same file
    for name, figure in FIGURES.items():
        if all((ROOT / "runs" / line.run).is_dir() for line in figure.lines):
            draw(name, figure)
        else:
            print(f"{name}: its runs are not all there")
    draw_learning(json.loads(LEARNING.read_text()))
    draw_studies()


if __name__ == "__main__":
    main()
