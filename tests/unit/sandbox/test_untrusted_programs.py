"""What a program sees and what counts as its output, at every level that this host offers."""

import json
from collections.abc import Iterator

import pytest

from paceline.errors import SandboxError
from paceline.sandbox.local import LocalSandbox
from tests.unit.sandbox.sandboxes import ISOLATING, LEVELS, call, opened, run


@pytest.fixture(params=LEVELS, scope="module")
def sandbox(request) -> Iterator[LocalSandbox]:
    sandbox = opened(request.param)
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize(
    ("source", "stdin", "output"),
    [
        ("print(input() + '!')", "pace\n", "pace!\n"),
        ("print(sum(map(int, open(0).read().split())))", "1 2\n3", "6\n"),
        ("import sys\nprint(sys.stdin.buffer.read())", "é\n", "b'\\xc3\\xa9\\n'\n"),
        ("import os\nprint(os.read(0, 3))", "abcdef", "b'abc'\n"),
        ("print(open('/dev/stdin').read())", "by its path", "by its path\n"),
        ("print('é', '\\u2713')", "", "é ✓\n"),
        ("\ufefffrom __future__ import annotations\nprint(__name__)", "", "__main__\n"),
        ("x = 1\ndef f():\n    global x\n    x += 1\nf()\nprint(x)", "", "2\n"),
        ('print("""a\n  b""")', "", "a\n  b\n"),
        ("if __name__ == '__main__':\n    print('main')\n    exit()\nprint('never')", "", "main\n"),
        ("import sys\nprint('before')\nsys.exit(0)", "", "before\n"),
        ("import atexit\natexit.register(print, 'late')\nprint('early')", "", "early\nlate\n"),
        ("import os\nfile = os.fdopen(1, 'w')\nfile.write('never closed')", "", "never closed"),
        ("file = open('/dev/stdout', 'w')\nfile.write('by its path')", "", "by its path"),
        (
            "class Out:\n    def write(self, text): pass\n    def flush(self): pass\nimport sys\nsys.stdout = Out()",
            "",
            "",
        ),
        ("import tempfile\nwith tempfile.TemporaryDirectory() as d:\n    open(d + '/x', 'w')\nprint('ok')", "", "ok\n"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    print('ok')\nasyncio.run(f())", "", "ok\n"),
        ("import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)", "", "True\n"),
        ("import os\nprint('shown', flush=True)\nos._exit(0)", "", "shown\n"),
        ("print(__file__.endswith('main.py'), open(__file__).read()[:5])", "", "True print\n"),
    ],
)
def test_a_program_runs_as_python_would_run_its_file(sandbox, source, stdin, output):
    execution = run(sandbox, source, stdin)
    assert (execution.output, execution.status) == (output, "finished"), execution.error


def test_threads_that_are_still_at_work_are_waited_for(sandbox):
    source = """
import threading
told = threading.Event()
def work():
    told.wait(10)
    print("done")
threading.Thread(target=work).start()
threading.Timer(0.05, told.set).start()
"""
    assert run(sandbox, source).output == "done\n"


def test_a_deep_recursion_has_room_in_a_thread_with_a_large_stack(sandbox):
    source = """
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(1 << 27)
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)
thread = threading.Thread(target=lambda: print(depth(50_000)))
thread.start()
thread.join()
"""
    assert run(sandbox, source).output == "50000\n"


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        ("print('right')\nraise SystemExit(3)", "runtime_error", "exit status 3"),
        ("1 / 0", "runtime_error", "ZeroDivisionError"),
        ("import os\nos.abort()", "runtime_error", "SIGABRT"),
        ("print('unclosed", "syntax_error", "SyntaxError"),
        ("x = '\0'", "syntax_error", "null bytes"),
    ],
)
def test_a_program_that_fails_says_how(sandbox, source, status, said):
    execution = run(sandbox, source)
    assert execution.status == status
    assert said in execution.error


def test_the_traceback_shows_the_program_and_nothing_of_ours(sandbox):
    error = run(sandbox, "def f():\n    raise ValueError('x')\nf()").error
    assert "main.py" in error
    assert "paceline/sandbox/inside" not in error


@pytest.mark.parametrize(
    ("source", "arguments", "value"),
    [
        ("def f(a, b):\n    return a + b", "[1, 2]", 3),
        ("def f():\n    return 1, (2, 3)", "[]", [1, [2, 3]]),
        ("class Solution:\n    def f(self, n: int) -> List[int]:\n        return [n]", "[4]", [4]),
        ("def f():\n    return Counter('aab')", "[]", {"a": 2, "b": 1}),
        ("def f():\n    print('noise')\n    return collections.deque([1])[0]", "[]", 1),
        ("def f():\n    return pow(7, 20, 5)", "[]", 1),  # the built-in one: math's is not laid over it
        ("def f():\n    return __name__\nif __name__ == '__main__':\n    input()", "[]", "solution"),
        ("def f():\n    return 10**4000", "[]", 10**4000),
    ],
)
def test_a_function_returns_its_value_as_json(sandbox, source, arguments, value):
    execution = call(sandbox, source, arguments=arguments)
    assert execution.status == "finished", execution.error
    assert json.loads(execution.output) == value


def test_a_given_name_is_no_function_of_the_program_but_an_imported_one_is(sandbox):
    assert call(sandbox, "pass", "gcd", "[4, 6]").status == "no_function"
    assert call(sandbox, "from math import gcd", "gcd", "[4, 6]").output == "2"


def test_infinities_and_nan_are_written_as_python_reads_them(sandbox):
    assert call(sandbox, "def f():\n    return [float('nan'), inf, -inf]").output == "[NaN, Infinity, -Infinity]"


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        ("def g():\n    return 1", "no_function", ""),
        ("f = 3", "no_function", ""),
        ("def f():\n    return {1}", "runtime_error", "set is not JSON serializable"),
        ("def f():\n    a = []\n    a.append(a)\n    return a", "runtime_error", "Circular"),
        ("def f(a):\n    return 1", "runtime_error", "missing 1 required positional argument"),
        ("import os\ndef f():\n    os._exit(0)", "runtime_error", "ended before its function returned"),
        ("def f():\n    raise SystemExit(0)", "runtime_error", "exit status 1"),
        ("import os\ndef f():\n    os.write(3, b'V[1')\n    os._exit(0)", "runtime_error", "no JSON"),
        ("def f(:", "syntax_error", "SyntaxError"),
    ],
)
def test_a_function_without_a_value_says_why(sandbox, source, status, said):
    execution = call(sandbox, source)
    assert execution.status == status
    assert said in execution.error
    assert execution.output == ""


@pytest.mark.parametrize("arguments", ["{}", "[1", "3"])
def test_arguments_that_are_no_array_are_the_callers_mistake(sandbox, arguments):
    with pytest.raises(SandboxError, match=r"Job\.arguments must be a JSON array"):
        call(sandbox, "def f():\n    return 1", arguments=arguments)


def test_a_program_finds_nothing_of_the_one_before_it(sandbox):
    secret = "".join(("lantern", "-", "quay"))
    run(sandbox, f"open('left', 'w').write('{secret}')\nprint('{secret}')", stdin=secret)
    look = """
import ctypes, gc, os
print(sorted(os.listdir('.')), repr(open(0).read()))
wanted = b'lantern' + b'-quay'
print(any(wanted in found for found in gc.get_objects() if type(found) is bytes))
"""
    assert run(sandbox, look).output == "['main.py'] ''\nFalse\n"


def test_times_that_a_program_sets_do_not_reach_the_next_one(sandbox):
    mark = """
import os
for place in (".", "/dev/stdin", "/dev/stdout", "/dev/stderr"):
    try:
        os.utime(place, ns=(1234567, 7654321))
    except OSError:
        pass
"""
    assert run(sandbox, mark).status == "finished"
    look = """
import os
print([os.stat(place).st_atime_ns == 1234567 for place in (".", "/dev/stdin", "/dev/stdout", "/dev/stderr")])
"""
    assert run(sandbox, look).output == "[False, False, False, False]\n"


@pytest.mark.parametrize("level", ISOLATING)
def test_installed_packages_are_not_offered(level):
    sandbox = opened(level)
    source = """
import os, sys
here = os.path.dirname(os.__file__)
print([path for path in sys.path if path.endswith("-packages")])
try:
    print(os.listdir(here + "/site-packages"), open(here + "/site-packages/README.txt").read())
except OSError:
    print("[]")
"""
    lines = run(sandbox, source).output.split("\n")
    sandbox.close()
    assert lines[0] == "[]"
    assert lines[1].startswith("[]")
