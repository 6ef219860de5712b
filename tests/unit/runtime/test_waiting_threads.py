"""Threads that wait for others sleep soon, whoever has set what: the library reads it when torch is imported."""

import os
import subprocess
import sys

import pytest
import torch

from paceline.compat.trl.notes import notes_of_threads
from paceline.config.building import build_config

SAYS = "import os, sys; {first}import paceline; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("first", "variables", "rounds"),
    [
        ("", {}, "1000"),
        ("", {"GOMP_SPINCOUNT": "7"}, "7"),  # the user's own
        ("", {"OMP_WAIT_POLICY": "active"}, "None"),
        ("sys.modules['torch'] = sys; ", {}, "None"),  # too late: the library has read it
    ],
)
def test_importing_paceline_lets_waiting_threads_sleep_unless_it_is_settled(first, variables, rounds):
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    said = subprocess.run(
        [sys.executable, "-c", SAYS.format(first=first)],
        env=kept | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == rounds


def test_a_script_that_imports_torch_first_is_told_how_waiting_threads_sleep(monkeypatch):
    config = build_config({"model": "embedded", "dataset": "arithmetic", "threads": "2", "device": "cpu"})
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    (sentence,) = notes_of_threads(config)
    assert "import paceline before torch, or set GOMP_SPINCOUNT=1000: otherwise waiting threads spin" in sentence
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    assert notes_of_threads(config) == ()


def test_one_thread_waits_for_nobody(monkeypatch):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert notes_of_threads(build_config({"model": "embedded", "dataset": "arithmetic", "device": "cpu"})) == ()
