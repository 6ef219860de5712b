"""Right functions in odd styles; what they return is compared as JSON."""

from tests.sandbox.corpus import Right

PROGRAMS = (
    Right(
        name="plain_function",
        source="def add(a, b):\n    return a + b\n",
        function="add",
        arguments="[1, 2]",
        output="3",
    ),
    Right(
        name="class_solution_with_hints",
        source=r"""
class Solution:
    def twoSum(self, nums: List[int], target: int) -> Optional[List[int]]:
        seen: Dict[int, int] = {}
        for i, n in enumerate(nums):
            if target - n in seen:
                return [seen[target - n], i]
            seen[n] = i
""",
        function="twoSum",
        arguments="[[2, 7, 11, 15], 9]",
        output="[0, 1]",
    ),
    Right(
        name="class_solution_with_state",
        source=r"""
from collections import defaultdict
class Solution(object):
    def __init__(self):
        self.seen = defaultdict(int)
    def helper(self, n):
        self.seen[n] += 1
        return self.seen[n]
    def count(self, values):
        return max(map(self.helper, values))
""",
        function="count",
        arguments="[[1, 1, 2]]",
        output="2",
    ),
    Right(
        name="static_method",
        source="class Solution:\n    @staticmethod\n    def f(x):\n        return x\n",
        function="f",
        arguments="[1]",
        output="1",
    ),
    Right(name="tuple_returned", source="def f():\n    return (1, (2, 3))\n", function="f", output="[1, [2, 3]]"),
    Right(
        name="nested_lists",
        source="def f(a):\n    return [list(r) for r in zip(*a)]\n",
        function="f",
        arguments="[[[1, 2], [3, 4]]]",
        output="[[1, 3], [2, 4]]",
    ),
    Right(name="nothing_returned", source="def f(x):\n    pass\n", function="f", arguments="[1]", output="null"),
    Right(
        name="floats",
        source="def f(x):\n    return [x / 4, 1e100, -0.5]\n",
        function="f",
        arguments="[1]",
        output="[0.25, 1e+100, -0.5]",
    ),
    Right(
        name="truth",
        source="def f(a):\n    return [not x for x in a]\n",
        function="f",
        arguments="[[true, false]]",
        output="[false, true]",
    ),
    Right(
        name="text",
        source="def f(s):\n    return s[::-1] + '\\n\\t\"é数🎈'\n",
        function="f",
        arguments='["ab"]',
        output='"ba\\n\\t\\"é数🎈"',
    ),
    Right(
        name="table_with_text_keys",
        source="def f(s):\n    return {c: s.count(c) for c in s}\n",
        function="f",
        arguments='["aab"]',
        output='{"a": 2, "b": 1}',
    ),
    Right(
        name="table_with_integer_keys",
        source="def f():\n    return {1: 'a', 2: 'b'}\n",
        function="f",
        output='{"1": "a", "2": "b"}',
    ),
    Right(
        name="ordered_and_counting_tables",
        source=r"""
from collections import Counter, OrderedDict, defaultdict
def f():
    d = defaultdict(list)
    d['x'].append(1)
    return [Counter('aa'), OrderedDict(a=1), d]
""",
        function="f",
        output='[{"a": 2}, {"a": 1}, {"x": [1]}]',
    ),
    Right(
        name="named_tuple",
        source="from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f():\n    return P(1, 2)\n",
        function="f",
        output="[1, 2]",
    ),
    Right(
        name="big_integer",
        source=r"""
def f(n):
    return 2 ** n
""",
        function="f",
        arguments="[200]",
        output=str(2**200),
    ),
    Right(
        name="prints_on_the_way",
        source="def f(x):\n    print('debug', x)\n    return x\n",
        function="f",
        arguments="[7]",
        output="7",
    ),
    Right(
        name="reads_the_empty_input",
        source="import sys\ntext = sys.stdin.read()\ndef f(x):\n    return text + x\n",
        function="f",
        arguments='["a"]',
        output='"a"',
    ),
    Right(
        name="main_guard_is_not_in_the_way",
        source="def f(x):\n    return x\nif __name__ == '__main__':\n    pass\n",
        function="f",
        arguments="[1]",
        output="1",
    ),
    Right(
        name="global_state",
        source=r"""
calls = 0
def f(x):
    global calls
    calls += 1
    return calls
""",
        function="f",
        arguments="[1]",
        output="1",
    ),
    Right(
        name="cached_method",
        source=r"""
from functools import cache, lru_cache
class Solution:
    @lru_cache(maxsize=None)
    def climb(self, n):
        return 1 if n < 2 else self.climb(n - 1) + self.climb(n - 2)
""",
        function="climb",
        arguments="[80]",
        output="37889062373143906",
    ),
    Right(
        name="lambda_as_a_function", source="f = lambda a, b=2: a * b\n", function="f", arguments="[21]", output="42"
    ),
    Right(
        name="partial_as_a_function",
        source="from functools import partial\nf = partial(max, 5)\n",
        function="f",
        arguments="[3]",
        output="5",
    ),
    Right(
        name="decorated_function",
        source=r"""
import functools
def twice(g):
    @functools.wraps(g)
    def inner(*a):
        return g(*a) * 2
    return inner
@twice
def f(x):
    return x
""",
        function="f",
        arguments="[4]",
        output="8",
    ),
    Right(
        name="arguments_of_every_kind",
        source="def f(*a):\n    return [type(x).__name__ for x in a]\n",
        function="f",
        arguments='[1, 1.5, "s", null, true, [1], {"a": 1}]',
        output='["int", "float", "str", "NoneType", "bool", "list", "dict"]',
    ),
    Right(
        name="deep_recursion",
        source="import sys\nsys.setrecursionlimit(10**5)\ndef f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\n",
        function="f",
        arguments="[8000]",
        output="8000",
    ),
    Right(
        name="nested_deeply",
        source=r"""
def f(n):
    a = 1
    for _ in range(n):
        a = [a]
    return a
""",
        function="f",
        arguments="[50]",
        output="[" * 50 + "1" + "]" * 50,
    ),
    Right(
        name="from_the_future_with_function",
        source="from __future__ import annotations\ndef f(x: Whatever) -> Other:\n    return x\n",
        function="f",
        arguments="[1]",
        output="1",
    ),
    Right(
        name="usual_names_are_there",
        source=r"""
class Solution:
    def f(self, a: List[int], s: Optional[str] = None) -> Tuple[int, Dict[str, Set[int]]]:
        return max(a)
""",
        function="f",
        arguments="[[3, 1]]",
        output="3",
    ),
    Right(
        name="large_value",
        source="def f(n):\n    return list(range(n))\n",
        function="f",
        arguments="[20000]",
        output="[" + ", ".join(map(str, range(20000))) + "]",
    ),
    Right(
        name="thread_in_a_function",
        source="from concurrent.futures import ThreadPoolExecutor\ndef f(a):\n"
        "    with ThreadPoolExecutor(2) as pool:\n        return list(pool.map(str, a))\n",
        function="f",
        arguments="[[1, 2]]",
        output='["1", "2"]',
    ),
    Right(
        name="event_loop_in_a_function",
        source=r"""
import asyncio
async def g(x):
    await asyncio.sleep(0)
    return x
def f(x):
    return asyncio.run(g(x))
""",
        function="f",
        arguments="[3]",
        output="3",
    ),
    Right(
        name="function_by_import",
        source="from math import gcd\n",
        function="gcd",
        arguments="[12, 18]",
        output="6",
    ),
    Right(
        name="function_with_the_name_of_a_given_one",
        source="def gcd(a, b):\n    return gcd(b, a % b) if b else a\n",
        function="gcd",
        arguments="[12, 18]",
        output="6",
    ),
    Right(
        name="data_class_in_a_function",
        source=r"""
import pickle
from dataclasses import dataclass
@dataclass(frozen=True)
class P:
    x: int
def f(x):
    return pickle.loads(pickle.dumps(P(x))).x
""",
        function="f",
        arguments="[3]",
        output="3",
    ),
)
