"""Whether a right program counts as right."""

import json

from paceline.sandbox.programs import Job, Limits, Sandbox
from tests.sandbox.corpus import Right


def complaint(sandbox: Sandbox, program: Right) -> str:
    """Why `program` does not count as right in `sandbox`; empty where it does."""
    execution = sandbox.execute(
        Job(
            source=program.source,
            stdin=program.stdin,
            function=program.function,
            arguments=program.arguments,
            limits=Limits(seconds=5.0),
        )
    )
    if execution.status != "finished":
        return f"{execution.status}: {execution.error}"
    if program.function is None:
        same = _lines(execution.output) == _lines(program.output)
    else:
        same = json.loads(execution.output) == json.loads(program.output)
    return "" if same else f"{execution.output[:500]!r} is not {program.output[:500]!r}"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
