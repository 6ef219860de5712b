"""An audit for a person, as tables in the terminal, and for a program, as plain values."""

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.rewards.audit.running import Audit
from paceline.rewards.audit.subjects import WRAPPINGS

EXAMPLE_WIDTH = 90  # Characters of a completion in the terminal
NAMED_FORMS = 3


def record(audit: Audit) -> dict[str, object]:
    """Return the audit as values for JSON."""
    return {**asdict(audit), "is_clean": audit.is_clean, "cheats": [finding.attack for finding in audit.cheats]}


def print_audit(console: Console, audit: Audit) -> None:
    """Print attacks that scored full, then what the gold answer earned, then the verdict in one sentence."""
    tried = sum(finding.completions for finding in audit.findings)
    full = "unknown" if audit.threshold is None else f"{_number(audit.threshold)} ({audit.threshold_from})"
    tasks = "1 task" if audit.tasks == 1 else f"{audit.tasks} tasks"
    _print(console, f"\n{audit.name}: {tasks}, {tried:,} completions. Full score: {full}.")
    if audit.cheats:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("scores full", no_wrap=True, style="red")
        table.add_column("tasks", justify="right", no_wrap=True)
        table.add_column("in the form of")
        for finding in sorted(audit.cheats, key=lambda finding: -finding.full / finding.tasks):
            table.add_row(escape(finding.attack), f"{finding.full} of {finding.tasks}", _forms(finding.forms))
        console.print(table)
    for finding in audit.cheats:
        shown = repr(finding.example or "")
        shown = shown if len(shown) <= EXAMPLE_WIDTH else f"{shown[:EXAMPLE_WIDTH]}..."
        _print(console, f"{finding.attack}: {shown} scores {_number(finding.best)} on {finding.row}.")
    honest = [result for result in audit.honest if result.full or result.is_promised]
    if honest:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("gold answer as", no_wrap=True)
        table.add_column("full", justify="right", no_wrap=True)
        table.add_column("highest", justify="right")
        for result in honest:
            form = f"[red]{escape(result.form)}[/red]" if result.is_short else escape(result.form)
            table.add_row(form, f"{result.full} of {result.tasks}", _number(result.best))
        console.print(table)
    for sentence in (*_notes(audit), verdict(audit)):
        _print(console, sentence)


def _notes(audit: Audit) -> list[str]:
    """Return remarks beside the verdict: scores below the full one, exceptions, failures."""
    notes = []
    some = [finding for finding in audit.findings if finding.counts and finding.partial and not finding.full]
    if some:
        best = max(some, key=lambda finding: finding.best or 0.0)
        notes.append(f"{len(some)} more attacks score something: at most {_number(best.best)} ({best.attack}).")
    if audit.exception:
        notes.append(f"{audit.name} {audit.exception}: such scores are not counted.")
    if audit.failure is not None:
        failing = ", ".join(finding.attack for finding in audit.findings if finding.failed) or "the gold answer"
        notes.append(f"The function failed on {audit.failed} completions ({failing}): nothing is known of them.")
        notes.append(f"The first failure: {audit.failure.splitlines()[0]}")
    return notes


def verdict(audit: Audit) -> str:
    """Return the verdict as one sentence."""
    if audit.is_silent:
        return f"{audit.name} gave no number to any completion: nothing is known of it."
    problems = []
    if audit.cheats:
        tried = [finding for finding in audit.findings if finding.completions]
        problems.append(f"{len(audit.cheats)} of {len(tried)} attacks score full")
    problems += [
        f"the gold answer in the form {honest.form!r} scores full on {honest.full} of {honest.tasks} tasks only"
        for honest in audit.honest
        if honest.is_short
    ]
    if problems:
        return f"{audit.name}: {'; '.join(problems)}."
    if audit.threshold is None:
        return f"{audit.name}: nothing that was tried scored above an empty completion, the gold answer neither."
    return f"{audit.name}: no known cheat scores full."


def _forms(forms: Sequence[str]) -> str:
    if forms == ("whole",):
        return ""
    if len(forms) == len(WRAPPINGS):
        return "every form"
    return ", ".join(forms) if len(forms) <= NAMED_FORMS else f"{', '.join(forms[:NAMED_FORMS])}, and others"


def _number(score: float | None) -> str:
    """Format a score, zero without a sign."""
    return "no number" if score is None else f"{score + 0.0:g}"


def _print(console: Console, sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False, emoji=False, soft_wrap=True)
