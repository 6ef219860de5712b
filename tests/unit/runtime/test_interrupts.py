"""A thread is interrupted by those that watch it, each once and in turn, and by signals to stop a run."""

import os
import signal
import threading

import pytest

from paceline.runtime.interrupts import SIGNAL, GraceOver, Interrupt, StopRequest, interrupted_after


class Outer(Exception):
    """What the outer one wants to raise."""


class Inner(Exception):
    """What the inner one wants to raise."""


def test_of_two_that_want_to_raise_the_inner_does_and_then_the_outer_each_once():
    outer, inner, error = Interrupt(), Interrupt(), Outer()
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
    outer.open()
    inner.open()
    outer.send(error)
    inner.send(Inner())
    with pytest.raises(Inner):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
    with pytest.raises(Outer):
        outer.send(error)
    outer.send(error)
    inner.close()
    outer.close()


def test_who_does_not_stop_is_ended_and_who_is_on_the_way_out_is_left_alone():
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
    forced, interrupt = [], Interrupt()
    interrupt.open()
    interrupt.insist(error := Outer(), seconds=0.1, force=forced.append)
    assert forced == [error]
    interrupt.over.set()
    interrupt.insist(Inner(), seconds=0.1, force=forced.append)
    interrupt.close()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
    assert forced == [error]


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


@pytest.mark.usefixtures("heeded_signals")
def test_a_first_signal_is_told_at_once_though_what_is_under_way_holds_a_lock():
    told, lock, heard = list[str](), threading.Lock(), threading.Event()

    def tell(name: str) -> None:
        with lock:
            told.append(name)
        heard.set()

    with StopRequest(tell=tell) as stop:
        with lock:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.received == "SIGINT"
        assert heard.wait(60)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert told == ["SIGINT"]


@pytest.mark.usefixtures("heeded_signals")
def test_what_does_not_end_within_the_grace_is_interrupted():
    def step() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)

    with StopRequest(0.01), pytest.raises(GraceOver, match=r"SIGTERM: the step in hand did not end within 0\.01 s"):
        step()


@pytest.mark.usefixtures("heeded_signals")
def test_without_a_signal_there_is_no_limit_and_behind_the_block_none_is_left():
    with StopRequest(0.01) as stop:
        threading.Event().wait(0.05)
    assert stop.received is None
    with StopRequest(3600) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == "SIGTERM"
        threads = [one for one in threading.enumerate() if one.name == "grace"]
    assert threads
    for one in threads:
        one.join(60)
        assert not one.is_alive()


def test_a_hang_up_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.received is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heeded_signals")
def test_a_signal_that_the_program_handles_itself_stays_the_programs_and_the_others_are_taken():
    got = []
    signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))  # as a job does that its scheduler ends
    with StopRequest() as outer, StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert (got, stop.received) == ([signal.SIGTERM], None)
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.received, outer.received) == ("SIGINT", None)


@pytest.mark.usefixtures("heeded_signals")
def test_a_forked_child_has_the_programs_own_handlers():
    reader, writer = os.pipe()
    with StopRequest(), StopRequest():
        child = os.fork()
        if child == 0:
            names = [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
            os.write(writer, "\n".join(names).encode())
            os._exit(0)
        os.waitpid(child, 0)
    got = os.read(reader, 1000).decode().splitlines()
    assert got == [str(signal.SIG_DFL), str(signal.getsignal(signal.SIGINT))]


@pytest.mark.long
@pytest.mark.usefixtures("heeded_signals")
def test_a_signal_that_a_child_gets_at_once_is_its_own():
    with StopRequest() as request:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                threading.Event().wait(60)
                os._exit(0)
            os.kill(child, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert request.received is None


@pytest.mark.long
def test_late_code_that_swallows_the_first_interrupt_gets_another():
    swallowed = []

    def late() -> None:
        while True:
            try:
                threading.Event().wait(0.05)
            except Outer as error:
                swallowed.append(error)
                if len(swallowed) == 2:
                    return

    with pytest.raises(Outer), interrupted_after(0.1, Outer):
        late()
    assert len(swallowed) == 2
