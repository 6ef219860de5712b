"""Each limit has its own status, at every level that this host offers."""

import resource
from collections.abc import Iterator

import pytest

from paceline.sandbox.local import LocalSandbox
from paceline.sandbox.programs import Job, Limits
from tests.unit.sandbox.sandboxes import LEVELS, opened, run

SMALL = Limits(seconds=0.3, memory_mb=64, output_bytes=10_000)


@pytest.fixture(params=LEVELS, scope="module")
def sandbox(request) -> Iterator[LocalSandbox]:
    sandbox = opened(request.param)
    yield sandbox
    sandbox.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("while True: pass", "timeout"),
        ("import time\ntime.sleep(1000)", "timeout"),
        ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", "timeout"),
        ("import atexit\natexit.register(input)\nwhile True: pass", "timeout"),
        ("x = bytearray(10**9)", "memory"),
        ("x = []\nwhile True: x.append(bytes(10**6))", "memory"),
        ("print('x' * 10_001)", "output_limit"),
        ("while True: print('x' * 1000)", "output_limit"),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output_limit"),
        ("print('x' * 9_999)", "finished"),
        ("x = bytearray(50 << 20)", "finished"),
        ("open('file', 'wb').write(bytes(200_000))", "runtime_error"),
        ("open('file', 'wb').write(bytes(150_000))", "finished"),
    ],
)
def test_a_limit_has_its_status(sandbox, source, status):
    execution = run(sandbox, source, limits=SMALL)
    assert execution.status == status, execution.error


FULL_OF_OBJECTS = """
import mmap, resource
objects = [[] for _ in range(400_000)]
filling = []
for size in (1 << 20, 1 << 16):
    try:
        while True:
            filling.append(mmap.mmap(-1, size))
    except OSError:
        pass
del filling[-8:]
print(6)
"""


def test_a_program_that_ends_near_its_memory_limit_keeps_its_status(sandbox):
    execution = run(sandbox, FULL_OF_OBJECTS, limits=Limits(memory_mb=96))
    assert (execution.status, execution.output) == ("finished", "6\n"), execution.error


def test_output_up_to_the_limit_is_kept(sandbox):
    execution = run(sandbox, "while True: print('x' * 1000)", limits=SMALL)
    assert execution.output.startswith("x" * 1000)
    assert len(execution.output) == 10_000


def test_a_value_that_is_too_long_is_too_much_output(sandbox):
    job = Job(source="def f():\n    return 'x' * 10_000", function="f", limits=SMALL)
    assert sandbox.execute(job).status == "output_limit"


def test_only_the_end_of_standard_error_is_kept(sandbox):
    execution = run(sandbox, "import sys\nsys.stderr.write('a' * 9000 + 'the end')")
    assert execution.error.endswith("the end")
    assert len(execution.error) == 4096


def test_processor_time_is_told(sandbox):
    execution = run(sandbox, "import time\nwhile time.process_time() < 0.2: pass")
    assert 0.15 < execution.seconds < 10


def test_no_core_file_and_no_dump_by_a_program_of_the_hosts(sandbox):
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    allowed = 0 if hard == 0 else 1  # 1 byte keeps the kernel from starting the host's program for dumps, 0 does not
    execution = run(sandbox, "import resource\nprint(resource.getrlimit(resource.RLIMIT_CORE))")
    assert execution.output == f"({allowed}, {allowed})\n"


def test_a_deep_tree_and_barred_directories_do_not_stand_in_the_next_programs_way(sandbox):
    deep = """
import os
for _ in range(1000):
    os.mkdir("d")
    os.chdir("d")
"""
    assert run(sandbox, deep).status == "finished"
    assert run(sandbox, "import os\nos.mkdir('barred', 0)\nos.symlink('/', 'link')").status == "finished"
    assert run(sandbox, "import os\nprint(os.listdir('.'))").output == "['main.py']\n"
