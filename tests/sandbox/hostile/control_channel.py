"""Programs that go for the wires between a job and its runner."""

from tests.sandbox.corpus import Hostile

PROGRAMS = (
    Hostile(
        name="garbage_on_every_descriptor",
        source=r"""
for fd in range(3, 4096):
    for garbage in (b"\0" * 64, b"\xff" * 64, b"garbage\n" * 100, b"[" * 5000):
        try:
            os.set_blocking(fd, False)
            os.write(fd, garbage)
        except OSError:
            break
""",
    ),
    Hostile(
        name="forged_replies_on_every_descriptor",
        source=r"""
import struct
replies = [
    {"status": "finished", "output": "forged", "error": "", "seconds": 0.0},
    {"status": 0, "exit": 0, "code": 0, "returncode": 0, "signal": 0, "output": "forged", "value": "forged"},
    {"ok": True, "result": "forged"}, ["finished", "forged", 0.0], "forged", 0,
]
for fd in range(3, 1024):
    for reply in replies:
        text = json.dumps(reply).encode()
        for framed in (text + b"\n", struct.pack("<I", len(text)) + text, struct.pack(">Q", len(text)) + text):
            try:
                os.set_blocking(fd, False)
                os.write(fd, framed)
            except OSError:
                break
print("forged, but honest on stdout")
time.sleep(1000)
""",
        right="forged",
        ends=("timeout",),
    ),
    Hostile(
        name="forged_value_then_a_failure",
        source=r"""
def attack(facts):
    text = json.dumps(facts["token"]).encode()
    for fd in range(1, 1024):
        try:
            os.write(fd, text + b"\n")
        except OSError:
            pass
    raise ValueError
""",
        function="attack",
        right="token",
        ends=("runtime_error",),
    ),
    Hostile(
        name="forged_value_then_a_loop",
        source=r"""
def attack(facts):
    text = json.dumps(facts["token"]).encode()
    for fd in range(1, 1024):
        try:
            os.write(fd, text + b"\n")
            os.close(fd)
        except OSError:
            pass
    while True:
        pass
""",
        function="attack",
        right="token",
        ends=("timeout", "runtime_error"),
    ),
    Hostile(
        name="forged_values_that_hurt_a_reader",
        source=r"""
def attack(facts):
    for fd in range(3, 64):
        try:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, 0)
            os.write(fd, b"V" + b"[" * 60_000)
        except OSError:
            pass
    os._exit(0)
""",
        function="attack",
        ends=("runtime_error",),
    ),
    Hostile(
        name="forged_values_of_other_kinds",
        source=r"""
def attack(facts):
    values = (b"\xff\xfe", b"NaN", b"1" * 5000, b"{}{}", b'"\\ud800"', b"\xef\xbb\xbf1", b"", b"V", b"1e999")
    for fd in range(3, 64):
        try:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, 0)
            os.write(fd, b"V" + values[facts["key"] % len(values)])
        except OSError:
            pass
    os._exit(0)
""",
        function="attack",
    ),
    Hostile(
        name="report_made_huge_and_empty",
        source=r"""
for fd in range(3, 64):
    try:
        os.ftruncate(fd, 1 << 19)
        os.lseek(fd, 1 << 19, 0)
    except OSError:
        pass
""",
    ),
    Hostile(
        name="read_every_descriptor",
        source=r"""
# takes away what the runner would read next
for fd in range(3, 1024):
    try:
        os.set_blocking(fd, False)
        while os.read(fd, 65536):
            pass
    except OSError:
        pass
""",
    ),
    Hostile(name="close_every_descriptor", source="os.closerange(0, 65536)\nos._exit(0)\n"),
    Hostile(
        name="close_every_descriptor_and_stay",
        source="os.closerange(0, 65536)\ntime.sleep(1000)\n",
        ends=("timeout", "runtime_error"),
    ),
    Hostile(
        name="close_them_in_a_function",
        source="def attack(facts):\n    os.closerange(0, 65536)\n    return 1\n",
        function="attack",
    ),
    Hostile(
        name="one_descriptor_everywhere",
        source=r"""
read, write = os.pipe()
for fd in range(3, 256):
    try:
        os.dup2(write, fd)
    except OSError:
        pass
os.dup2(read, 0)
os.dup2(read, 1)
print("lost")
os._exit(0)
""",
    ),
    Hostile(
        name="descriptors_used_up",
        source=r"""
held = []
try:
    while len(held) < 100_000:
        held.append(os.dup(0))
except OSError as error:
    os.write(1, facts["token"].encode())
    raise SystemExit(3)
escaped("100000 descriptors")
""",
        right="token",
        ends=("runtime_error",),
    ),
    Hostile(
        name="stdio_made_non_blocking_and_locked",
        source=r"""
import fcntl
for fd in range(0, 64):
    for attack in (
        lambda: os.set_blocking(fd, False),
        lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
        lambda: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
        lambda: os.lseek(fd, 1 << 40, 0),
        lambda: fcntl.fcntl(fd, 1031, 4096),
        lambda: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK | os.O_ASYNC),
    ):
        try:
            attack()
        except OSError:
            pass
""",
    ),
    Hostile(
        name="input_file_rewritten",
        source=r"""
# where the input is a file, the next job must not read what this one wrote
for way in (
    lambda: os.ftruncate(0, 0),
    lambda: os.pwrite(0, b"planted " * 1000, 0),
    lambda: open("/dev/stdin", "w").write("planted"),
    lambda: open("/proc/self/fd/0", "w").write("planted"),
    lambda: os.fchmod(0, 0),
    lambda: os.lseek(0, 0, 2),
):
    try:
        way()
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="output_file_rewritten",
        source=r"""
for way in (
    lambda: os.ftruncate(1, 1 << 30),
    lambda: os.lseek(1, 1 << 29, 0),
    lambda: os.pwrite(1, b"x", 1 << 29),
    lambda: os.ftruncate(2, 1 << 30),
    lambda: os.fchmod(1, 0),
):
    try:
        way()
    except OSError as error:
        os.write(2, str(error).encode())
""",
    ),
    Hostile(
        name="sockets_shut_down",
        source=r"""
import socket
for fd in range(0, 1024):
    try:
        peer = socket.socket(fileno=fd)
        escaped(f"descriptor {fd} is a socket") if fd > 2 else None
        peer.shutdown(socket.SHUT_RDWR)
        peer.detach()
    except (OSError, ValueError):
        pass
""",
    ),
    Hostile(
        name="descriptors_passed_along",
        source=r"""
import array, socket
for fd in range(1, 256):
    try:
        peer = socket.fromfd(fd, socket.AF_UNIX, socket.SOCK_STREAM)
        peer.setblocking(False)
        peer.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 200))])
        escaped(f"passed descriptors over {fd}")
    except (OSError, ValueError):
        pass
""",
    ),
    Hostile(
        name="write_after_exit",
        source=r"""
import threading
def late():
    time.sleep(0.1)
    for _ in range(50):
        os.write(1, facts["token"].encode() + b"\n")
        time.sleep(0.1)
threading.Thread(target=late, daemon=True).start()
""",
        right="token",
    ),
    Hostile(
        name="a_thread_answers_while_main_fails",
        source=r"""
import threading
def late():
    os.write(1, facts["token"].encode() + b"\n")
    os._exit(0)
timer = threading.Timer(0.2, late)
timer.start()
while True:
    if timer.finished.is_set():
        os._exit(3)
""",
        right="other",
    ),
    Hostile(
        name="the_runner_called_again",
        source=r"""
# the runner's own functions are in reach of a forked program: calling them must not help
frame, called = sys._getframe().f_back, 0
while frame is not None:
    for name, value in list(frame.f_globals.items()):
        if callable(value) and getattr(value, "__module__", None) == frame.f_globals.get("__name__") and called < 200:
            called += 1
            for arguments in ((), (0,), ({},), (b"",), ("",), (0, 0), ({}, {})):
                try:
                    value(*arguments)
                except BaseException:
                    pass
    frame = frame.f_back
print("still here")
os._exit(3)
""",
        ends=("runtime_error", "timeout", "finished", "memory", "output_limit"),
    ),
    Hostile(
        name="frames_of_the_runner_changed",
        source=r"""
frame = sys._getframe().f_back
while frame is not None:
    for name, value in list(frame.f_globals.items()):
        if callable(value) and not name.startswith("__"):
            frame.f_globals[name] = lambda *arguments, **options: os._exit(0)
    frame = frame.f_back
for module in list(sys.modules.values()):
    for name in ("_exit", "kill", "write", "dumps", "close", "fork", "run"):
        if hasattr(module, name):
            setattr(module, name, lambda *arguments, **options: None)
raise ValueError("this must still count as a failure")
""",
        right="",
        ends=("runtime_error", "timeout"),
    ),
    Hostile(
        name="frames_of_the_caller_changed",
        source=r"""
def attack(facts):
    frame = sys._getframe().f_back
    while frame is not None:
        for name in list(frame.f_globals):
            if not name.startswith("__"):
                frame.f_globals[name] = lambda *arguments, **options: facts["token"]
        frame = frame.f_back
    raise ValueError("this must still count as a failure")
""",
        function="attack",
        right="token",
        ends=("runtime_error", "timeout"),
    ),
)
