"""Steps at which each alarm was active, as stretches."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from paceline.metrics.alarms import RULES
from paceline.metrics.definitions import Record
from paceline.reports.format import count
from paceline.reports.page.reading import RunRecord


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
