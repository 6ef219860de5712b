"""Right programs that read and write in odd ways."""

from tests.sandbox.corpus import Right

NUMBERS = "3\n1 2 3\n"

PROGRAMS = (
    Right(
        name="windows_line_ends_in_the_input",
        source="n = int(input())\nprint([input().strip() for _ in range(n)])\n",
        stdin="2\r\na\r\nb\r\n",
        output="['a', 'b']",
    ),
    Right(
        name="carriage_returns_are_kept",
        source="import sys\nprint(len(sys.stdin.buffer.read()))\n",
        stdin="a\r\nb\r\n",
        output="6",
    ),
    Right(name="open_zero", source="print(sum(map(int, open(0).read().split())))\n", stdin="1 2\n3\n", output="6"),
    Right(
        name="open_zero_in_lines",
        source="for line in open(0, 'rb'):\n    print(line)\n",
        stdin="a\nb",
        output="b'a\\n'\nb'b'",
    ),
    Right(
        name="stdin_buffer",
        source="import sys\nr = sys.stdin.buffer.readline\nn = int(r())\nprint(sum(map(int, r().split())) + n)\n",
        stdin=NUMBERS,
        output="9",
    ),
    Right(
        name="os_read",
        source="import os\ndata = os.read(0, os.fstat(0).st_size or 1 << 20)\nprint(sum(map(int, data.split())))\n",
        stdin=NUMBERS,
        output="9",
    ),
    Right(
        name="os_read_until_the_end",
        source=r"""
import os
d = b''
while c := os.read(0, 7):
    d += c
print(len(d))
""",
        stdin="x" * 100_000,
        output="100000",
    ),
    Right(
        name="input_until_end_of_file",
        source=r"""
total = 0
while True:
    try:
        total += int(input())
    except EOFError:
        break
print(total)
""",
        stdin="1\n2\n3",
        output="6",
    ),
    Right(
        name="file_input",
        source="import fileinput\nprint(sum(int(line) for line in fileinput.input()))\n",
        stdin="1\n2\n",
        output="3",
    ),
    Right(
        name="stdin_as_a_path",
        source="with open('/dev/stdin') as f:\n    print(f.read().upper())\n",
        stdin="ab",
        output="AB",
    ),
    Right(name="input_with_a_prompt", source="n = input('')\nprint(n)\n", stdin="7", output="7"),
    Right(
        name="interleaved_readers",
        source=r"""
import sys
a = input()
b = sys.stdin.readline()
c = sys.stdin.read()
print(a, b, c)
""",
        stdin="1\n2\n3",
        output="1 2\n 3",
    ),
    Right(name="empty_input", source="import sys\nprint(repr(sys.stdin.read()))\n", output="''"),
    Right(
        name="output_redirected",
        source=r"""
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()) as held:
    print("hidden")
print(held.getvalue().strip()[::-1])
""",
        output="neddih",
    ),
    Right(
        name="stdout_replaced_by_a_buffer",
        source="import io, sys\nsys.stdout = out = io.StringIO()\nprint('x')\nsys.__stdout__.write(out.getvalue())\n",
        output="x",
    ),
    Right(
        name="stdout_replaced_by_a_plain_class",
        source=r"""
import sys
class Both:
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        self.stream.write(text.upper())
    def flush(self):
        self.stream.flush()
sys.stdout = Both(sys.stdout)
print("a")
""",
        output="A",
    ),
    Right(
        name="stdout_by_descriptor",
        source=r"""
import os
out = os.fdopen(1, 'w')
out.write('kept')
""",
        output="kept",
    ),
    Right(
        name="stdout_gone",
        source="import sys\nprint('before', flush=True)\nsys.stdout = None\nprint('lost')\n",
        output="before",
    ),
    Right(
        name="standard_input_closed",
        source="import sys\nn = input()\nsys.stdin.close()\nprint(n)\n",
        stdin="3",
        output="3",
    ),
    Right(
        name="buffered_text_after_direct_bytes",
        source="import os\nprint('late')\nos.write(1, b'soon\\n')\n",
        output="soon\nlate",
    ),
    Right(
        name="streams_asked_what_they_are",
        source="import sys\nsys.stdin.reconfigure(encoding='utf-8')\nsys.stdout.reconfigure(line_buffering=True)\n"
        "print(sys.stdin.isatty(), sys.stdin.fileno(), sys.stdout.fileno(), sys.stdout.encoding, input())\n",
        stdin="é",
        output="False 0 1 utf-8 é",
    ),
    Right(
        name="fast_output_wrapper",
        source=r"""
import io, os, sys
class Fast(io.IOBase):
    def __init__(self):
        self.buffer = io.BytesIO()
        self.writable = lambda: True
    def write(self, text):
        self.buffer.write(text.encode())
    def flush(self):
        os.write(1, self.buffer.getvalue())
        self.buffer.seek(0), self.buffer.truncate(0)
sys.stdout = Fast()
sys.stdin = io.BytesIO(os.read(0, os.fstat(0).st_size))
input = lambda: sys.stdin.readline().decode().strip()
sys.stdout.write(str(int(input()) * 2) + "\n")
sys.stdout.flush()
""",
        stdin="21\n",
        output="42",
    ),
    Right(name="bytes_through_the_buffer", source="import sys\nsys.stdout.buffer.write(b'raw\\n')\n", output="raw"),
    Right(
        name="text_and_bytes_together",
        source="import sys\nprint('a', flush=True)\nsys.stdout.buffer.write(b'b\\n')\n",
        output="a\nb",
    ),
    Right(name="write_by_number", source="import os\nos.write(1, b'by number')\n", output="by number"),
    Right(
        name="file_left_open_for_writing",
        source="f = open('/dev/stdout', 'w')\nf.write('through the path')\n",
        output="through the path",
    ),
    Right(name="no_line_end", source="print('a', end='')\nprint('b', end='')\n", output="ab"),
    Right(
        name="trailing_white_space",
        source="for n in range(3):\n    print(n, end=' ')\nprint('  ')\nprint()\n",
        output="0 1 2",
    ),
    Right(
        name="names_and_text_beyond_ascii",
        source="größe = 'naïve ∑ 数 🎈'\nprint(größe, input())\n",
        stdin="ö",
        output="naïve ∑ 数 🎈 ö",
    ),
    Right(
        name="much_on_the_error_stream",
        source="import sys\nfor n in range(2000):\n    print('debug', n, file=sys.stderr)\nprint('ok')\n",
        output="ok",
    ),
    Right(
        name="large_output",
        source="print('\\n'.join(map(str, range(100_000))))\n",
        output="\n".join(map(str, range(100_000))),
    ),
    Right(
        name="large_input",
        source="import sys\nprint(sum(map(int, sys.stdin)))\n",
        stdin="7\n" * 200_000,
        output="1400000",
    ),
    Right(name="input_not_read", source="print('no need')\n", stdin="x" * 1_000_000, output="no need"),
    Right(name="null_bytes_in_the_output", source="import sys\nsys.stdout.buffer.write(b'a\\0b')\n", output="a\0b"),
)
