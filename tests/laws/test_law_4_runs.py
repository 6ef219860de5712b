"""Law 4, whole runs: the same bytes for one process again, for one producer and two, in turn and a step ahead."""

import json
from pathlib import Path

import pytest

from paceline.config import build_config
from paceline.errors import ConfigError
from paceline.models import bits_hang_on, choose_device
from paceline.rundir import RunDir
from tests.cluster_runs import train, weights

CLOCKS = ("clock", "seconds")
"""The only numbers of a run that a clock makes."""


def metrics(run: RunDir) -> bytes:
    """`metrics.jsonl` with its clocks left out and rewards without the function's name, which holds the directory."""

    def without_clocks(value: object) -> object:
        if isinstance(value, dict):
            return {Path(name).name: without_clocks(one) for name, one in value.items() if name not in CLOCKS}
        return value

    return b"\n".join(json.dumps(without_clocks(step)).encode() for step in run.metrics())


def both(run: RunDir) -> tuple[bytes, bytes]:
    return metrics(run), weights(run)


def test_a_run_in_one_process_is_the_same_again_and_says_what_its_bits_hang_on(tmp_path, capsys):
    first, again = (train(tmp_path / name, "--deterministic", "true") for name in ("a", "b"))
    assert both(first) == both(again)
    assert "deterministic: a CPU gives the same bits again by itself" in capsys.readouterr().out
    assert both(train(tmp_path / "c", "--seed", 5)) != both(first)


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_run_on_a_cluster_is_the_same_again_with_one_producer_and_with_two(tmp_path, max_staleness):
    options = ("--cluster", "--max-staleness", max_staleness, "--deterministic", "true")
    first, second = (train(tmp_path / f"{count}", *options, "--num-producers", count) for count in (1, 2))
    assert weights(first) == weights(second)
    ways = [
        {name: step[name] for name in ("policy_version", "staleness_max", "loss", "grad_norm")}
        for step in first.metrics()
    ]
    assert ways == [{name: step[name] for name in ways[0]} for step in second.metrics()]
    assert metrics(first) == metrics(second)


@pytest.mark.parametrize(
    "options",
    [
        {"cluster": True, "max_staleness": 1, "on_new_weights": "continue"},
        {"engine": "vllm"},
        {"optimizer": "adamw_8bit"},
    ],
    ids=str,
)
def test_what_makes_no_promise_is_refused_in_a_deterministic_run(options):
    with pytest.raises(ConfigError, match="with --deterministic; "):
        build_config({"model": "m", "dataset": "arithmetic", "deterministic": True, **options})


def test_the_bits_of_this_machine_hang_on_its_threads_and_kernels():
    config = build_config({"model": "embedded", "dataset": "arithmetic"})
    assert "(--threads) and " in bits_hang_on(choose_device(config.model))
