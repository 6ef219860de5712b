"""The sections of the page, each from a run's records to HTML; a section with nothing to say is empty."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from paceline.config.building import build_config
from paceline.config.flat_yaml import parse_yaml
from paceline.errors import ConfigError
from paceline.metrics.alarms import RULES
from paceline.metrics.definitions import Record
from paceline.objective.formula import Line, objective
from paceline.reports.format import count, duration, percent, short
from paceline.reports.page import charts
from paceline.reports.page.accounting import dropped_counts, time_split
from paceline.reports.page.figures import Chart, figure
from paceline.reports.page.outcome import fates, first_set, pairs
from paceline.reports.page.reading import RunRecord, read_lines, value_at
from paceline.reports.page.samples import (
    by_task,
    card,
    distinctive,
    held_out_pairs,
    pair_cards,
    prompt_of,
    training_pairs,
)
from paceline.reports.page.series import bin_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Steps in a row at which one alarm held."""

    name: str
    first: int
    last: int

    def describe(self) -> str:
        """`step 7` or `steps 7 to 12`."""
        return f"step {self.first:,}" if self.first == self.last else f"steps {self.first:,} to {self.last:,}"


def stretches(metrics: Sequence[Record]) -> list[Stretch]:
    """Every alarm's stretches, in the order in which they began."""
    found: list[Stretch] = []
    open_since: dict[str, int] = {}
    last = 0
    for record in [*metrics, {"step": 0, "alarms": []}]:  # the end closes what is still active
        active = _alarms(record)
        over = [name for name in open_since if name not in active]
        found += [Stretch(name=name, first=open_since.pop(name), last=last) for name in over]
        last = record["step"]
        for name in active:
            open_since.setdefault(name, last)
    return sorted(found, key=lambda one: one.first)


def alarm_list(run: RunRecord) -> str:
    """Active alarms, when, what they mean and what to do; empty without any."""
    by_name: dict[str, list[Stretch]] = {}
    for one in stretches(run.metrics):
        by_name.setdefault(one.name, []).append(one)
    items = "".join(f"<li>{_item(name, parts)}</li>" for name, parts in by_name.items())
    return f'<ul class="alarms">{items}</ul>' if items else ""


_MOST = 8
"""Stretches that are named; the rest are counted."""


def _item(name: str, parts: Sequence[Stretch]) -> str:
    named = ", ".join(one.describe() for one in parts[:_MOST])
    more = f" and {count(len(parts) - _MOST, 'more stretch', 'more stretches')}" if len(parts) > _MOST else ""
    rule = next((rule for rule in RULES if rule.name == name), None)  # a newer version's may be unknown here
    words = f"<p>{escape(rule.meaning)}; {escape(rule.remedy)}.</p>" if rule is not None else ""
    return f"<b>{escape(name)}</b>: {named}{more}{words}"


def _alarms(record: Record) -> list[str]:
    alarms = record.get("alarms")  # none in steps of older versions
    return [name for name in alarms if isinstance(name, str)] if isinstance(alarms, list) else []


GROUPS = 2
"""Groups shown of each moment: enough to see that one is no exception."""


def moments(steps: Sequence[int]) -> list[tuple[str, int]]:
    """The first, the middle and the last of the steps, under these names; of fewer than three, those there are.

    >>> moments([1, 2, 3, 4, 5]), moments([7, 9])
    ([('Early', 1), ('Middle', 3), ('Late', 5)], [('Early', 7), ('Late', 9)])
    """
    if len(steps) < 2:
        return [("Early", step) for step in steps]
    middle = [("Middle", steps[len(steps) // 2])] if len(steps) > 2 else []
    return [("Early", steps[0]), *middle, ("Late", steps[-1])]


def telling(rollouts: Sequence[Record], limit: int = GROUPS) -> list[list[Record]]:
    """The groups whose rewards differ most, as the loss weighs them; of equals the first."""
    groups = by_task(rollouts)
    return sorted(groups, key=_spread, reverse=True)[:limit]


def group_folds(groups: Sequence[Sequence[Record]], *, grader: str) -> str:
    """One fold per group: the prompt and its rewards outside, the completions from the best to the worst inside."""
    questions = distinctive([str(group[0]["prompt"]) for group in groups])
    return "".join(_fold(group, question, grader) for group, question in zip(groups, questions, strict=True))


def _fold(group: Sequence[Record], question: str, grader: str) -> str:
    ordered = sorted(group, key=_reward, reverse=True)
    rewards = ", ".join(_said(one) for one in ordered)
    head = f"{escape(question or str(group[0]['prompt']))}"
    about = f'<span class="note">{count(len(group), "completion")}, rewards {escape(rewards)}</span>'
    names = [f"sample {one['sample']}" if "sample" in one else f"completion {i}" for i, one in enumerate(ordered, 1)]
    cards = "".join(card(one, name, grader) for one, name in zip(ordered, names, strict=True))
    return f'<details class="group"><summary>{head}{about}</summary>{prompt_of(group[0], question)}{cards}</details>'


def _reward(record: Record) -> float:
    reward = value_at(record, "reward")
    return float("-inf") if reward is None else reward


def _said(record: Record) -> str:
    reward = value_at(record, "reward")
    return "none" if reward is None else short(reward)


def _spread(group: Sequence[Record]) -> float:
    rewards = [reward for one in group if (reward := value_at(one, "reward")) is not None]
    if not rewards:
        return 0.0
    mean = sum(rewards) / len(rewards)
    return sum((reward - mean) ** 2 for reward in rewards) / len(rewards)


_HERO_SIZES = ((1040, 300), (340, 210))
_HALF_SIZES = ((508, 230), (340, 190))
_ROLLOUT_KEYS = ("task_id", "prompt", "completion")


def alarms(run: RunRecord) -> str:
    """Alarms that were active, and at which steps."""
    return _section("Alarms", alarm_list(run))


def learning(run: RunRecord) -> str:
    """Held-out accuracy and training reward over steps."""
    # One measurement is in the headline already; a chart begins with two.
    hero = figure(charts.accuracy_chart(run), _HERO_SIZES) if len({one["step"] for one in run.evals}) > 1 else ""
    reward = '<p class="note">No step has finished yet.</p>'
    if run.metrics:
        reward = figure(charts.reward_chart(run), _HERO_SIZES)
    functions = _functions(charts.reward_function_charts(run))
    names = charts.reward_functions(run.metrics)
    only = f'<p class="note">One reward function: {escape(names[0])}.</p>' if len(names) == 1 else ""
    size = bin_size(len(run.metrics))
    bins = ""
    if size > 1:
        means = f"Each point of a line stands for {size} steps: their mean, in a band from the least to the greatest."
        bins = f'<p class="note">{means}</p>'
    return _section("Learning", hero + reward + only + functions + bins)


def lengths_and_signal(run: RunRecord) -> str:
    """How long completions are, and how many groups carry signal."""
    if not run.metrics:
        return ""
    figures = [figure(chart) for chart in (*charts.length_charts(run), charts.signal_chart(run))]
    return _section("Completions and signal", _grid("".join(figures)))


def optimisation(run: RunRecord) -> str:
    """The small multiples of the optimiser's health."""
    return _section("Optimisation", _grid("".join(figure(chart) for chart in charts.optimisation_charts(run))))


def time(run: RunRecord) -> str:
    """Where the seconds went: a bar, a table, and the speed of generation."""
    parts = time_split(run)
    seconds = sum(part.seconds for part in parts)
    if not seconds:
        return ""
    bar, left = "", 0.0
    for part in parts:
        width = 1000 * part.seconds / seconds
        label = f"{part.name}: {duration(part.seconds)}, {percent(part.seconds / seconds)}"
        bar += (
            f'<rect class="c{part.colour}" x="{left:.2f}" width="{width:.2f}" height="28"><title>{label}</title></rect>'
        )
        left += width
    rows = "".join(
        f'<tr><th scope="row"><i class="c{part.colour}"></i>{part.name}</th><td>{duration(part.seconds)}</td>'
        f"<td>{percent(part.seconds / seconds)}</td></tr>"
        for part in parts
    )
    table = f'<table class="split"><tbody>{rows}</tbody><tfoot><tr><th scope="row">total</th>'
    table += f"<td>{duration(seconds)}</td><td></td></tr></tfoot></table>"
    drawing = '<svg class="bar" viewBox="0 0 1000 28" preserveAspectRatio="none" role="img" aria-label="Time split">'
    drawing += f"{bar}</svg>"
    speed = figure(charts.speed_chart(run), _HALF_SIZES) if run.metrics else ""
    each = figure(charts.time_chart(run), _HERO_SIZES) if run.metrics else ""
    return _section("Time", f'{drawing}<div class="two"><div>{table}</div>{speed}</div>{each}')


def training_samples(run: RunRecord) -> str:
    """Completions of the first steps beside those of the last, on similar prompts."""
    steps = list(run.rollout_files)
    if len(steps) < 2:
        return ""
    reach = min(2, len(steps) // 2)
    early, late = (_rollouts(run, part) for part in (steps[:reach], steps[-reach:]))
    chosen = training_pairs(early, late, grader(run))
    first, last = _steps(steps[:reach]), _steps(steps[-reach:])
    lead = f"<p>Prompts of {first} beside the most similar ones of {last}; right and wrong ones on purpose.</p>"
    cards = pair_cards(chosen, before=first, after=last, grader=grader(run))
    return _section("Training completions, early and late", lead + cards if chosen else "")


def training_groups(run: RunRecord) -> str:
    """Groups of an early, a middle and a late step, whose rewards differ most, folded."""
    shown = ""
    for when, step in moments(list(run.rollout_files)):
        groups = telling(_rollouts(run, [step]))
        if groups:
            shown += f'<h3 class="when">{when}: step {step:,}</h3>{group_folds(groups, grader=grader(run))}'
    lead = "<p>All completions of a prompt, whose rewards its advantages compare: the groups that differ most.</p>"
    return _section("Groups of completions", lead + shown if shown else "")


def held_out_samples(run: RunRecord) -> str:
    """The same held-out tasks before and after training, and how many changed sides."""
    sorted_pairs = fates(pairs(run))
    if not sorted_pairs.num_tasks:
        return ""
    sides = (
        ("fixed", sorted_pairs.fixed, "wrong before, right after"),
        ("kept", sorted_pairs.still_right, "right both times"),
        ("missed", sorted_pairs.still_wrong, "wrong both times"),
        ("broken", sorted_pairs.broken, "right before, wrong after"),
    )
    tiles = "".join(
        f'<div class="tile {name}"><b>{len(members):,}</b><span>{words}</span></div>' for name, members, words in sides
    )
    cards = pair_cards(held_out_pairs(sorted_pairs), before="before", after="after", grader=grader(run))
    title = f"Held-out tasks, before and after: {first_set(run)}"
    return _section(title, f'<div class="tiles">{tiles}</div>{cards}')


def dropped(run: RunRecord) -> str:
    """Everything that was filtered, cut, failed or unreadable, counted."""
    rows = "".join(
        f'<tr{"" if row.number else " class=zero"}><th scope="row">{escape(row.what)}</th><td>{row.number:,.0f}</td>'
        f"<td>{percent(row.number / row.of) if row.of else ''}</td></tr>"
        for row in dropped_counts(run)
    )
    lead = "<p>Nothing leaves a run without being counted. Shares are of all prompts or all completions.</p>"
    return _section("Dropped or failed", f'{lead}<table class="counts"><tbody>{rows}</tbody></table>')


def configuration(run: RunRecord) -> str:
    """The objective as a formula, and the resolved configuration, folded."""
    if not run.config_text:
        return ""
    options = count(len(run.config), "line")
    fold = f"<details><summary>config.yaml, {options}</summary><pre>{escape(run.config_text)}</pre></details>"
    return _section("Configuration", _formula(run.config_text) + fold)


def _formula(config_text: str) -> str:
    """Nothing where the file is damaged or of a version with other options: the page still shows the file."""
    try:
        config = build_config(parse_yaml(config_text, "config.yaml"))
    except ConfigError:
        return ""
    lines = objective(config)
    return f"<h3>The objective, minimised</h3>{as_list(lines)}"


def grader(run: RunRecord) -> str:
    """Name of the reward function that says what is right."""
    return str(run.config["eval_reward_func"]) if "eval_reward_func" in run.config else "accuracy"


def _functions(shown: list[Chart]) -> str:
    """Two or four charts look settled in two columns, all other numbers in three."""
    if len(shown) in (2, 4):
        return f'<div class="grid halves">{"".join(figure(chart, _HALF_SIZES) for chart in shown)}</div>'
    return _grid("".join(figure(chart) for chart in shown))


def _rollouts(run: RunRecord, steps: list[int]) -> list[Record]:
    return [record for step in steps for record in read_lines(run.rollout_files[step], _ROLLOUT_KEYS)[0]]


def _steps(steps: list[int]) -> str:
    return f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} and {steps[-1]:,}"


def _grid(figures: str) -> str:
    return f'<div class="grid">{figures}</div>' if figures else ""


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


_INDEXED = re.compile(r"\b([A-Za-z]+)_t\b")
_NAMES = re.compile(r"\b(A|R|r|p|q|tau|rho)\b")
_TIMES, _MINUS = " * ", re.compile(r"(?<![\w)])-(?=[\w(])| - ")
_GREEK = {"tau": "&tau;", "rho": "&rho;"}


def as_list(lines: Iterable[Line]) -> str:
    """One term and its definition per line. The text stays as it is; only signs and letters are set otherwise.

    >>> as_list([Line(symbol="kl_t", text="2 * log(p_t / q_t) - A")])  # doctest: +NORMALIZE_WHITESPACE
    '<dl class="formula"><dt>kl<sub>t</sub></dt><dd>2 &middot; log(<i>p<sub>t</sub></i> / <i>q<sub>t</sub></i>)
    &minus; <i>A</i></dd></dl>'
    """
    rows = "".join(f"<dt>{_symbol(line.symbol)}</dt><dd>{_set(line.text)}</dd>" for line in lines)
    return f'<dl class="formula">{rows}</dl>'


def _symbol(text: str) -> str:
    return re.sub(_INDEXED, r"\1<sub>t</sub>", escape(text))


def _set(text: str) -> str:
    signed = _MINUS.sub(lambda found: " &minus; " if found[0] == " - " else "&minus;", escape(text))
    indexed = _INDEXED.sub(r"<i>\1<sub>t</sub></i>", signed.replace(_TIMES, " &middot; "))
    return _NAMES.sub(_italic, indexed)


def _italic(found: re.Match[str]) -> str:
    name = found[0]
    before = found.string[: found.start()]
    if before.endswith(("<i>", "<", "&")):  # set already, or a letter of a tag or an entity
        return name
    return f"<i>{_GREEK.get(name, name)}</i>"
