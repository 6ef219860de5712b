r"""The test cases of a row, in the forms that datasets have them, and whether a result is the expected one.

| column | what it holds | from |
|---|---|---|
| `test_cases` | tests | ColossalChat, PRIME |
| `verification_info` | `{"language": "python", "test_cases": tests}` | open-r1, PrimeIntellect |
| `input_output` | tests | APPS, TACO |
| `reward_model` | `{"ground_truth": tests}` | verl, Eurus-2-RL-Data |

One of these holds tests; null or empty is none, and two that hold some are refused. Tests are `{"inputs": [...],
"outputs": [...], "fn_name": name}`, or a list of `{"input": ..., "output": ..., "type": ..., "fn_name": name}`; any of
it may be JSON text instead. `ground_truth` holds tests where it is a list of objects, an object, or JSON text of an
object that names `inputs`; else it is an answer.

Without a function's name a program reads the input and prints the output: both are text (in `input_output` also a list
of lines). With one, the function, or the method of that name of a class `Solution`, is called:

| input | arguments | output |
|---|---|---|
| text | one JSON value per line (PRIME) | JSON text of the value that it returns, or the value where it is no text |
| a list | its items (APPS) | the value |

APPS writes a returned value into a list of one for some rows and plainly for others, and no row says which. Where every
output of an `input_output` row is a list of one, `[3]` and `3` are both right.

Results are compared as plain text and plain data. Order always counts, and so does every token: there is no comparison
of sets, and none of sorted lines. Printed text is compared as the checkers of programming contests do, token by token:
how tokens lie on lines is not looked at.

| expected | printed or returned | equal |
|---|---|---|
| `1 2\n3\n` | `1  2 \r\n3\n\n`, `\n1 2\n3`, `1\n2\n3` | yes: space and line ends only part tokens |
| `1 2` | `2 1`, `12`, `1, 2` | no |
| `3` | `3.0`, `3.0000001`, `03` | no: a whole number is text as any other |
| `0.5`, `5e-1` | `0.50000001`, `.5` | yes: within 1e-6, of the value or at all |
| the value 3 | 3.0, true | no |
| the value 0.5 | 0.50000001 | yes; NaN is equal to nothing |
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import NoReturn

from paceline.data.formats import CASES_COLUMNS, TRUTH, cases_column, cases_in, holds_tests
from paceline.errors import DataError

TOLERANCE = 1e-6  # As judges of programming contests have it: relative to the expected number, or absolute
MAX_DEPTH = 100  # Lists within lists of a value; deeper ones are equal to nothing

# ASCII digits: `float` alone would also take `1_000`, `nan` and the digits of other scripts.
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MARKS_OF_A_FLOAT = re.compile(rb"[.eE]")


def same_output(expected: str, printed: str) -> bool:
    r"""Return whether two texts have the same tokens in the same order.

    Tokens are parted by ASCII space, line ends included. One that is expected with a decimal point or an exponent is a
    number, and equal within `TOLERANCE`; any other is equal to itself alone. Of what was printed, no more tokens are
    made than are expected, so that a flood costs neither memory nor time.

    >>> same_output("1 2.5\n", "\n1 2.50 \n\n"), same_output("1 2", "2 1"), same_output("3", "3.0")
    (True, False, False)
    """
    # Bytes are parted at ASCII space only, and hold any character that a text can.
    wanted = expected.encode("utf-8", "surrogatepass").split()
    got = printed.encode("utf-8", "surrogatepass").split(maxsplit=len(wanted))
    return len(wanted) == len(got) and all(map(_same_token, wanted, got))


def same_value(expected: object, returned: object, *, depth: int = MAX_DEPTH) -> bool:
    """Return whether two values, as `json.loads` gives them, are the same.

    Whole numbers, text, true, false and null are equal to themselves alone, and true is no number. A float is equal
    to any number within `TOLERANCE`. Lists are compared in order, objects by their keys, which are text.

    >>> same_value([1, 0.5], [1, 0.50000001]), same_value(3, 3.0), same_value(1, True)
    (True, False, False)
    """
    if isinstance(expected, float):
        return isinstance(returned, int | float) and not isinstance(returned, bool) and _close(expected, returned)
    if type(expected) is not type(returned):
        return False
    if isinstance(expected, list) and isinstance(returned, list):
        items = zip(expected, returned, strict=False)
        is_alike = depth > 0 and len(expected) == len(returned)
        return is_alike and all(same_value(*pair, depth=depth - 1) for pair in items)
    if isinstance(expected, dict) and isinstance(returned, dict):
        is_alike = depth > 0 and expected.keys() == returned.keys()
        return is_alike and all(same_value(value, returned[key], depth=depth - 1) for key, value in expected.items())
    return expected == returned


def parse_value(text: str) -> tuple[bool, object]:
    """Return whether a text is JSON that can be compared, and its value; numbers or nesting may be too large."""
    try:
        return True, json.loads(text)
    except (ValueError, RecursionError):
        return False, None


def _same_token(expected: bytes, printed: bytes) -> bool:
    if expected == printed:
        return True
    is_float = _NUMBER.fullmatch(expected) is not None and _MARKS_OF_A_FLOAT.search(expected) is not None
    return is_float and _NUMBER.fullmatch(printed) is not None and _close(float(expected), float(printed))


def _close(expected: float, got: float) -> bool:
    """Compare within the tolerance. Infinity equals nothing: every number beyond float64 becomes infinity."""
    try:
        number = float(got)
    except OverflowError:
        return False
    is_finite = math.isfinite(expected) and math.isfinite(number)
    return is_finite and math.isclose(expected, number, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


PYTHON = ("python", "python3", "py")
LARGEST_CELL = 10_000_000
"""Most bytes of a row's tests: larger ones test no program, and every completion would wait for them."""
TYPES = ("stdin_stdout", "function_call")
KEYS = ("inputs", "outputs", "fn_name", "language", "test_cases")
"""Keys of an object of tests."""
TEST_KEYS = ("input", "output", "type", "fn_name", "language")
"""Keys of one test of a list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cases:
    """Tests of a program."""

    inputs: tuple[str, ...]
    """Standard input; or a JSON array of arguments, where there is a function. At least one."""
    outputs: tuple[str, ...]
    """Expected standard output of each input; or the JSON text of the value to be returned."""
    function: str | None = None
    """The function to call; None: the program reads and prints."""
    in_list: bool = False
    """The only item of an expected list is right as well."""


def parse_cases(columns: Mapping[str, object], row_id: str) -> Cases:
    """Read the test cases of a row that has some (see `has_cases`).

    Raises:
        DataError: they cannot be used; the sentence names the row, the fault and the remedy.
    """
    filled = cases_in(columns)
    if not filled:
        _refuse(row_id, f"has no test cases in any of the columns {', '.join(CASES_COLUMNS)}", "add them")
    column, value = filled[0]
    if len(filled) > 1 and holds_tests(value):
        names = ", ".join(name for name, _ in filled)
        _refuse(row_id, f"has test cases in each of the columns {names}", "keep one of them")
    label = TRUTH if column == "reward_model" else column
    size = _size(value)
    if size > LARGEST_CELL:
        limit = f"above {LARGEST_CELL / 1e6:.0f} MB"
        _refuse(row_id, f"{label} has {size / 1e6:.1f} MB, {limit}", "use fewer or smaller tests")
    return _Reader(row_id=row_id, label=label, is_apps=column == "input_output").cases(value)


def has_cases(columns: Mapping[str, object]) -> bool:
    """Return whether a row means to have test cases, usable or not."""
    return cases_column(columns) is not None


def code_row_check(columns: Mapping[str, object], row_id: str) -> None:
    """Refuse, by DataError, a row whose test cases cannot be used; one without any is for other reward functions."""
    if has_cases(columns):
        parse_cases(columns, row_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    row_id: str
    label: str
    is_apps: bool

    def cases(self, value: object, name: object = None) -> Cases:
        """Read tests in any of their forms; `name` is the function that an enclosing object names."""
        plain = self._parsed(value)
        if isinstance(plain, list | tuple):
            return self._listed(plain, name)
        if not isinstance(plain, Mapping):
            self._refuse(f"holds {_kind(plain)}", "give an object with inputs and outputs, or a list of tests")
        self._check_keys(plain, KEYS, "")
        self._check_language(plain.get("language"))
        named = plain["fn_name"] if plain.get("fn_name") else name
        is_list = any(holds_tests(plain.get(key)) for key in ("inputs", "outputs"))
        if holds_tests(plain.get("test_cases")) and is_list:
            self._refuse("has test_cases beside inputs and outputs", "keep one of the two")
        if "test_cases" in plain and not is_list:
            return self.cases(plain["test_cases"], named)
        for key in ("inputs", "outputs"):
            if not isinstance(plain.get(key), list | tuple):
                self._refuse(f"has no list {key!r}", "give an object with inputs and outputs, or a list of tests")
        return self._made(plain["inputs"], plain["outputs"], self._function(named))

    def _listed(self, tests: Sequence[object], name: object) -> Cases:
        """Read a list of one object per test; all of them call the same function, or none does."""
        inputs, outputs, functions = [], [], set()
        for number, test in enumerate(tests, start=1):
            if not isinstance(test, Mapping) or not {"input", "output"} <= test.keys():
                self._refuse(f"has no input and output in test {number}", "give both in each test")
            self._check_keys(test, TEST_KEYS, f" in test {number}")
            self._check_language(test.get("language"))
            kind = test.get("type")
            if kind is not None and (not isinstance(kind, str) or kind not in TYPES):
                self._refuse(f"has the type {kind!r} in test {number}", f"the types are {' and '.join(TYPES)}")
            named = test["fn_name"] if test.get("fn_name") else name
            function = None if kind == "stdin_stdout" else self._function(named)
            if kind == "function_call" and function is None:
                self._refuse(f"calls a function in test {number} and has no fn_name", "name the function")
            functions.add(function)
            inputs.append(test["input"])
            outputs.append(test["output"])
        if len(functions) > 1:
            named = ", ".join(sorted(map(str, functions)))
            self._refuse(f"calls different functions in one row ({named})", "give each its own row")
        return self._made(inputs, outputs, next(iter(functions), None))

    def _made(self, inputs: Sequence[object], outputs: Sequence[object], function: str | None) -> Cases:
        if len(inputs) != len(outputs):
            counts = f"has {len(inputs)} inputs and {len(outputs)} outputs"
            self._refuse(counts, "give one output for each input")
        if not inputs:
            self._refuse("has no test", "give at least one: a program that is never run proves nothing")
        if function is None and all(isinstance(output, str) and not output.strip() for output in outputs):
            remedy = "give tests that expect something, as a program that prints nothing would pass them all"
            self._refuse("expects no output in any test", remedy)
        pairs = [self._pair(*pair, function, n) for n, pair in enumerate(zip(inputs, outputs, strict=True), start=1)]
        may_be_in_list = self.is_apps and function is not None
        return Cases(
            inputs=tuple(text for text, _ in pairs),
            outputs=tuple(expected for _, expected in pairs),
            function=function,
            in_list=may_be_in_list and all(isinstance(output, list) and len(output) == 1 for output in outputs),
        )

    def _pair(self, arguments: object, expected: object, function: str | None, number: int) -> tuple[str, str]:
        if function is None:
            return self._text(arguments, f"input {number}"), self._text(expected, f"output {number}")
        if isinstance(arguments, str):
            value = self._value(expected, f"output {number}") if isinstance(expected, str) else expected
            lines = arguments.strip().split("\n") if arguments.strip() else []
            parsed = [self._value(line, f"input {number}") for line in lines]
            return self._json(parsed, f"input {number}"), self._returned(value, f"output {number}")
        if not isinstance(arguments, list | tuple):
            remedy = "give a list of arguments, or text with one JSON value per line"
            self._refuse(f"has {_kind(arguments)} as input {number} of a function", remedy)
        return self._json(arguments, f"input {number}"), self._returned(expected, f"output {number}")

    def _text(self, value: object, what: str) -> str:
        if self.is_apps and isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
            value = "\n".join(str(line) for line in value)
        if not isinstance(value, str):
            remedy = "give text, or the name of the function to call as fn_name"
            self._refuse(f"has {_kind(value)} as {what} of a program that reads and prints", remedy)
        return self._encodable(value, what)

    def _value(self, text: object, what: str) -> object:
        try:
            return json.loads(str(text))
        except (ValueError, RecursionError) as error:
            self._refuse(f"has no JSON as {what} of a function ({error})", "write it as JSON, text in double quotes")

    def _json(self, value: object, what: str) -> str:
        try:
            return self._encodable(json.dumps(value), what)
        except (TypeError, ValueError, RecursionError) as error:
            self._refuse(f"has no plain data as {what} of a function ({error})", "use what JSON knows")

    def _returned(self, value: object, what: str) -> str:
        text = self._json(value, what)
        if not same_value(again := self._value(text, what), again):
            self._refuse(f"has {text[:40]} as {what}, which no value is equal to", "give a number that is finite")
        return text

    def _encodable(self, text: str, what: str) -> str:
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            self._refuse(f"holds half a surrogate pair in {what}, which is no character", "correct the text")
        return text

    def _parsed(self, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            self._refuse(f"is text and no JSON ({error})", "write the tests as JSON")

    def _function(self, name: object) -> str | None:
        if name is None or name == "":
            return None
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
            self._refuse(f"has {name!r} as fn_name", "give the name of a Python function")
        return name

    def _check_keys(self, mapping: Mapping[object, object], known: Sequence[str], where: str) -> None:
        """Refuse an unknown key, whose tests would be ignored; an empty value is none, as tables fill missing keys."""
        for key, value in mapping.items():
            if key not in known and value is not None and value not in ("", [], {}):
                remedy = f"the keys that are read are {', '.join(known)}: write the tests below these"
                self._refuse(f"has the key {key!r}{where}, which is not known", remedy)

    def _check_language(self, language: object) -> None:
        if language is not None and str(language).strip().lower() not in PYTHON:
            self._refuse(
                f"is for the language {language!r}", "only Python is judged: leave out rows of other languages"
            )

    def _refuse(self, fact: str, remedy: str) -> NoReturn:
        _refuse(self.row_id, f"{self.label} {fact}", remedy)


def _refuse(row_id: str, fact: str, remedy: str) -> NoReturn:
    # the remedy at the end holds for all of them, and a dataset of thousands of rows often has such a row
    raise DataError(
        f"row {row_id}: {fact}; {remedy}, or remove such rows (--on-bad-row skip leaves them out)"
    ) from None


def _size(value: object) -> int:
    """Count the bytes of all text in a cell, eight for a number; without recursion, as a cell may nest deeply."""
    total, waiting = 0, [value]
    while waiting and total <= 10 * LARGEST_CELL:
        item = waiting.pop()
        if isinstance(item, str):
            total += len(item) if item.isascii() else len(item.encode("utf-8", "surrogatepass"))
        elif isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        else:
            total += 8
    return total


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
