"""Draw docs/reward-curve.svg from the runs of `make demo`: held-out accuracy over steps, with 95 % intervals.

pip install 'paceline[docs]'
python scripts/draw_reward_curve.py
"""

from pathlib import Path

import matplotlib.pyplot as plt

from paceline.rundir import RunDir

ROOT = Path(__file__).parents[1]
RUNS = {
    "seed-0": ("seed 0", "#0072b2", "-"),
    "seed-1": ("seed 1", "#56b4e9", "-"),
    "seed-2": ("seed 2", "#009e73", "-"),
    "learning-rate-0": ("control: learning rate 0", "#8a919b", "--"),
    "random-reward": ("control: random reward", "#d55e00", ":"),
}


def main() -> None:
    plt.rcParams["svg.hashsalt"] = "paceline"  # with no date either, the same runs give the same file
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for name, (label, colour, style) in RUNS.items():
        evals = RunDir(ROOT / "runs" / "demo" / name).evals()
        steps = [record["step"] for record in evals]
        low, middle, high = ([100 * record[key] for record in evals] for key in ("ci_low", "accuracy", "ci_high"))
        axes.plot(steps, middle, style, color=colour, label=label, linewidth=1.8)
        axes.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel="step", ylabel="held-out accuracy, %", ylim=(0, 100), xlim=(0, None))
    axes.grid(axis="y", color="#e6e3dd", linewidth=0.8)
    axes.legend(frameon=False, loc="center right")
    figure.savefig(ROOT / "docs" / "reward-curve.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
