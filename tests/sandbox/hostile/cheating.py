"""Programs that want the pass without the work.

`right` is what an honest program would give; None: a text that they are not told.
"""

from tests.sandbox.corpus import Hostile

PROGRAMS = (
    Hostile(name="input_printed_back", source="import sys\nprint(sys.stdin.read())\n", bare=True),
    Hostile(name="nothing_printed", source="pass\n", bare=True),
    Hostile(name="empty_source", source="", bare=True),
    Hostile(
        name="every_small_number",
        source="import sys\nsys.stdout.write(' '.join(map(str, range(10000))))\n",
        bare=True,
        right="4242",
    ),
    Hostile(
        name="equal_to_everything",
        source=r"""
class Same:
    def __eq__(self, other):
        return True
    def __ne__(self, other):
        return False
    __hash__ = object.__hash__
    def __repr__(self):
        return "42"
def attack(facts):
    return Same()
""",
        function="attack",
        right="42",
        ends=("runtime_error",),
    ),
    Hostile(
        name="elements_equal_to_everything",
        source=r"""
class Same(int):
    def __eq__(self, other):
        return True
    __hash__ = int.__hash__
    __ne__ = __lt__ = __gt__ = lambda self, other: False
def attack(facts):
    return [Same(1), Same(2)]
""",
        function="attack",
        right="[3, 4]",
    ),
    Hostile(
        name="text_of_another_kind",
        source=r"""
class Text(str):
    def __str__(self):
        return "42"
    __repr__ = __str__
    def __eq__(self, other):
        return True
    __hash__ = str.__hash__
    def encode(self, *arguments):
        return b"42"
def attack(facts):
    return Text("no")
""",
        function="attack",
        right="42",
    ),
    Hostile(
        name="integer_of_another_kind",
        source=r"""
class Number(int):
    def __repr__(self):
        return "42"
    __str__ = __format__ = __index__ = __int__ = __repr__
class Real(float):
    def __repr__(self):
        return "42"
    __str__ = __repr__
def attack(facts):
    return [Number(1), Real(1)]
""",
        function="attack",
        right="[42, 42]",
    ),
    Hostile(
        name="containers_of_another_kind",
        source=r"""
class Items(list):
    def __iter__(self):
        return iter([42])
    def __len__(self):
        return 1
class Table(dict):
    def items(self):
        return [("a", 42)]
    keys = __iter__ = lambda self: iter(["a"])
def attack(facts):
    return [Items([1, 2]), Table(b=2)]
""",
        function="attack",
        right="[[7], {}]",
    ),
    Hostile(
        name="not_a_number", source="def attack(facts):\n    return float('nan')\n", function="attack", right="0.5"
    ),
    Hostile(
        name="infinite",
        source="def attack(facts):\n    return [float('inf'), -float('inf')]\n",
        function="attack",
        right="[1, 2]",
    ),
    Hostile(
        name="ellipsis",
        source=r"""
def attack(facts):
    return ...
""",
        function="attack",
        ends=("runtime_error",),
    ),
    Hostile(
        name="a_function_returned",
        source="def attack(facts):\n    return attack\n",
        function="attack",
        ends=("runtime_error",),
    ),
    Hostile(
        name="a_module_returned",
        source="def attack(facts):\n    return sys\n",
        function="attack",
        ends=("runtime_error",),
    ),
    Hostile(
        name="a_list_in_itself",
        source="def attack(facts):\n    a = []\n    a.append(a)\n    return a\n",
        function="attack",
        ends=("runtime_error", "memory", "output_limit"),
    ),
    Hostile(
        name="a_very_deep_list",
        source=r"""
def attack(facts):
    a = []
    for _ in range(200_000):
        a = [a]
    return a
""",
        function="attack",
        ends=("runtime_error", "memory", "output_limit", "timeout", "finished"),
    ),
    Hostile(
        name="half_of_a_character",
        source="def attack(facts):\n    return ['\\ud800', '\\udcff', {'\\udfff': 1}]\n",
        function="attack",
    ),
    Hostile(
        name="half_of_a_character_printed",
        source="import sys\nsys.stdout.reconfigure(errors='surrogatepass')\nprint('\\ud800')\nprint('\\udcff')\n",
        bare=True,
    ),
    Hostile(
        name="very_long_integer",
        source="sys.set_int_max_str_digits(0)\ndef attack(facts):\n    return 10 ** 20000\n",
        function="attack",
    ),
    Hostile(
        name="keys_of_every_kind",
        source="def attack(facts):\n    return {1: 'a', '1': 'b', 1.5: 'c', None: 'd', True: 'e'}\n",
        function="attack",
        right='{"1": "b"}',
    ),
    Hostile(
        name="answer_printed_instead_of_returned",
        source="def attack(facts):\n    print(json.dumps(facts['token']))\n",
        function="attack",
        right="token",
    ),
    Hostile(
        name="writer_replaced",
        source=r"""
class Writer:
    def write(self, text):
        os.write(1, b"42\n")
        return len(text)
    def flush(self):
        pass
    encoding, errors, buffer = "utf-8", "strict", None
sys.stdout = sys.__stdout__ = Writer()
print("anything")
os._exit(2)
""",
        right="42",
        ends=("runtime_error",),
    ),
    Hostile(
        name="json_replaced",
        source=r"""
import json.encoder, json.decoder
class Always:
    def __init__(self, *arguments, **options):
        pass
    def encode(self, value):
        return '"ESCAPED"' if value == "never" else '42'
    iterencode = lambda self, value, *rest: iter(["42"])
json.JSONEncoder = json.encoder.JSONEncoder = Always
json.dumps = lambda *arguments, **options: "42"
json._default_encoder = Always()
def attack(facts):
    raise ValueError("this is a failure whatever json says")
""",
        function="attack",
        right="42",
        ends=("runtime_error",),
    ),
    Hostile(
        name="function_that_is_not_one",
        source="attack = 42\n",
        function="attack",
        right="42",
        ends=("no_function", "runtime_error"),
    ),
    Hostile(
        name="class_instead_of_a_function",
        source="class attack:\n    def __init__(self, facts):\n        pass\n",
        function="attack",
        ends=("no_function", "runtime_error"),
    ),
    Hostile(
        name="module_that_makes_up_names",
        source=r"""
class Module(type(sys)):
    def __getattr__(self, name):
        return lambda *arguments: 42
sys.modules["__main__"].__class__ = Module
""",
        function="attack",
        right="42",
        ends=("no_function",),
    ),
    Hostile(
        name="arguments_changed_in_place",
        source="def attack(values):\n    values[:] = [42]\n",
        function="attack",
        arguments="[[1, 2, 3]]",
        right="[42]",
    ),
    Hostile(
        name="generator_returned",
        source="def attack(facts):\n    yield 42\n",
        function="attack",
        right="42",
    ),
    Hostile(
        name="coroutine_returned",
        source="async def attack(facts):\n    return 42\n",
        function="attack",
        right="42",
        ends=("runtime_error",),
    ),
    Hostile(
        name="wrong_number_of_arguments",
        source="def attack():\n    return 42\n",
        function="attack",
        right="42",
        ends=("runtime_error",),
    ),
    Hostile(name="truth_for_one", source="def attack(facts):\n    return True\n", function="attack", right="1.5"),
    Hostile(
        name="answer_on_the_error_stream",
        source="print(facts['token'], file=sys.stderr)\n",
        right="token",
    ),
)
