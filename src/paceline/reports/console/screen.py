"""The screen of a run as text: a pure function of what was told and of the terminal's size."""

from collections.abc import Iterable, Sequence
from textwrap import wrap

from rich.text import Text

from paceline.metrics.learning import Verdict
from paceline.reports.console.watching import Accuracy, Seen, Stage
from paceline.reports.format import duration, gibibytes
from paceline.runtime.activity import Phase

LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-=+*#@"


def bar(share: float, width: int, *, ascii_only: bool) -> tuple[str, str]:
    """The part of a bar that is done and the part that is not, together `width` characters.

    >>> bar(0.5, 5, ascii_only=False)
    ('━━╸', '━━')
    """
    halves = round(2 * width * min(max(share, 0.0), 1.0))
    whole, half = divmod(halves, 2)
    line, end = ("#", "-") if ascii_only else ("━", "╸")
    done = line * whole + end * half
    return done, (" " if ascii_only else "━") * (width - whole - half)


def curve(values: Sequence[float], *, ascii_only: bool) -> str:
    """One character per value, from the lowest of them to the highest; a flat line where all are equal.

    >>> curve([0.0, 1.0, 7.0], ascii_only=False)
    '▁▂█'
    """
    if not values:
        return ""
    levels = ASCII_LEVELS if ascii_only else LEVELS
    low, high = min(values), max(values)
    top = len(levels) - 1
    return "".join(levels[round(top * (value - low) / (high - low)) if high > low else 0] for value in values)


def fitting(parts: Sequence[str], width: int) -> str:
    """As many of the parts, from the first on, as fit; a comma between them.

    >>> fitting(["131 of 256", "21,300 tokens/s", "2 s to go"], 30)
    '131 of 256, 21,300 tokens/s'
    """
    text = ""
    for part in parts:
        longer = f"{text}, {part}" if text else part
        if len(longer) > width:
            break
        text = longer
    return text


LABEL = 10
"""Characters before a line's first number."""
PHASES: tuple[Phase, ...] = ("generate", "reward", "update")
"""Each has a line of its own at all times, so that nothing jumps."""
VERDICT_LINES = 3
MOST_SETS = 2
"""Held-out sets that have a line; the report has all."""
WORD_STYLES = {"yes": "green", "no": "red", "too early": "yellow"}
NONE = "-"


def screen(seen: Seen, *, width: int, height: int, memory: int | None, ascii_only: bool) -> Text:
    """At most `height` - 1 lines of at most `width` characters. `memory`: bytes in use, None: not known.

    A terminal that is too low first loses the blank lines, then what stands lowest.
    """
    head = [_title(seen, width), _steps(seen, width, ascii_only)]
    stages = [_stage(name, seen, width, ascii_only) for name in PHASES]
    learning = [_reward(seen, ascii_only), *_held_out(seen.accuracies), *_verdict(seen.verdict, width)]
    numbers = _columns(_numbers(seen, memory), width)
    parts = [[*head, *stages], learning, [*numbers, _alarms(seen)]]
    lines = [line for part in parts for line in ([Text(), *part] if part is not parts[0] else part)]
    if len(lines) >= height:
        lines = [line for part in parts for line in part][: max(1, height - 1)]
    for line in lines:
        line.truncate(width, overflow="crop" if ascii_only else "ellipsis")
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def _label(name: str) -> Text:
    return Text(name.ljust(LABEL), style="bold")


def _line(name: str, *rest: str | tuple[str, str]) -> Text:
    return Text.assemble(_label(name), *rest)


def _title(seen: Seen, width: int) -> Text:
    """The run's name at the left, what it is at and for how long at the right."""
    now = f"{seen.what}, {duration(seen.seconds, 0)}"
    room = max(0, width - len(now) - 2)
    name = seen.name if len(seen.name) <= room else seen.name[len(seen.name) - room :]
    return Text.assemble((name, "bold"), " " * max(0, width - len(name) - len(now)), now)


def _bar_width(width: int) -> int:
    return min(40, max(10, width - 56))


def _barred(name: str, share: float, parts: Sequence[str], width: int, ascii_only: bool) -> Text:
    size = _bar_width(width)
    done, left = bar(share, size, ascii_only=ascii_only)
    text = fitting(parts, width - LABEL - size - 2)
    return _line(name, (done, "cyan"), (left, "bright_black"), f"  {text}")


def _steps(seen: Seen, width: int, ascii_only: bool) -> Text:
    to_go = [] if seen.to_go is None else [f"{duration(seen.to_go, 0)} to go"]
    parts = [f"{seen.step} of {seen.total_steps}", *to_go]
    return _barred("steps", seen.step / seen.total_steps, parts, width, ascii_only)


def _stage(name: Phase, seen: Seen, width: int, ascii_only: bool) -> Text:
    if name not in seen.stages:
        return _barred(name, 0.0, [NONE], width, ascii_only)
    stage = seen.stages[name]
    return _barred(name, stage.share, list(_stage_parts(stage)), width, ascii_only)


def _stage_parts(stage: Stage) -> Iterable[str]:
    yield f"{stage.done:,} of {stage.of:,}"
    if stage.tokens and stage.seconds > 0:
        yield f"{stage.tokens / stage.seconds:,.0f} tokens/s"
    if stage.is_over:
        yield f"{stage.seconds:.1f} s"
    elif stage.to_go is not None:
        yield f"{duration(stage.to_go, 0)} to go"


def _verdict(verdict: Verdict, width: int) -> list[Text]:
    """Always as many lines, whatever there is to say."""
    sentence = "; but ".join([f"{verdict.word}, because {verdict.because}", *verdict.but])
    lines = wrap(sentence, max(20, width - LABEL), max_lines=VERDICT_LINES, placeholder=" ...")
    first, *others = lines
    word, rest = first[: len(verdict.word)], first[len(verdict.word) :]
    shown = [_line("learning", (word, f"bold {WORD_STYLES[verdict.word]}"), rest)]
    shown += [Text(" " * LABEL + line) for line in others]
    return shown + [Text()] * (VERDICT_LINES - len(shown))


def _held_out(accuracies: Sequence[Accuracy]) -> list[Text]:
    if not accuracies:
        return [_line("held-out", NONE)]
    return [_line("held-out", _accuracy(one)) for one in accuracies[:MOST_SETS]]


def _accuracy(one: Accuracy) -> str:
    low, value, high = (100 * one.newest[key] for key in ("ci_low", "accuracy", "ci_high"))
    began = "" if one.newest is one.first else f", began with {100 * one.first['accuracy']:.1f} %"
    return f"{value:.1f} % [{low:.1f}, {high:.1f}] after step {one.newest['step']}{began}, {one.newest['set']}"


def _reward(seen: Seen, ascii_only: bool) -> Text:
    record = seen.record
    value = NONE if record is None or record["reward_mean"] is None else f"{record['reward_mean']:.3f}"
    return _line("reward", value.ljust(8), (curve(seen.rewards, ascii_only=ascii_only), "cyan"))


def _numbers(seen: Seen, memory: int | None) -> list[tuple[str, str]]:
    """Name and value, in the order of reading."""
    used = NONE if memory is None else gibibytes(memory)
    record = seen.record
    if record is None:
        names = ("length", "KL", "entropy", "mismatch", "speed")
        return [*((name, NONE) for name in names), ("memory", used)]
    clock = record["clock"]
    cut = f", {100 * record['truncated_fraction']:.0f} % cut" if record["truncated_fraction"] else ""
    return [
        ("length", f"{record['completion_length_mean']:.0f} tokens{cut}"),
        ("KL", _nats(record["kl"], "/token") if "kl" in record else "not measured"),
        ("entropy", _nats(record["entropy"], "/token")),
        ("mismatch", _nats(record["logprob_mismatch_mean"], "")),
        ("speed", f"{clock['tokens_per_second']:,.0f} tokens/s"),
        ("memory", used),
    ]


def _nats(value: float | None, per: str) -> str:
    return NONE if value is None else f"{value:.3g} nats{per}"


def _columns(cells: Sequence[tuple[str, str]], width: int) -> list[Text]:
    """Two to a line."""
    room = width // 2 - LABEL - 1
    pairs = zip(cells[::2], cells[1::2], strict=True)
    return [_line(a, f"{x[:room]:<{room + 1}}") + _line(b, y[:room]) for (a, x), (b, y) in pairs]


def _alarms(seen: Seen) -> Text:
    # steps of older versions have no alarms
    active = () if seen.record is None else seen.record.get("alarms") or ()
    return _line("alarms", (", ".join(active), "bold red") if active else "none")
