"""No process and no file of a sandbox outlives the process that opened it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sandbox.host import Host, descendants

HOLDER = """
import sys, threading
from paceline.sandbox.programs import Job, Limits
from paceline.sandbox.levels import open_sandbox

sandbox = open_sandbox(sys.argv[1], slots=2)
for source in ("import time\\ntime.sleep(600)", "while True:\\n    pass"):
    job = Job(source=source, limits=Limits(seconds=600.0))
    threading.Thread(target=sandbox.execute, args=(job,), daemon=True).start()
print("running", flush=True)
sys.stdin.read()
"""


def eventually(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("sudden", [True, False], ids=["killed", "ended"])
def test_nothing_outlives_the_process_that_opened_the_sandbox(level, sudden):
    host, others = Host(), descendants()
    try:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, level], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout.readline() == "running\n"
        assert eventually(lambda: len(descendants() - others) >= 5)  # the holder; for each job a monitor and a zygote
        if sudden:
            holder.kill()
        holder.communicate()
        assert eventually(lambda: not descendants() - others)  # of the others one may end meanwhile
        assert eventually(lambda: not list(Path(host.scratch).iterdir()))
    finally:
        host.close()
