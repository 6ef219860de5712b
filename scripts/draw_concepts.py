"""Draw the pictures of `docs/concepts.md` into `docs/images/`, from the functions that a run computes with.

python scripts/draw_concepts.py
"""

from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path

import torch

from paceline.objective.advantages import advantages
from paceline.objective.policy_loss import clipped_policy_loss

IMAGES = Path(__file__).parents[1] / "docs" / "images"
INK, GREY, BLUE, ORANGE, GREEN = "#222222", "#767676", "#0072b2", "#d55e00", "#00795a"
PALE = {BLUE: "#d9ebf5", ORANGE: "#fae3d4", GREEN: "#d5efe7", GREY: "#ececec"}


def svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """A picture on white, so that it can be read on a dark page too."""
    marker = (
        f'<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="14" role="img"><title>{escape(title)}</title><defs>{marker}</defs>'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def text(x: float, y: float, said: str, *, colour: str = INK, anchor: str = "middle", size: int = 14) -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">{escape(said)}</text>'


def box(x: float, y: float, width: float, height: float, *said: str, colour: str = BLUE) -> str:
    """A box with lines of text in its middle."""
    middle = y + height / 2 + 5 - 9 * (len(said) - 1)
    lines = [text(x + width / 2, middle + 18 * index, line) for index, line in enumerate(said)]
    frame = (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{PALE[colour]}" '
        f'stroke="{colour}"/>'
    )
    return frame + "".join(lines)


def arrow(*points: tuple[float, float]) -> str:
    path = " L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path d="M{path}" fill="none" stroke="{INK}" stroke-width="1.5" marker-end="url(#arrow)"/>'


def line(points: Iterable[tuple[float, float]], colour: str, *, width: float = 2, dashes: str = "none") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    stroke = f'stroke="{colour}" stroke-width="{width:g}" stroke-dasharray="{dashes}"'
    return f'<polyline points="{path}" fill="none" {stroke}/>'


def step() -> str:
    """The flow of a step."""
    stations = (
        ("tasks", "from the data", GREY),
        ("completions", "G of each task", BLUE),
        ("rewards", "by program", BLUE),
        ("advantages", "within the group", BLUE),
        ("loss", "per token", ORANGE),
        ("new weights", "one update", ORANGE),
    )
    parts = []
    for index, (name, said, colour) in enumerate(stations):
        x = 15 + 145 * index
        parts.append(box(x, 50, 120, 60, name, said, colour=colour))
        if index:
            parts.append(arrow((x - 25, 80), (x - 2, 80)))
    parts += [
        arrow((800, 110), (800, 150), (220, 150), (220, 112)),
        text(510, 168, "the next step is sampled from them", colour=GREY),
        text(365, 32, "sampler", colour=BLUE),
        text(727, 32, "trainer", colour=ORANGE),
    ]
    return svg(875, 185, "A step: tasks, completions, rewards, advantages, loss, new weights", parts)


def worth() -> str:
    """Two groups: rewards above, advantages below."""
    groups = ((1.0, 0.0, 0.0, 1.0), (1.0, 1.0, 1.0, 1.0))
    parts = [
        text(20, 75, "reward", anchor="start", colour=GREY),
        text(20, 165, "advantage", anchor="start", colour=GREY),
    ]
    for group, (rewards, worths) in enumerate(zip(groups, advantages(groups, kind="group"), strict=True)):
        left = 130 + 360 * group
        said = "two of four are right" if group == 0 else "all are right: nothing to learn"
        parts.append(text(left + 140, 28, f"a group of 4: {said}"))
        parts.append(line([(left, 160), (left + 280, 160)], GREY, width=1))
        for index, (reward, value) in enumerate(zip(rewards, worths, strict=True)):
            x = left + 70 * index
            parts.append(box(x + 5, 50, 60, 40, f"{reward:g}", colour=GREEN if reward else GREY))
            height = abs(value) * 45
            colour = BLUE if value > 0 else ORANGE
            if value:
                top = 160 - height if value > 0 else 160
                parts.append(f'<rect x="{x + 18}" y="{top:.1f}" width="34" height="{height:.1f}" fill="{colour}"/>')
            y = 160 - height - 6 if value >= 0 else 160 + height + 17
            parts.append(text(x + 35, y, f"{value:+.2f}" if value else "0"))
    return svg(850, 225, "Rewards of two groups of four, and the advantages that they make", parts)


def clip() -> str:
    """The policy's term over the ratio, by the function that a run computes it with."""
    ratios = torch.linspace(0.4, 1.8, 141)
    parts = []
    for side, (worths, name, colour) in enumerate(
        ((1.0, "a good completion, A = 1", BLUE), (-1.0, "a bad one, A = -1", ORANGE))
    ):
        left = 60 + 420 * side
        losses = clipped_policy_loss(ratios, torch.full_like(ratios, worths), clip_eps_low=0.2, clip_eps_high=0.28)
        low, high = (-2.0, 0.0) if worths > 0 else (0.0, 2.0)

        def place(
            ratio: float, loss: float, left: int = left, low: float = low, high: float = high
        ) -> tuple[float, float]:
            return left + (ratio - 0.4) / 1.4 * 340, 60 + (high - loss) / (high - low) * 170

        plain = [place(float(ratio), -float(ratio) * worths) for ratio in ratios]
        held = [place(*map(float, pair)) for pair in zip(ratios, losses, strict=True)]
        bound = 1.28 if worths > 0 else 0.8
        x, _ = place(bound, 0)
        parts += [
            text(left + 170, 30, name),
            line([(left, 60), (left, 230), (left + 340, 230)], GREY, width=1),
            line(plain, GREY, width=1.5, dashes="4 4"),
            line(held, colour, width=3),
            line([(x, 60), (x, 230)], INK, width=1, dashes="2 3"),
            text(x, 250, f"1 {'+ 0.28' if worths > 0 else '- 0.2'}"),
            text(left + 340, 250, "ratio", colour=GREY, anchor="end"),
            text(left - 8, 52, "loss", colour=GREY, size=13),
            text(place(1, 0)[0], 250, "1" if worths < 0 else "", colour=GREY),
        ]
    parts.append(
        text(430, 278, "dashed: without a clip; where the line is level, the token has no gradient", colour=GREY)
    )
    return svg(860, 292, "The clipped surrogate over the ratio, for a positive and for a negative advantage", parts)


def staleness() -> str:
    """Two schedules over time."""
    parts = [text(20, 32, "--max-staleness 0: in turn", anchor="start")]
    for number in range(3):
        x = 20 + 260 * number
        parts.append(box(x, 45, 125, 34, f"sample {number + 1}"))
        parts.append(box(x + 130, 85, 125, 34, f"train {number + 1}", colour=ORANGE))
    parts.append(text(20, 165, "--max-staleness 1: one step ahead", anchor="start"))
    for number in range(5):
        x = 20 + 130 * number
        parts.append(box(x, 178, 125, 34, f"sample {number + 1}"))
        parts.append(box(x + 130, 218, 125, 34, f"train {number + 1}", colour=ORANGE))
    parts.append(
        text(
            20,
            283,
            "step n is sampled from the weights of update n - 1, or of update n - 2",
            anchor="start",
            colour=GREY,
        )
    )
    return svg(820, 298, "Sampling and training in turn, and one step ahead", parts)


def layouts() -> str:
    """Four devices, four ways to lay a model on them."""
    # of each layer, from top to bottom, another quarter of the rows
    slices = [[(0, (4 * layer + part) / 16, 1, 1 / 16) for layer in range(4)] for part in range(4)]
    ways = (
        ("copies", "each a share of the completions", [[(0, 0, 1, 1)]] * 4),
        ("ZeRO", "a share of every weight each", slices),
        ("tensor", "some columns of every matrix each", [[(0.25 * part, 0, 0.25, 1)] for part in range(4)]),
        ("pipeline", "some of the layers each", [[(0, 0.25 * part, 1, 0.25)] for part in range(4)]),
    )
    parts = []
    for way, (name, said, shares) in enumerate(ways):
        left, top = 20 + 430 * (way % 2), 20 + 165 * (way // 2)
        parts += [text(left, top + 12, f"{name}: {said}", anchor="start")]
        for rank, share in enumerate(shares):
            frame = left + 100 * rank
            parts.append(f'<rect x="{frame}" y="{top + 25}" width="84" height="84" fill="white" stroke="{GREY}"/>')
            parts += [
                f'<rect x="{frame + 84 * x:g}" y="{top + 25 + 84 * y:g}" '
                f'width="{84 * width:g}" height="{84 * height:g}" '
                f'fill="{PALE[BLUE]}" stroke="{BLUE}"/>'
                for x, y, width, height in share
            ]
            parts += [
                line([(frame, top + 25 + 21 * layer), (frame + 84, top + 25 + 21 * layer)], GREY, width=0.7)
                for layer in (1, 2, 3)
            ]
            parts.append(text(frame + 42, top + 127, f"rank {rank}", colour=GREY, size=12))
    parts.append(
        text(
            20,
            350,
            "Each square is the model, four layers from top to bottom; blue is what a rank keeps between two steps.",
            anchor="start",
            colour=GREY,
        )
    )
    return svg(850, 365, "Copies, ZeRO, tensor and pipeline axes on four ranks", parts)


PICTURES: Mapping[str, Callable[[], str]] = {
    "step": step,
    "advantages": worth,
    "clip": clip,
    "staleness": staleness,
    "layouts": layouts,
}


def main() -> None:
    """Write every picture."""
    IMAGES.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
