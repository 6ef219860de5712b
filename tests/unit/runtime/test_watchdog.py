"""A process in which nothing happens any more: what is written down, and how it ends."""

import signal
import subprocess
import sys
import threading

import pytest

from paceline.errors import TrainingError
from paceline.runtime.activity import Activity
from paceline.runtime.interrupts import SIGNAL
from paceline.runtime.watchdog import Watchdog, write_stacks

SOON = 30.0
"""Seconds that a test waits for what comes within one."""


def test_the_main_thread_comes_first_however_many_others_there_are(tmp_path):
    over = threading.Event()
    others = [threading.Thread(target=over.wait, daemon=True) for _ in range(120)]
    for other in others:
        other.start()
    write_stacks(tmp_path / "stacks")
    over.set()
    assert "test_the_main_thread_comes_first" in (tmp_path / "stacks").read_text()


def test_a_main_thread_that_waits_for_nothing_is_woken_and_the_report_says_who_did_what_last(tmp_path):
    now = [100.0]
    activity = Activity(clock=lambda: now[0])
    activity.beat("producer 0", "gave its `sample`")
    activity.queues["steps produced and not taken"] = lambda: 3
    activity.stack_dumps["producer 0"] = lambda folder: (folder / "producer-0.txt").write_text("its threads")
    now[0] = 112.5
    with (
        pytest.raises(TrainingError, match=r"for --step-timeout 0\.2 s, at last run: begins; .*stuck/report\.txt has"),
        Watchdog(tmp_path / "stuck", limit=0.2, activity=activity),
    ):
        threading.Event().wait(SOON)
    report = (tmp_path / "stuck" / "report.txt").read_text()
    assert "run: begins, 0.0 s ago\nproducer 0: gave its `sample`, 12.5 s ago\n" in report
    assert "steps produced and not taken: 3" in report
    assert "test_a_main_thread_that_waits_for_nothing" in report  # where the main thread stood
    assert (tmp_path / "stuck" / "producer-0.txt").read_text() == "its threads"


@pytest.mark.long
def test_a_process_that_makes_progress_is_left_alone_however_long_it_takes(tmp_path):
    activity, idle = Activity(), threading.Event()
    with Watchdog(tmp_path / "stuck", limit=1.0, activity=activity):
        for number in range(15):
            activity.beat("learner", f"pass {number}")
            idle.wait(0.1)
    assert not (tmp_path / "stuck").exists()


@pytest.mark.long
def test_a_main_thread_that_does_not_come_out_is_ended_with_the_reason(tmp_path):
    ended, reasons = threading.Event(), []

    def force(verdict: TrainingError) -> None:
        reasons.append(str(verdict))
        ended.set()

    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})  # as deaf as a call into C
    with Watchdog(tmp_path, limit=0.1, activity=Activity(), grace=1.0, force=force):
        assert ended.wait(SOON)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
    assert reasons[0].startswith("nothing has happened for --step-timeout 0.1 s")


HOLDS_THE_LOCK = """
import ctypes, pathlib, sys
from paceline.runtime.watchdog import Watchdog
with Watchdog(pathlib.Path(sys.argv[1]), limit=0.5, grace=0.5):
    ctypes.PyDLL(None).sleep(60)  # in C, with the interpreter's lock: no other thread of Python runs
"""


@pytest.mark.long
def test_a_process_that_hangs_with_the_interpreters_lock_is_ended_with_its_stacks_on_stderr(tmp_path):
    command = [sys.executable, "-c", HOLDS_THE_LOCK, str(tmp_path / "stuck")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
    assert found.returncode == 1
    assert "<module>" in found.stderr.partition("most recent call first")[2]
