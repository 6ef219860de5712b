"""Programs that use signals to live longer, or to stop others from ending them."""

from tests.sandbox.corpus import Hostile

PROGRAMS = (
    Hostile(
        name="every_signal_ignored",
        source=r"""
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
print(facts["token"], flush=True)
while True:
    pass
""",
        right="token",
        ends=("timeout",),
    ),
    Hostile(
        name="handlers_that_loop",
        source=r"""
import signal
def stay(*details):
    while True:
        pass
for number in range(1, 65):
    try:
        signal.signal(number, stay)
    except (OSError, ValueError):
        pass
while True:
    pass
""",
        ends=("timeout",),
    ),
    Hostile(
        name="answer_when_the_time_is_up",
        source=r"""
import signal
def answer(*details):
    os.write(1, facts["token"].encode())
    os._exit(0)
for number in (signal.SIGXCPU, signal.SIGTERM, signal.SIGALRM, signal.SIGINT, signal.SIGHUP, signal.SIGPROF):
    signal.signal(number, answer)
while True:
    pass
""",
        right="token",
        ends=("timeout",),
    ),
    Hostile(
        name="stop_itself",
        source=r"""
import signal
print(facts["token"], flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
""",
        right="token",
        ends=("timeout", "runtime_error"),
    ),
    Hostile(
        name="stop_itself_over_and_over",
        source=r"""
import signal, threading
def stop():
    while True:
        os.kill(os.getpid(), signal.SIGTSTP)
threading.Thread(target=stop).start()
while True:
    os.kill(os.getpid(), signal.SIGSTOP)
""",
        ends=("timeout", "runtime_error"),
    ),
    Hostile(
        name="kill_itself_after_the_answer",
        source="print(facts['token'], flush=True)\nos.kill(os.getpid(), 9)\n",
        right="token",
        ends=("runtime_error", "memory"),
    ),
    Hostile(
        name="end_itself_with_every_signal",
        source=r"""
import signal
print(facts["token"], flush=True)
for number in (signal.SIGTERM, signal.SIGXCPU, signal.SIGKILL):
    signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
    os.kill(os.getpid(), number)
""",
        right="token",
        ends=("runtime_error", "timeout"),
    ),
    Hostile(
        name="signal_the_whole_group",
        source=r"""
import signal
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
    try:
        os.kill(0, number)
    except OSError as error:
        print(error)
    try:
        os.killpg(os.getpgid(os.getppid()), number)
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="timers_left_behind",
        source=r"""
import signal
for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
    signal.setitimer(which, 0.3, 0.3)
signal.alarm(1)
os._exit(0)
""",
    ),
    Hostile(
        name="signals_by_owned_descriptors",
        source=r"""
import fcntl, signal
# a descriptor can be told to send any signal to any process when it becomes readable
for victim in (os.getppid(), facts["bystander"], facts["harness"], 1):
    for number in (signal.SIGKILL, signal.SIGINT):
        try:
            read, write = os.pipe()
            fcntl.fcntl(read, fcntl.F_SETOWN, victim)
            fcntl.fcntl(read, 10, number)
            fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
            os.write(write, b"x")
        except OSError as error:
            print(error)
""",
    ),
    Hostile(
        name="death_signal_and_subreaper",
        source=r"""
for option, value in ((1, 9), (36, 1), (0x59616D61, facts["harness"]), (4, 1), (23, 1), (15, b"init")):
    libc.prctl(option, value, 0, 0, 0)
""",
    ),
    Hostile(
        name="timer_that_signals_another_thread",
        source=r"""
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_long), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("tid", ctypes.c_int),
                ("pad", ctypes.c_char * 64)]
for victim in (os.getppid(), facts["bystander"], facts["harness"]):
    timer = ctypes.c_int()
    event = ctypes.byref(Event(0, 9, 4, victim))
    attempt(f"timer for {victim}", syscall, "timer_create", 1, event, ctypes.byref(timer))
""",
    ),
)
