"""benchmarks/performance.py: results to tables, tables to their places in the page."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from performance import PAGE, filled, machines, phases, savings

SQUARE = {"name": "square", "rows": 8, "inputs": 8, "outputs": 1024}
MACHINE = {
    "machine": {"cpu": "Abacus", "threads": 2, "torch": "2.13.0", "date": "2026-01-01"},
    "matrix": [
        {**SQUARE, "dtype": "float32", "library": "torch", "rate": 2e11},
        {**SQUARE, "dtype": "float32", "library": "oneDNN", "rate": 1e11},
        {**SQUARE, "dtype": "bfloat16", "library": "torch", "rate": 7e12},
    ],
    "bandwidth": [
        {"kind": "read", "bytes": 1 << 20, "rate": 90e9},
        {"kind": "copy", "bytes": 1 << 20, "rate": 60e9},
        {"kind": "read", "bytes": 1 << 29, "rate": 20e9},
        {"kind": "copy", "bytes": 1 << 29, "rate": 15e9},
    ],
    "calls": [{"name": "nothing", "best": 2.14e-6}],
}
STEP = {
    "size": "tiny",
    "dtype": "float32",
    "machine": MACHINE["machine"],
    "threads_of_the_step": 1,
    "workload": {"prompts": 2, "num_generations": 4, "max_new_tokens": 16},
    "parameters": 2_500_000,
    "rates": {"matrix": 2e11},
    "seconds": 1.25,
    "phases": {
        "decode": {"seconds": 0.75, "floor": 0.25, "over": 3.0, "limit": "bytes"},
        "rewards": {"seconds": 0.5, "floor": None, "over": None, "limit": None},
    },
    "forwarded_over_exist": 1.0,
    "prompts_forwarded_over_exist": 1.25,
    "repetitions": [
        {
            "layouts": [
                {"name": "plain", "tokens": 3000, "operations": 4e12},
                {"name": "shared", "tokens": 1000, "operations": 1e12},
            ]
        }
    ],
}


def test_a_machine_is_shown_with_every_product_and_bandwidth():
    text = machines([MACHINE])
    assert "| square | 8 x 8 x 1,024 | torch 200, oneDNN 100 | torch 7,000 |" in text
    assert "| | 1 MiB | 512 MiB |" in text
    assert "| read | 90 GB/s | 20 GB/s |" in text
    assert "| copy | 60 GB/s | 15 GB/s |" in text
    assert "nothing 2.1 us" in text


def test_phases_are_shown_over_their_floors_and_those_without_one_as_they_are():
    text = phases([STEP])
    assert "| decode | 0.75 | 0.25 | bytes | 3.0x |" in text
    assert "| rewards | 0.5 | none |  |  |" in text
    assert "that exists: 1.000; for prompts alone: 1.250." in text


def test_layouts_are_compared_with_the_one_in_use():
    assert "| plain | 3,000 | 3.00x | 4 | 4.00x |" in savings([STEP])


def test_only_what_stands_between_the_markers_is_replaced():
    page = "before\n<!-- phases -->\nold\n<!-- end of phases -->\nafter\n"
    assert filled(page, {"phases": r"new \1"}) == (
        "before\n<!-- phases -->\n\nnew \\1\n\n<!-- end of phases -->\nafter\n"
    )


def test_a_part_without_a_place_is_named():
    with pytest.raises(ValueError, match="no place for 'machines'"):
        filled("nothing here", {"machines": "text"})


def test_the_page_has_a_place_for_every_part():
    parts = {"machines": "one", "phases": "two", "savings": "three", "predictions": "four"}
    assert all(f"-->\n\n{text}\n\n<!--" in filled(PAGE.read_text(), parts) for text in parts.values())
