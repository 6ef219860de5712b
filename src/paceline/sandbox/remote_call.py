"""Function calls as programs for a service that only runs programs.

The program prints the returned value behind a mark that is new each time, so that no other output is mistaken for it.
The program knows only the input of its task, so printing the mark itself gains nothing.
"""

import json
import secrets
from dataclasses import replace
from typing import cast

from paceline.sandbox.inside.program import GIVEN
from paceline.sandbox.programs import Execution, ExecutionStatus, Job

STATUSES = ("finished", "runtime_error", "syntax_error", "no_function")

# Runs on the service, with its Python; finds the function where this machine's sandbox does.
CALLER = """
import builtins
import importlib
import json
import os
import sys
import types

given = json.loads(sys.stdin.readline())
out = os.fdopen(os.dup(1), "w", encoding="utf-8")


def answer(status, text):
    sys.stdout.flush()
    out.write("\\n" + given["mark"] + json.dumps([status, text]) + "\\n")
    out.flush()


def find(module, name):
    solution = module.__dict__.get("Solution")
    if isinstance(solution, type) and callable(getattr(solution, name, None)):
        return getattr(solution(), name)
    function = module.__dict__.get(name)
    return function if callable(function) else None


def names():
    found = {name: importlib.import_module(name) for name in given["names"]}
    for name, members in given["names"].items():
        found.update((member, getattr(sys.modules[name], member)) for member in members.split() if member != name)
    return found


def main():
    try:
        program = compile(given["source"], "solution.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return answer("syntax_error", "%s: %s" % (type(error).__name__, error))
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    module.__dict__["__builtins__"] = dict(vars(builtins), **names())  # beneath the program's own names
    exec(program, module.__dict__)
    function = find(module, given["function"])
    if function is None:
        return answer("no_function", "there is no function " + given["function"])
    value = function(*given["arguments"])
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        return answer("runtime_error", "the returned value is no plain data: %s" % error)
    answer("finished", text)


main()
"""


def call_input(job: Job) -> tuple[str, str]:
    """Return standard input of `CALLER` for a job that has a function, and the mark before the value in its output."""
    mark = secrets.token_hex(16)
    given = {
        "source": job.source.removeprefix("\ufeff"),
        "function": job.function,
        "arguments": json.loads(job.arguments),
        "mark": mark,
        "names": GIVEN,
    }
    return json.dumps(given) + "\n", mark


def called(run: Execution, mark: str) -> Execution:
    """Interpret the outcome of the program as the outcome of the call."""
    if run.status not in ("finished", "runtime_error"):
        return run
    if run.status == "runtime_error":
        return replace(run, output="")
    line = run.output.rpartition(mark)[2].partition("\n")[0] if mark in run.output else ""
    try:
        status, text = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return replace(run, status="runtime_error", output="", error="it ended before the function returned")
    if status not in STATUSES or not isinstance(text, str):
        return replace(run, status="runtime_error", output="", error="it printed the mark of the value itself")
    if status == "finished":
        return replace(run, output=text)
    return replace(run, status=cast(ExecutionStatus, status), output="", error=text)
