"""Programs that write without end."""

from tests.sandbox.corpus import Hostile

PROGRAMS = (
    Hostile(name="print_loop", source="while True:\n    print('x' * 100)\n", bare=True, ends=("output_limit",)),
    Hostile(
        name="write_loop",
        source="import os\nwhile True:\n    os.write(1, bytes(65536))\n",
        bare=True,
        ends=("output_limit",),
    ),
    Hostile(
        name="write_loop_that_ignores_signals",
        source=r"""
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    try:
        os.write(1, bytes(65536))
    except OSError:
        pass
""",
        ends=("output_limit", "timeout"),
    ),
    Hostile(name="one_giant_line", source="print('y' * 30_000_000)\n", bare=True, ends=("output_limit", "memory")),
    Hostile(
        name="a_little_too_much",
        source="import sys\nsys.stdout.write('z' * 65537)\n",
        bare=True,
        right="z" * 65536,
        ends=("output_limit",),
    ),
    Hostile(
        name="stderr_loop",
        source="import sys\nprint('done')\nfor _ in range(10**9):\n    sys.stderr.write('e' * 10000)\n",
        bare=True,
        ends=("output_limit", "timeout", "runtime_error"),
    ),
    Hostile(
        name="stderr_by_number",
        source="import os\nwhile True:\n    os.write(2, bytes(1 << 20))\n",
        bare=True,
        ends=("output_limit", "timeout", "runtime_error"),
    ),
    Hostile(
        name="right_answer_then_a_flood",
        source="print(facts['token'], flush=True)\nwhile True:\n    print(' ' * 1000)\n",
        right="token",
        ends=("output_limit",),
    ),
    Hostile(
        name="flood_at_exit",
        source=r"""
import atexit
print(facts["token"], flush=True)
def flood():
    while True:
        print(" " * 1000)
atexit.register(flood)
""",
        right="token",
        ends=("output_limit",),
    ),
    Hostile(
        name="flood_from_a_function",
        source="def attack(facts):\n    while True:\n        print('x' * 1000)\n",
        function="attack",
        ends=("output_limit", "timeout", "memory"),
    ),
    Hostile(
        name="huge_value_from_a_function",
        source="def attack(facts):\n    return 'x' * 3_000_000\n",
        function="attack",
        ends=("output_limit",),
    ),
    Hostile(
        name="write_to_every_descriptor",
        source=r"""
for fd in range(3, 1024):
    try:
        for _ in range(100):
            os.set_blocking(fd, False)
            os.write(fd, bytes(65536))
    except OSError:
        pass
""",
    ),
    Hostile(
        name="splice_a_flood_into_stdout",
        source=r"""
read, write = os.pipe()
moved = 0
try:
    for _ in range(10**6):
        os.write(write, bytes(65536))
        moved += os.splice(read, 1, 65536)
except OSError as error:
    print(error)
with open("zeros", "wb") as file:
    file.write(bytes(500_000))
with open("zeros", "rb") as file:
    while True:
        os.lseek(file.fileno(), 0, 0)
        os.sendfile(1, file.fileno(), 0, 500_000)
""",
        ends=("output_limit", "timeout", "runtime_error"),
    ),
    Hostile(
        name="traceback_without_end",
        source=r"""
class Loud(Exception):
    def __str__(self):
        return "e" * 50_000_000
raise Loud
""",
        bare=True,
        ends=("runtime_error", "memory", "output_limit"),
    ),
    Hostile(
        name="terminal_control_bytes",
        source="import os\nos.write(1, bytes(range(256)) * 16)\nos.write(2, bytes(range(256)) * 16)\n",
        bare=True,
    ),
)
