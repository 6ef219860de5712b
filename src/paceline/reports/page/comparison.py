"""Several runs beside each other: a table, and a page with their curves in one chart."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from paceline.errors import ConfigError
from paceline.metrics.comparisons import Comparison, compare_records, probability
from paceline.reports.format import percent, points
from paceline.reports.page.curves import HERO_SIZES
from paceline.reports.page.figures import Chart, ChartLine, figure
from paceline.reports.page.html import TOOLS, document
from paceline.reports.page.outcome import evaluations, first_set, outcome
from paceline.reports.page.reading import RunRecord, Series, metric, read_lines, smoothed, total_seconds, value_at
from paceline.runtime.whole_files import write_whole

OF_EVERY_RUN = ("output_dir", "paceline_version")
"""Keys of config.yaml that differ between runs without an effect on what is computed."""
LONGEST_VALUE = 40
"""Most characters of an option's value in the table."""
COLOURS = 6
"""Colours of the palette; further runs repeat them."""


def table(runs: Sequence[RunRecord]) -> list[tuple[str, ...]]:
    """Headings, then one row per run: its name, the options that differ, accuracy before and after with the difference,
    the paired difference of the newest evaluations to the first run, and wall seconds."""
    names, options = run_names(runs), differing_options(runs)
    headings = ("run", *options, "before", "after", "difference, points (95 % interval)")
    rows = [(*headings, *(("to the first run, paired",) if len(runs) > 1 else ()), "seconds")]
    for run, name in zip(runs, names, strict=True):
        result = outcome(run)
        before, after, gain = (None, None, None) if result is None else (result.before, result.after, result.difference)
        shares = ["-" if accuracy is None else percent(accuracy.value) for accuracy in (before, after)]
        gained = "-" if gain is None else f"{points(gain.value)} ({points(gain.low)} to {points(gain.high)})"
        versus = [] if len(runs) == 1 else ["" if run is runs[0] else difference_text(to_first(runs[0], run))]
        rows.append(
            (name, *(options[key][name] for key in options), *shares, gained, *versus, f"{total_seconds(run):.1f}")
        )
    return rows


def run_names(runs: Sequence[RunRecord]) -> list[str]:
    """Names of the directories, or their paths where two names are the same."""
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def differing_options(runs: Sequence[RunRecord]) -> dict[str, dict[str, str]]:
    """Options that are not the same in all runs, each with its value by the run's name; in the order of config.yaml."""
    names = run_names(runs)
    keys = dict.fromkeys(str(key) for run in runs for key in run.config if key not in OF_EVERY_RUN)
    values = {key: {name: _value(run, key) for run, name in zip(runs, names, strict=True)} for key in keys}
    return {key: of_runs for key, of_runs in values.items() if len(set(of_runs.values())) > 1}


def _value(run: RunRecord, key: str) -> str:
    value = run.config.get(key)
    text = "-" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}\N{HORIZONTAL ELLIPSIS}"


def to_first(first: RunRecord, run: RunRecord) -> Comparison | None:
    """Compare the newest evaluations of two runs by their completions on disk; nothing is sampled.

    They are paired by task. None where they have no set in common whose tasks have the same gold answers.
    """
    set_name = first_set(first)
    both = [_newest(either, set_name) for either in (first, run)]
    answers = [{str(record["task_id"]): record.get("answer") for record in records} for records in both]
    shared = answers[0].keys() & answers[1].keys()
    if any(answers[0][task] != answers[1][task] for task in shared):
        return None
    return compare_records(*both)


def _newest(run: RunRecord, set_name: str | None) -> Sequence[dict[str, object]]:
    steps = [step for name, step in run.completion_files if name == set_name]
    if not steps:
        return ()
    records, _ = read_lines(run.completion_files[str(set_name), max(steps)], ("task_id",))
    return [dict(record) for record in records]


def difference_text(comparison: Comparison | None) -> str:
    """Points with their interval and the p-value of the paired test."""
    if comparison is None:
        return "-"
    gain = comparison.difference
    return f"{points(gain.value)} ({points(gain.low)} to {points(gain.high)}), {probability(comparison.p_value)}"


def write_comparison(runs: Sequence[RunRecord], file: Path) -> Path:
    """Write the page of several runs and return its path; ConfigError if it cannot be written."""
    try:
        write_whole(file, render(runs).encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(
            f"--page {file} cannot be written ({error.strerror}); give a file in a directory where you may write"
        ) from error
    return file


def render(runs: Sequence[RunRecord]) -> str:
    """The page as text: curves over each other, then the table."""
    names = run_names(runs)
    headings, *rows = table(runs)
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headings)
    body = "".join(
        f'<tr><th scope="row"><i class="swatch c{_colour(number)}"></i>{escape(row[0])}</th>'
        + "".join(f"<td>{escape(text)}</td>" for text in row[1:])
        + "</tr>"
        for number, row in enumerate(rows)
    )
    set_name = first_set(runs[0])
    charts = [
        _chart(f"Accuracy on {set_name}", "share", names, [_accuracy(run, set_name) for run in runs]),
        _chart("Training reward", "mean per completion, smoothed", names, [_reward(run) for run in runs]),
    ]
    shown = "".join(figure(chart, HERO_SIZES) for chart in charts if chart.lines)
    title = f"{len(runs)} runs"
    differ = ", ".join(differing_options(runs)) or "no option"
    top = (
        f'<header class="top"><div class="name"><h1>{title}</h1></div>'
        f'<p class="identity">they differ in {escape(differ)}</p></header>'
    )
    compared = (
        f'<div class="wide"><table class="runs"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
    main = f"<main><section><h2>Curves</h2>{shown}</section><section><h2>Runs</h2>{compared}</section></main>"
    return document(f"{title} &middot; Paceline", f"{top}{TOOLS}{main}", "Drawn from the files of these runs.")


def _colour(number: int) -> int:
    return number % COLOURS + 1


def _chart(title: str, unit: str, names: Sequence[str], series: Sequence[Series]) -> Chart:
    lines = [
        ChartLine(label=name, series=line, colour=_colour(number))
        for number, (name, line) in enumerate(zip(names, series, strict=True))
        if not line.empty
    ]
    return Chart(title=title, unit=unit, lines=tuple(lines))


def _accuracy(run: RunRecord, set_name: str | None) -> Series:
    records = evaluations(run, set_name)
    steps = tuple(float(record["step"]) for record in records)
    return Series(steps=steps, values=tuple(value_at(record, "accuracy") for record in records))


def _reward(run: RunRecord) -> Series:
    raw = metric(run.metrics, "reward_mean")
    return raw if len(raw.steps) < 10 else smoothed(raw, max(3, len(raw.steps) // 10) | 1)
