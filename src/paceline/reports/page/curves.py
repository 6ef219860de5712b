"""Sections of the page with charts, from a run's steps and evaluations to HTML."""

from collections.abc import Iterable
from html import escape

from paceline.metrics.definitions import METRICS
from paceline.reports.format import count, duration, percent
from paceline.reports.page.figures import Band, Chart, ChartLine, figure
from paceline.reports.page.outcome import evaluations, set_names
from paceline.reports.page.reading import (
    PARTS,
    RunRecord,
    Series,
    bin_size,
    metric,
    scaled,
    smoothed,
    time_split,
    value_at,
)

HERO_SIZES = ((1040, 300), (340, 210))
_HALF_SIZES = ((508, 230), (340, 190))


def metric_chart(
    run: RunRecord, *keys: str, title: str, unit: str, colour: int = 1, from_zero: bool = False, note: str = ""
) -> Chart:
    """The number at `keys` of each step, raw and smoothed over about a tenth of the line.

    Where several steps share a point, a band shows how far apart the least and the greatest are. The axis begins at
    zero if `from_zero` is given and no number is below.
    """
    raw = metric(run.metrics, *keys)
    points = len(raw.steps)
    window = 1 if points < 10 else max(3, points // 10) | 1
    lines = [ChartLine(label="each step", series=raw, colour=colour, faint=window > 1)]
    if window > 1:
        lines.append(ChartLine(label=f"{window}-point mean", series=smoothed(raw, window), colour=colour))
    bands: tuple[Band, ...] = ()
    if bin_size(len(run.metrics)) > 1:
        low, high = (metric(run.metrics, *keys, reduce=end) for end in (min, max))
        bands = (Band(low=low, high=high, colour=colour, of="each step"),)
    from_zero = from_zero and all((value_at(record, *keys) or 0.0) >= 0 for record in run.metrics)
    return Chart(title=title, unit=unit, lines=tuple(lines), bands=bands, from_zero=from_zero, note=note)


def learning(run: RunRecord) -> str:
    """Held-out accuracy and training reward over steps."""
    shown = ""
    # One measurement is in the headline already; a chart begins with two.
    if len({record["step"] for record in run.evals}) > 1:
        shown += figure(_accuracy_chart(run), HERO_SIZES)
    unit = "mean per completion"
    if run.metrics:
        shown += figure(metric_chart(run, "reward_mean", title="Training reward", unit=unit), HERO_SIZES)
    else:
        shown += '<p class="note">No step has finished yet.</p>'
    names = run.reward_functions
    if len(names) == 1:
        shown += f'<p class="note">One reward function: {escape(names[0])}.</p>'
    elif names:
        charts = [
            metric_chart(run, "rewards", name, "mean", title=f"Reward: {name}", unit=unit, colour=colour)
            for colour, name in enumerate(names, start=1)
        ]
        # Two or four charts look settled in two columns, all other numbers in three.
        if len(charts) in (2, 4):
            shown += f'<div class="grid halves">{"".join(figure(chart, _HALF_SIZES) for chart in charts)}</div>'
        else:
            shown += _grid(charts)
    size = bin_size(len(run.metrics))
    if size > 1:
        means = f"Each point of a line stands for {size} steps: their mean, in a band from the least to the greatest."
        shown += f'<p class="note">{means}</p>'
    return shown


def _accuracy_chart(run: RunRecord) -> Chart:
    lines, bands = [], []
    for colour, name in enumerate(set_names(run), start=1):
        records = evaluations(run, name)
        steps = tuple(float(record["step"]) for record in records)
        accuracy, low, high = (
            Series(steps=steps, values=tuple(value_at(record, key) for record in records))
            for key in ("accuracy", "ci_low", "ci_high")
        )
        lines.append(ChartLine(label=name, series=accuracy, colour=colour))
        bands.append(Band(low=low, high=high, colour=colour, of=name))
    return Chart(
        title="Accuracy on held-out tasks",
        unit="share",
        lines=tuple(lines),
        bands=tuple(bands),
        note="The band is the 95 % confidence interval of each measurement.",
    )


def lengths_and_signal(run: RunRecord) -> str:
    """Lengths of completions, the share cut at the limit, and groups without signal by reason."""
    if not run.metrics:
        return ""
    mean = metric(run.metrics, "completion_length_mean")
    longest = metric(run.metrics, "completion_length_max", reduce=max)
    lengths = (ChartLine(label="mean", series=mean), ChartLine(label="longest", series=longest, colour=2))
    cut, prompts = METRICS["truncated_fraction"], metric(run.metrics, "prompts")
    note = f"{cut.meaning[0].upper()}{cut.meaning[1:]}."
    layers = (
        ("groups_zero_deviation", "all rewards equal", 6),
        ("groups_no_reward", "no reward", 2),
        ("groups_filtered", "outside the filter range", 4),
    )
    charts = (
        Chart(title="Completion length", unit="tokens", lines=lengths, from_zero=True),
        metric_chart(
            run, "truncated_fraction", title="Truncated completions", unit=cut.unit, from_zero=True, note=note
        ),
        Chart(
            title="Groups without signal",
            unit="share",
            lines=tuple(
                ChartLine(label=label, series=scaled(metric(run.metrics, key), prompts), colour=colour)
                for key, label, colour in layers
            ),
            stacked=True,
            note="Share of a step's prompts whose completions give no policy gradient: too easy, too hard, or not "
            "graded.",
        ),
    )
    return _grid(charts)


def conversations(run: RunRecord) -> str:
    """Turns of episodes, tool calls, tokens read and seconds of environments; empty without conversations."""
    if not any("turns_mean" in record for record in run.metrics):
        return ""
    mean, most = metric(run.metrics, "turns_mean"), metric(run.metrics, "turns_max", reduce=max)
    turns = (ChartLine(label="mean", series=mean), ChartLine(label="most", series=most, colour=2))
    calls = (
        ChartLine(label="tool calls", series=metric(run.metrics, "tool_calls")),
        ChartLine(label="calls that could not be read", series=metric(run.metrics, "malformed_calls"), colour=2),
    )
    charts = [Chart(title="Turns of an episode", unit="turns", lines=turns, from_zero=True)]
    if any(record["tool_calls"] or record["malformed_calls"] for record in run.metrics if "turns_mean" in record):
        charts.append(Chart(title="Tool calls of a step", unit="calls", lines=calls, from_zero=True))
    charts += [
        metric_chart(run, key, title=title, unit=METRICS[key].unit, colour=colour, from_zero=True)
        for key, title, colour in (
            ("observed_tokens", "Tokens read from environments", 4),
            ("environment_seconds", "Seconds of environments", 3),
        )
    ]
    by_turn = [
        ChartLine(label=f"turn {turn}", series=metric(run.metrics, "logprob_mismatch_by_turn", turn), colour=colour)
        for colour, turn in enumerate(("1", "2", "3", "8+"), start=1)
    ]
    drawn = tuple(line for line in by_turn if not line.series.empty)
    if drawn:
        charts.append(Chart(title="Engine against trainer, by turn", unit="nats, log scale", lines=drawn, log=True))
    return _grid(charts)


def optimisation(run: RunRecord) -> str:
    """Small charts of entropy, gradient norm, loss, clipping and mismatch; KL only where a reference is used."""
    charts = [
        metric_chart(run, key, title=title, unit=METRICS[key].unit, colour=colour, from_zero=True)
        for key, title, colour in (
            ("entropy", "Entropy", 4),
            ("grad_norm", "Gradient norm", 2),
            ("loss", "Loss", 3),
            ("kl", "KL to the reference", 5),
        )
    ]
    low, high = (metric(run.metrics, f"clip_{side}_fraction") for side in ("low", "high"))
    clipped = (ChartLine(label="at lower bound", series=low), ChartLine(label="at upper bound", series=high, colour=2))
    charts.append(Chart(title="Clipped tokens", unit="share", lines=clipped, from_zero=True))
    mean = metric(run.metrics, "logprob_mismatch_mean")
    largest = metric(run.metrics, "logprob_mismatch_max", reduce=max)
    zeros = sum(value_at(record, "logprob_mismatch_mean") == 0 for record in run.metrics)
    exact = f" Exactly zero, and not drawn, in {count(zeros, 'step')}." if zeros else ""
    mismatch = Chart(
        title="Engine against trainer",
        unit="nats, log scale",
        lines=(ChartLine(label="mean", series=mean), ChartLine(label="largest", series=largest, colour=2)),
        note=f"Difference of the two logprobs of each sampled token.{exact}",
        log=True,
    )
    rate = ChartLine(label="each step", series=metric(run.metrics, "learning_rate"), colour=3)
    charts += [mismatch, Chart(title="Learning rate", unit="", lines=(rate,), from_zero=True)]
    return _grid(chart for chart in charts if any(not line.series.empty for line in chart.lines))


def time(run: RunRecord) -> str:
    """Seconds of the run by phase as a bar and a table, and the speed of generation."""
    parts = time_split(run)
    seconds = sum(parts.values())
    if not seconds:
        return ""
    bar, rows, left = "", "", 0.0
    for name, of_part in parts.items():
        width, spent, share = 1000 * of_part / seconds, duration(of_part), percent(of_part / seconds)
        title, colour = f"<title>{name}: {spent}, {share}</title>", PARTS.index(name) + 1
        bar += f'<rect class="c{colour}" x="{left:.2f}" width="{width:.2f}" height="28">{title}</rect>'
        rows += f'<tr><th scope="row"><i class="c{colour}"></i>{name}</th><td>{spent}</td><td>{share}</td></tr>'
        left += width
    table = f'<table class="split"><tbody>{rows}</tbody><tfoot><tr><th scope="row">total</th>'
    table += f"<td>{duration(seconds)}</td><td></td></tr></tfoot></table>"
    drawing = '<svg class="bar" viewBox="0 0 1000 28" preserveAspectRatio="none" role="img" aria-label="Time split">'
    drawing += f"{bar}</svg>"
    speed, each = "", ""
    if run.metrics:
        line = ChartLine(label="each step", series=metric(run.metrics, "clock", "tokens_per_second"))
        chart = Chart(title="Generation speed", unit="tokens per second", lines=(line,), from_zero=True)
        speed, each = figure(chart, _HALF_SIZES), figure(time_chart(run), HERO_SIZES)
    return f'{drawing}<div class="two"><div>{table}</div>{speed}</div>{each}'


def time_chart(run: RunRecord) -> Chart:
    """Chart of the seconds of each step by phase."""
    lines = tuple(
        ChartLine(label=name, series=series, colour=colour)
        for colour, name in enumerate(("generate", "reward", "update", "other"), start=1)
        if any((series := metric(run.metrics, "clock", name)).values)
    )
    return Chart(title="Time of each step", unit="seconds", lines=lines, stacked=True)


def _grid(charts: Iterable[Chart]) -> str:
    figures = "".join(figure(chart) for chart in charts)
    return f'<div class="grid">{figures}</div>' if figures else ""
