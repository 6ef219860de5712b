"""Interpreters: variables are kept from code to code, limits hold for each piece, nothing stays when they end."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.errors import SandboxError
from paceline.sandbox.interpreters import SOURCE_BYTES, LocalInterpreter
from paceline.sandbox.local import LocalSandbox
from paceline.sandbox.programs import Limits
from tests.unit.sandbox import sandboxes
from tests.unit.sandbox.sandboxes import LEVELS, opened, run, strongest
from tests.unit.sandbox.test_processes import kill_all

LIMITS = Limits(seconds=1, memory_mb=256)


@pytest.fixture(params=LEVELS)
def sandbox(request) -> Iterator[LocalSandbox]:
    sandbox = opened(request.param, slots=1)
    yield sandbox
    sandbox.close()


@pytest.fixture
def interpreter(sandbox) -> Iterator[LocalInterpreter]:
    interpreter = started(sandbox)
    yield interpreter
    interpreter.close()


def started(sandbox: LocalSandbox, *, seed: int = 0, shown_bytes: int = 1000, limits: Limits = LIMITS):
    return LocalInterpreter(sandbox, seed=seed, limits=limits, shown_bytes=shown_bytes)


def written(interpreter: LocalInterpreter, *sources: str) -> str:
    return "".join(interpreter.run(source).output for source in sources)


def test_variables_functions_and_files_are_kept(interpreter):
    assert written(interpreter, "x = 3\ndef double(n): return 2 * n", "open('a', 'w').write('kept')") == "4\n"
    assert written(interpreter, "double(x)", "open('a').read()") == "6\n'kept'\n"


def test_the_value_of_a_last_expression_is_shown_behind_what_was_printed(interpreter):
    assert (
        written(interpreter, "import sys\nprint('a'); print('b', file=sys.stderr); print('c'); 1 + 1") == "a\nb\nc\n2\n"
    )
    assert written(interpreter, "None", "y = 1", "[1, 2]; ") == "[1, 2]\n"


def test_an_exception_is_shown_without_our_frames_and_the_variables_stay(interpreter):
    result = interpreter.run("x = 1\ndef f():\n    return x / 0\nprint('so far')\nf()")
    assert result.failed
    assert result.output.startswith(
        'so far\nTraceback (most recent call last):\n  File "<call 1>", line 5, in <module>\n'
    )
    assert "    return x / 0\n" in result.output
    assert result.output.endswith("ZeroDivisionError: division by zero\n")
    assert written(interpreter, "x") == "1\n"


def test_code_that_is_none_says_where(interpreter):
    result = interpreter.run("x = (1,\n")
    assert result.failed
    assert result.output == "  File \"<call 1>\", line 1\n    x = (1,\n        ^\nSyntaxError: '(' was never closed\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("source", "failed", "output"),
    [("exit()", False, ""), ("exit(0)", False, ""), ("exit(2)", True, ""), ("exit('enough')", True, "enough\n")],
)
def test_leaving_ends_the_code_alone(interpreter, source, failed, output):
    result = interpreter.run(f"x = 5\n{source}\nx = 6")
    assert (result.failed, result.output, result.ended) == (failed, output, None)
    assert written(interpreter, "x") == "5\n"


@pytest.mark.long
def test_code_over_its_processor_time_ends_the_interpreter_and_the_next_is_new(interpreter):
    interpreter.run("x = 1")
    result = interpreter.run("print('lost')\nwhile True: pass")
    assert (result.output, result.ended) == ("", "stopped after 1 s of processor time")
    assert 1 <= result.seconds < LIMITS.wall_seconds
    assert "NameError: name 'x' is not defined" in written(interpreter, "x")


@pytest.mark.long
def test_the_processor_time_of_each_piece_is_its_own(interpreter):
    busy = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    for _ in range(4):
        result = interpreter.run(busy)
        assert result.ended is None
        assert 0.3 < result.seconds < 0.8


@pytest.mark.long
def test_code_that_sleeps_gives_its_slot_to_another_and_is_stopped_by_the_clock(sandbox):
    interpreter, other = started(sandbox, limits=Limits(seconds=0.2)), started(sandbox)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(interpreter.run, "import threading\nthreading.Event().wait()")
        assert written(other, "1") == "1\n"
        assert waiting.result().ended == "stopped after 3.2 s, asleep"
    interpreter.close()
    other.close()


def test_threads_do_not_run_between_two_pieces(interpreter):
    interpreter.run("import threading, time\nn = 0\ndef count():\n    global n\n    while True: n += 1; time.sleep(0)")
    interpreter.run("threading.Thread(target=count, daemon=True).start(); time.sleep(0.05)")
    before, after = written(interpreter, "n"), written(interpreter, "n")
    assert int(after) - int(before) < 20_000  # it counts that far in a few milliseconds


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("source", "ended"),
    [
        ("import os\nos._exit(4)", "ended with exit status 4"),
        ("import ctypes\nctypes.string_at(0)", "ended by SIGSEGV"),
        ("import os\nos.write(3, b'x' * 20)", "ended: the code wrote into its descriptor 3"),
        ("import os\nos.close(3)", "ended with exit status 70"),
        ("import os\nos.close(1)", "ended with exit status 70"),
    ],
)
def test_code_that_breaks_the_interpreter_says_so_and_the_next_is_new(interpreter, source, ended):
    result = interpreter.run(f"x = 1\n{source}")
    assert (result.output, result.ended) == ("", ended)
    assert "NameError" in written(interpreter, "x")
    assert written(interpreter, "x = 2", "x") == "2\n"


def test_memory_is_limited_and_running_out_of_it_is_an_exception(interpreter):
    assert written(interpreter, "x = bytearray(10**9)").endswith("MemoryError\n")
    assert written(interpreter, "1") == "1\n"


def test_of_a_long_output_beginning_and_end_are_kept(sandbox):
    interpreter = started(sandbox, shown_bytes=10)
    assert written(interpreter, "print('a' * 99, 'end')") == "aaaaa\n[... 94 bytes left out ...]\n end\n"
    assert written(interpreter, "print('0123456789', end='')") == "0123456789"
    interpreter.close()


def test_random_numbers_follow_from_the_seed(sandbox):
    def drawn(seed: int) -> str:
        interpreter = started(sandbox, seed=seed)
        numbers = written(interpreter, "import random\nrandom.random()", "random.random()")
        interpreter.close()
        return numbers

    assert drawn(3) == drawn(3) != drawn(4)


def test_longer_code_than_fits_into_a_channel_is_refused(interpreter):
    assert interpreter.run(f"#{'x' * (SOURCE_BYTES - 1)}").output == ""
    with pytest.raises(ValueError, match="at most 65536 bytes"):
        interpreter.run(f"#{'x' * SOURCE_BYTES}")


def test_interpreters_beyond_the_slots_keep_their_variables_apart(sandbox):
    several = [started(sandbox) for _ in range(5)]
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda pair: pair[1].run(f"x = {pair[0]}\nopen('own', 'w').write(str(x))"), enumerate(several)))
        found = list(pool.map(lambda one: written(one, "x, open('own').read()"), several))
    assert found == [f"({number}, '{number}')\n" for number in range(5)]
    for one in several:
        one.close()


def test_nothing_of_an_interpreter_reaches_the_next_program(sandbox):
    interpreter = started(sandbox)
    interpreter.run("x = 1\nopen('left', 'w').write('x')")
    zygotes = sandboxes.children()
    interpreter.close()
    execution = run(sandbox, "import os\nprint(os.listdir('.'), 'x' in globals())")
    assert execution.output == "['main.py'] False\n"
    assert sandboxes.children() < zygotes  # the same zygote, without the interpreter


def test_an_interpreter_that_is_closed_runs_no_more(interpreter):
    interpreter.run("x = 1")
    interpreter.close()
    interpreter.close()
    with pytest.raises(SandboxError, match="the interpreter is closed"):
        interpreter.run("x")


def test_closing_ends_what_an_interpreter_runs(sandbox):
    interpreter = started(sandbox, limits=Limits(seconds=100))
    interpreter.run("x = 1")
    with ThreadPoolExecutor(1) as pool:
        asleep = threading.Event()
        sandbox.slot = _telling(sandbox.slot, asleep)  # type: ignore[method-assign]
        waiting = pool.submit(interpreter.run, "import threading\nthreading.Event().wait()")
        assert asleep.wait(30)
        interpreter.close()
        with pytest.raises(SandboxError, match="the sandbox failed while it ran code"):
            waiting.result()
    assert run(sandbox, "print(1)").output == "1\n"


def _telling(slot, asleep: threading.Event):
    @contextlib.contextmanager
    def told(on_sleep=lambda: None, waiting=contextlib.nullcontext):
        with slot(asleep.set, waiting) as go_to_bed:
            yield go_to_bed

    return told


def test_a_killed_sandbox_is_an_error_and_not_an_outcome():
    sandbox = LocalSandbox(strongest(), 1)
    interpreter = started(sandbox)
    interpreter.run("x = 1")
    kill_all()
    with pytest.raises(SandboxError, match="the sandbox failed while it ran code"):
        interpreter.run("x")
    interpreter.close()
    sandbox.close()


TRAINER = """
import sys
from paceline.sandbox.interpreters import LocalInterpreter
from paceline.sandbox.local import LocalSandbox
from paceline.sandbox.programs import Limits
sandbox = LocalSandbox(sys.argv[1], 1)
interpreters = [LocalInterpreter(sandbox, seed=0, limits=Limits(), shown_bytes=10) for _ in range(2)]
for interpreter in interpreters: interpreter.run("x = 1")
print("running", flush=True)
interpreters[0].run("import threading; threading.Event().wait()")
"""


@pytest.mark.parametrize("level", LEVELS)
def test_interpreters_die_with_a_trainer_that_is_killed(level):
    opened(level).close()
    command = [sys.executable, "-c", TRAINER, level]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "running\n"
        processes = [os.pidfd_open(pid) for pid in sandboxes.children(trainer.pid)]
        assert len(processes) == 6  # a monitor, a zygote and an interpreter each
        trainer.send_signal(signal.SIGKILL)
        for descriptor in processes:
            assert select.select([descriptor], [], [], 30)[0]
            os.close(descriptor)
