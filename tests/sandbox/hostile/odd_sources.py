"""Texts that go for the compiler, or for whoever carries the text to it."""

from paceline.sandbox.programs import Limits
from tests.sandbox.corpus import Hostile

REFUSED = ("syntax_error", "runtime_error", "memory", "timeout")
ROOMY = Limits(seconds=1.0, memory_mb=128, output_bytes=1 << 16)

PROGRAMS = (
    Hostile(name="null_bytes", source="print(1)\0\nprint(2)\n", bare=True, ends=REFUSED),
    Hostile(name="half_a_character_in_a_literal", source="print('\ud800')\n", bare=True, ends=REFUSED),
    Hostile(name="half_a_character_in_a_name", source="\udcff = 1\n", bare=True, ends=REFUSED),
    Hostile(name="half_a_character_in_a_comment", source="# \udc80\nraise SystemExit(3)\n", bare=True, ends=REFUSED),
    Hostile(
        name="ten_megabytes",
        source="x = 1\n" * 1_700_000 + "raise SystemExit(3)\n",
        bare=True,
        ends=REFUSED,
        limits=ROOMY,
    ),
    Hostile(
        name="ten_megabytes_in_one_literal",
        source="x = '" + "a" * 10_000_000 + "'\nraise SystemExit(3)\n",
        bare=True,
        ends=REFUSED,
        limits=ROOMY,
    ),
    Hostile(name="deep_brackets", source="(" * 100_000 + ")" * 100_000 + "\n", bare=True, ends=REFUSED),
    Hostile(
        name="deep_lists_within_the_limit",
        source="x = " + "[" * 190 + "]" * 190 + "\nraise SystemExit(3)\n",
        bare=True,
        ends=REFUSED,
    ),
    Hostile(name="many_minus_signs", source="x = " + "-" * 1_000_000 + "1\n", bare=True, ends=REFUSED),
    Hostile(name="many_nots", source="x = " + "not " * 200_000 + "1\n", bare=True, ends=REFUSED),
    Hostile(name="long_sum", source="x = " + "1+" * 200_000 + "1\nraise SystemExit(3)\n", bare=True, ends=REFUSED),
    Hostile(name="long_attribute_chain", source="x = a" + ".b" * 200_000 + "\n", bare=True, ends=REFUSED),
    Hostile(name="long_call_chain", source="x = a" + "()" * 200_000 + "\n", bare=True, ends=REFUSED),
    Hostile(name="many_lambdas", source="x = " + "lambda:" * 50_000 + "1\n", bare=True, ends=REFUSED),
    Hostile(
        name="nested_blocks",
        source="".join(" " * n + "if 1:\n" for n in range(99)) + " " * 99 + "x\n",
        bare=True,
        ends=REFUSED,
    ),
    Hostile(
        name="many_else_ifs",
        source="if 0: pass\n" + "elif 0: pass\n" * 50_000 + "raise SystemExit(3)\n",
        bare=True,
        ends=REFUSED,
    ),
    Hostile(name="nested_format_text", source="x = " + "f'{" * 500 + "1" + "}'" * 500 + "\n", bare=True, ends=REFUSED),
    Hostile(
        name="constants_folded",
        source="x = " + "*".join(["(1 << 100_000)"] * 200) + "\nraise SystemExit(3)\n",
        bare=True,
        ends=REFUSED,
    ),
    Hostile(name="power_at_compile_time", source="x = 9 ** 9 ** 9 ** 9\n", bare=True, ends=REFUSED),
    Hostile(
        name="tuple_at_compile_time",
        source="x = ((1,) * 255,) * 255, (((1,) * 255,) * 255) * 255\nraise SystemExit(3)\n",
        bare=True,
        ends=REFUSED,
    ),
    Hostile(name="very_long_number", source="x = " + "9" * 100_000 + "\n", bare=True, ends=REFUSED),
    Hostile(
        name="odd_encoding_cookie",
        source="# -*- coding: utf-7 -*-\n+AAo-raise SystemExit(3)\n1/0\n",
        bare=True,
        ends=REFUSED,
    ),
    Hostile(
        name="unknown_encoding_cookie",
        source="# -*- coding: no-such-thing -*-\nraise SystemExit(3)\n",
        bare=True,
        ends=REFUSED,
    ),
    Hostile(name="no_such_future", source="from __future__ import braces\n", bare=True, ends=("syntax_error",)),
    Hostile(
        name="thousands_of_warnings",
        source="'\\d'\n1 is 1\n" * 20_000 + "raise SystemExit(3)\n",
        bare=True,
        ends=(*REFUSED, "output_limit"),
    ),
    Hostile(name="unfinished_text", source="print('''never closed\n", bare=True, ends=("syntax_error",)),
    Hostile(name="tabs_and_spaces", source="if 1:\n\tx = 1\n        y = 2\n", bare=True, ends=("syntax_error",)),
    Hostile(name="return_outside", source="return 42\n", bare=True, right="42", ends=("syntax_error",)),
    Hostile(
        name="no_function_there", source="def other(facts):\n    return 1\n", function="attack", ends=("no_function",)
    ),
    Hostile(
        name="syntax_error_in_a_function_job",
        source="def attack(facts:\n",
        bare=True,
        function="attack",
        ends=("syntax_error",),
    ),
    Hostile(
        name="name_of_a_built_in_asked_for",
        source="pass\n",
        bare=True,
        function="eval",
        arguments='["6 * 7"]',
        right="42",
        ends=("no_function",),
    ),
    Hostile(
        name="name_of_a_given_function",
        source="pass\n",
        bare=True,
        function="gcd",
        arguments="[12, 18]",
        right="6",
        ends=("no_function",),
    ),
    Hostile(
        name="name_of_the_runner_asked_for",
        source="pass\n",
        bare=True,
        function="__import__",
        arguments='["os"]',
        ends=("no_function",),
    ),
)
