"""Right programs that use the language and its library in odd ways."""

from tests.sandbox.corpus import Right

PROGRAMS = (
    Right(
        name="globals_changed_in_functions",
        source=r"""
total = 0
def add(n):
    global total
    total += n
for n in input().split():
    add(int(n))
print(total)
""",
        stdin="1 2 3\n",
        output="6",
    ),
    Right(
        name="import_from_the_future",
        source=r"""
'''Words first.'''
from __future__ import annotations
def f(x: Undefined) -> Nothing:
    return x
print(f(input()))
""",
        stdin="a",
        output="a",
    ),
    Right(name="byte_order_mark", source="\ufeffprint(int(input()) + 1)\n", stdin="1\n", output="2"),
    Right(
        name="windows_line_ends_in_the_source",
        source="n = int(input())\r\nif n:\r\n    print(n)\r\n",
        stdin="5",
        output="5",
    ),
    Right(
        name="triple_quoted_text_with_code_in_it",
        source='text = """\nimport os\n    if x:\nprint("no")\n"""\nprint(len(text.splitlines()), end="")\n',
        output="4",
    ),
    Right(
        name="data_class_and_pickle_in_main",
        source=r"""
import pickle
from dataclasses import dataclass
@dataclass
class Point:
    x: int
    y: int = 0
print(pickle.loads(pickle.dumps(Point(1, 2))))
print(Point.__module__)
""",
        output="Point(x=1, y=2)\n__main__",
    ),
    Right(name="own_source_read", source="# first\nprint(open(__file__).readline())\n", output="# first"),
    Right(
        name="own_source_inspected",
        source="import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))\n",
        output="def f():\n    return 1",
    ),
    Right(name="encoding_cookie", source="# -*- coding: utf-8 -*-\nprint('é')\n", output="é"),
    Right(name="other_encoding_cookie", source="# -*- coding: latin-1 -*-\nprint('ok')\n", output="ok"),
    Right(
        name="usual_imports",
        source=r"""
import bisect, collections, decimal, fractions, functools, heapq, itertools, math, operator
import random, re, string, statistics
heap = [3, 1, 2]
heapq.heapify(heap)
print(heapq.heappop(heap), bisect.bisect([1, 2, 3], 2), collections.Counter("aab").most_common(1))
print(sum(itertools.islice(itertools.count(), 5)), decimal.Decimal("0.1") * 3, fractions.Fraction(1, 3) + 1)
print(functools.reduce(operator.mul, [1, 2, 3]), math.isqrt(17), re.findall(r"\d+", "a1b22"), statistics.mean([1, 2]))
random.seed(0)
print(random.randint(1, 6) in range(1, 7), string.ascii_lowercase[:3])
""",
        output="1 2 [('a', 2)]\n10 0.3 4/3\n6 4 ['1', '22'] 1.5\nTrue abc",
    ),
    Right(
        name="star_imports",
        source=r"""
from math import *
from collections import *
from sys import *
print(floor(pi), stdin.readline().strip())
""",
        stdin="x\n",
        output="3 x",
    ),
    Right(
        name="main_guard",
        source="def main():\n    print('main')\nif __name__ == '__main__':\n    main()\n",
        output="main",
    ),
    Right(
        name="main_imported",
        source=r"""
import __main__
value = 5
print(__main__.value, __main__ is __import__('sys').modules['__main__'])
""",
        output="5 True",
    ),
    Right(
        name="arguments_of_the_program",
        source="import sys\nprint(len(sys.argv), sys.argv[1:], isinstance(sys.argv[0], str))\n",
        output="1 [] True",
    ),
    Right(
        name="own_file_name",
        source="print(isinstance(__file__, str), __doc__, __builtins__ is not None)\n",
        output="True None True",
    ),
    Right(name="documentation_of_the_module", source='"""First."""\nprint(__doc__)\n', output="First."),
    Right(
        name="generators_and_send",
        source=r"""
def g():
    x = yield 1
    yield x * 2
i = g()
print(next(i), i.send(21))
""",
        output="1 42",
    ),
    Right(
        name="cached_recursion",
        source=r"""
from functools import lru_cache
@lru_cache(None)
def f(n):
    return n if n < 2 else f(n - 1) + f(n - 2)
print(f(300))
""",
        output="222232244629420445529739893461909967206666939096499764990979600",
    ),
    Right(
        name="code_made_at_run_time",
        source="exec('def f(x):\\n    return x + 1')\nprint(eval('f(1)'), compile('1', 'a', 'eval').co_filename)\n",
        output="2 a",
    ),
    Right(
        name="names_looked_up",
        source="a = 1\nprint(globals()['a'], locals() is globals(), vars()['a'])\n",
        output="1 True 1",
    ),
    Right(name="big_numbers", source="print(2 ** 4000 % 1000, len(str(3 ** 5000)))\n", output="376 2386"),
    Right(
        name="long_numbers_in_text",
        source="import sys\nsys.set_int_max_str_digits(0)\nprint(len(str(10 ** 9999)))\n",
        output="10000",
    ),
    Right(
        name="walrus_and_match",
        source=r"""
match (n := int(input())):
    case 1 | 2:
        print('low')
    case _:
        print(n)
""",
        stdin="9",
        output="9",
    ),
    Right(
        name="classes_and_slots",
        source=r"""
class A:
    __slots__ = ('x',)
    def __init__(self):
        self.x = 1
print(A().x)
""",
        output="1",
    ),
    Right(
        name="enumerations_and_typing",
        source=r"""
import enum, typing
class C(enum.Enum):
    A = 1
x: typing.Optional[int] = None
print(C.A, x)
""",
        output="C.A None",
    ),
    Right(
        name="standard_library_corners",
        source=r"""
import array, base64, calendar, copy, csv, datetime, difflib, hashlib, io, json, queue, struct
import textwrap, time, uuid, zlib
print(array.array("i", [1]).tolist(), base64.b64encode(b"a"), calendar.isleap(2024), copy.deepcopy([1]))
print(next(csv.reader(["a,b"])), datetime.date(2024, 1, 1), hashlib.md5(b"").hexdigest()[:4], json.dumps({"a": 1}))
print(struct.pack("<i", 1), textwrap.fill("a b", 1), zlib.crc32(b""), uuid.UUID(int=1).int, time.time() > 0)
""",
        output="[1] b'YQ==' True [1]\n['a', 'b'] 2024-01-01 d41d {\"a\": 1}\nb'\\x01\\x00\\x00\\x00' a\nb 0 1 True",
    ),
)
