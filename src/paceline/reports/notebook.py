"""A run as a few lines of HTML, for the output of a notebook's cell."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from paceline.checkpoints.run_directory import RunDir

WIDTH, HEIGHT = 360, 80
"""Size of the curve, in pixels."""


def run_html(path: Path) -> str:
    """Return the directory, a curve of the reward, and the first and last accuracy of every held-out set."""
    run = RunDir(path)
    rewards = [float(one["reward_mean"]) for one in run.metrics() if one["reward_mean"] is not None]
    lines = [f"<b>{escape(str(path))}</b>"]
    if len(rewards) > 1:
        lines.append(f"reward, {rewards[0]:.3g} to {rewards[-1]:.3g} in {len(rewards)} steps<br>{_curve(rewards)}")
    sets: dict[str, list[float]] = {}
    for one in run.evals():
        if "accuracy" in one:
            sets.setdefault(str(one["set"]), []).append(float(one["accuracy"]))
    lines += [
        f"{escape(name)}: {100 * seen[0]:.1f} % before, {100 * seen[-1]:.1f} % now" for name, seen in sets.items()
    ]
    return "<div>" + "<br>".join(lines) + "</div>"


def _curve(values: Sequence[float]) -> str:
    """Return values over their positions as a line of SVG, from the lowest to the highest."""
    low, span = min(values), (max(values) - min(values)) or 1.0
    step = WIDTH / (len(values) - 1)
    points = " ".join(f"{at * step:.1f},{HEIGHT * (1 - (value - low) / span):.1f}" for at, value in enumerate(values))
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 -2 {WIDTH} {HEIGHT + 4}" role="img" aria-label="reward">'
        f'<polyline points="{points}" fill="none" stroke="#4051b5" stroke-width="1.5"/></svg>'
    )
