"""Whether the run is learning, by the rules of `learning`, from the records that have what the rules read."""

from html import escape

from paceline.metrics.learning import Verdict, judge
from paceline.reports.page.reading import Record, RunRecord, value_at

_OF_A_STEP = ("learning_rate", "updates", "prompts", "groups_zero_deviation")
_OF_AN_EVALUATION = ("accuracy", "ci_low", "ci_high")


def verdict_of(run: RunRecord) -> Verdict:
    """The word and why; steps and evaluations without the rules' numbers, as of a damaged file, are left out."""
    return judge(
        [record for record in run.metrics if _is_step(record)],
        [record for record in run.evals if all(value_at(record, key) is not None for key in _OF_AN_EVALUATION)],
    )


def verdict_line(run: RunRecord) -> str:
    """The verdict for the top of the page; nothing before there is a step."""
    if not run.metrics:
        return ""
    found = verdict_of(run)
    but = f"; but {escape('; but '.join(found.but))}" if found.but else ""
    style = {"yes": "yes", "no": "no", "too early": "early"}[found.word]
    return f'<p class="verdict {style}">Learning: <b>{found.word}</b>, because {escape(found.because)}{but}.</p>'


def _is_step(record: Record) -> bool:
    """Of the two that may be null, a step has the key: no reward, or no update."""
    numbers = all(value_at(record, key) is not None for key in _OF_A_STEP)
    nullable = all(
        key in record and record[key] in (None, value_at(record, key)) for key in ("reward_mean", "grad_norm")
    )
    return numbers and nullable and isinstance(record.get("alarms", []), list)
