"""Charts of a run: every metric of its steps and evaluations as a `Chart`."""

from collections.abc import Sequence

from paceline.metrics.definitions import METRICS, Record
from paceline.reports.format import count
from paceline.reports.page.figures import Band, Chart, ChartLine
from paceline.reports.page.outcome import evaluations, set_names
from paceline.reports.page.reading import RunRecord, value_at
from paceline.reports.page.series import Series, bin_size, has, metric, scaled, smoothed, smoothing_window

STEP_PARTS = ("generate", "reward", "update", "other")
"""What a step's clock tells apart, in the palette's order."""


def accuracy_chart(run: RunRecord) -> Chart:
    """Held-out accuracy over steps, one line and one interval band per set."""
    names = set_names(run)
    lines, bands = [], []
    for colour, name in enumerate(names, start=1):
        records = evaluations(run, name)
        lines.append(ChartLine(label=name, series=_of_evals(records, "accuracy"), colour=colour))
        low, high = (_of_evals(records, key) for key in ("ci_low", "ci_high"))
        bands.append(Band(low=low, high=high, colour=colour, of=name))
    return Chart(
        title="Accuracy on held-out tasks",
        unit="share",
        lines=tuple(lines),
        bands=tuple(bands),
        note="The band is the 95 % confidence interval of each measurement.",
    )


def reward_chart(run: RunRecord) -> Chart:
    """Mean reward of training completions, raw and smoothed."""
    lines, bands = _traced(run, "reward_mean")
    return Chart(title="Training reward", unit="mean per completion", lines=lines, bands=bands)


def reward_function_charts(run: RunRecord) -> list[Chart]:
    """One chart per reward function, where there are several."""
    names = reward_functions(run.metrics)
    if len(names) < 2:
        return []
    traced = [_traced(run, "rewards", name, "mean", colour=colour) for colour, name in enumerate(names, start=1)]
    return [
        Chart(title=f"Reward: {name}", unit="mean per completion", lines=lines, bands=bands)
        for name, (lines, bands) in zip(names, traced, strict=True)
    ]


def reward_functions(metrics: Sequence[Record]) -> list[str]:
    """Names of the reward functions, in the configured order."""
    rewards = [record["rewards"] for record in metrics if "rewards" in record and isinstance(record["rewards"], dict)]
    return list(dict.fromkeys(name for one in rewards for name in one))


def length_charts(run: RunRecord) -> list[Chart]:
    """How long completions are and how many hit the limit."""
    mean = metric(run.metrics, "completion_length_mean")
    longest = metric(run.metrics, "completion_length_max", reduce=max)
    return [
        Chart(
            title="Completion length",
            unit="tokens",
            lines=(ChartLine(label="mean", series=mean), ChartLine(label="longest", series=longest, colour=2)),
            from_zero=True,
        ),
        _single(run, "truncated_fraction", "Truncated completions", note=METRICS["truncated_fraction"].meaning),
    ]


def optimisation_charts(run: RunRecord) -> list[Chart]:
    """The small multiples that show whether learning is healthy; KL only where a reference is used."""
    charts = [
        _single(run, "entropy", "Entropy", colour=4),
        _single(run, "grad_norm", "Gradient norm", colour=2),
        _single(run, "loss", "Loss", colour=3),
        _single(run, "kl", "KL to the reference", colour=5),
        _clip_chart(run),
        _mismatch_chart(run),
        _learning_rate_chart(run),
    ]
    return [chart for chart in charts if any(not line.series.empty for line in chart.lines)]


def signal_chart(run: RunRecord) -> Chart:
    """Groups of each step that taught nothing, by reason."""
    prompts = metric(run.metrics, "prompts")
    layers = (
        ("groups_zero_deviation", "all rewards equal", 6),
        ("groups_no_reward", "no reward", 2),
        ("groups_filtered", "outside the filter range", 4),
    )
    return Chart(
        title="Groups without signal",
        unit="share",
        lines=tuple(
            ChartLine(label=label, series=scaled(metric(run.metrics, key), prompts), colour=colour)
            for key, label, colour in layers
        ),
        stacked=True,
        note="Share of a step's prompts whose completions give no policy gradient: too easy, too hard, or not graded.",
    )


def time_chart(run: RunRecord) -> Chart:
    """Where the seconds of each step went."""
    parts = [(name, metric(run.metrics, "clock", name)) for name in STEP_PARTS]
    return Chart(
        title="Time of each step",
        unit="seconds",
        lines=tuple(
            ChartLine(label=name, series=series, colour=colour)
            for colour, (name, series) in enumerate(parts, start=1)
            if any(series.values)
        ),
        stacked=True,
    )


def speed_chart(run: RunRecord) -> Chart:
    """Tokens sampled per second of generation."""
    return Chart(
        title="Generation speed",
        unit="tokens per second",
        lines=(ChartLine(label="each step", series=metric(run.metrics, "clock", "tokens_per_second")),),
        from_zero=True,
    )


def _clip_chart(run: RunRecord) -> Chart:
    return Chart(
        title="Clipped tokens",
        unit="share",
        lines=tuple(
            ChartLine(label=label, series=metric(run.metrics, key), colour=colour)
            for key, label, colour in (
                ("clip_low_fraction", "at lower bound", 1),
                ("clip_high_fraction", "at upper bound", 2),
            )
        ),
        from_zero=True,
    )


def _learning_rate_chart(run: RunRecord) -> Chart:
    line = ChartLine(label="each step", series=metric(run.metrics, "learning_rate"), colour=3)
    return Chart(title="Learning rate", unit="", lines=(line,), from_zero=True)


def _mismatch_chart(run: RunRecord) -> Chart:
    mean = metric(run.metrics, "logprob_mismatch_mean")
    longest = metric(run.metrics, "logprob_mismatch_max", reduce=max)
    zeros = sum(value_at(record, "logprob_mismatch_mean") == 0 for record in run.metrics)
    exact = f" Exactly zero, and not drawn, in {count(zeros, 'step')}." if zeros else ""
    return Chart(
        title="Engine against trainer",
        unit="nats, log scale",
        lines=(ChartLine(label="mean", series=mean), ChartLine(label="largest", series=longest, colour=2)),
        note=f"Difference of the two logprobs of each sampled token.{exact}",
        log=True,
    )


def _single(run: RunRecord, key: str, title: str, *, colour: int = 1, note: str = "") -> Chart:
    lines, bands = _traced(run, key, colour=colour)
    return Chart(
        title=title,
        unit=METRICS[key].unit,
        lines=lines,
        bands=bands,
        from_zero=not has_negative(run.metrics, key),
        note=note[:1].upper() + note[1:] + "." if note else "",
    )


def has_negative(metrics: Sequence[Record], key: str) -> bool:
    """Return True if the metric is ever below zero, so that its axis cannot begin there."""
    return has(metrics, key) and min(value for r in metrics if (value := value_at(r, key)) is not None) < 0


def _traced(run: RunRecord, *keys: str, colour: int = 1) -> tuple[tuple[ChartLine, ...], tuple[Band, ...]]:
    """The metric's lines; where several steps share a point, also how far apart the least and the greatest are."""
    lines = _raw_and_smoothed(metric(run.metrics, *keys), colour)
    if bin_size(len(run.metrics)) == 1:
        return lines, ()
    low, high = (metric(run.metrics, *keys, reduce=end) for end in (min, max))
    return lines, (Band(low=low, high=high, colour=colour, of=lines[0].label),)


def _raw_and_smoothed(raw: Series, colour: int = 1) -> tuple[ChartLine, ...]:
    window = smoothing_window(len(raw.steps))
    if window == 1:
        return (ChartLine(label="each step", series=raw, colour=colour),)
    return (
        ChartLine(label="each step", series=raw, colour=colour, faint=True),
        ChartLine(label=f"{window}-point mean", series=smoothed(raw, window), colour=colour),
    )


def _of_evals(records: Sequence[Record], key: str) -> Series:
    steps = tuple(float(record["step"]) for record in records)
    return Series(steps=steps, values=tuple(value_at(record, key) for record in records))
