"""Signals to stop: the first is remembered, the second interrupts, and so does the end of the grace."""

import os
import signal
import threading

import pytest

from paceline.runtime.signals import GraceOver, StopRequest


@pytest.mark.usefixtures("heeded_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_first_signal_is_remembered_and_a_second_one_interrupts(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.received == number.name
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_what_does_not_end_within_the_grace_is_interrupted():
    def step() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)

    with StopRequest(0.01), pytest.raises(GraceOver, match=r"SIGTERM: the step in hand did not end within 0\.01 s"):
        step()


def test_without_a_signal_there_is_no_limit_and_behind_the_block_none_is_left():
    with StopRequest(0.01) as stop:
        threading.Event().wait(0.05)
    assert stop.received is None
    with StopRequest(0.02) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(0.05)
    assert stop.received == "SIGTERM"


def test_a_hang_up_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.received is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
