"""Law 4, whole runs: the same bytes again, and what is refused where they are promised.

On a cluster, with one sampler or two and a step ahead: `tests/integration/test_cluster.py`.
"""

import json
from pathlib import Path

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.errors import ConfigError
from paceline.models.loading import bits_hang_on
from paceline.runtime.devices import choose_device
from tests.support.cluster_runs import train, weights

CLOCKS = ("clock", "seconds")
"""The only numbers of a run that a clock makes."""


def metrics(run: RunDir) -> bytes:
    """`metrics.jsonl` with its clocks left out and rewards without the function's name, which holds the directory."""

    def without_clocks(value: object) -> object:
        if isinstance(value, dict):
            return {Path(name).name: without_clocks(one) for name, one in value.items() if name not in CLOCKS}
        return value

    return b"\n".join(json.dumps(without_clocks(step)).encode() for step in run.metrics())


def test_a_run_in_one_process_is_the_same_again_and_says_what_its_bits_hang_on(tmp_path, capsys):
    first, again = (train(tmp_path / name, "--deterministic", "true") for name in ("a", "b"))
    assert (metrics(first), weights(first)) == (metrics(again), weights(again))
    assert "deterministic: a CPU gives the same bits again by itself" in capsys.readouterr().out
    other = train(tmp_path / "c", "--seed", 5)
    assert metrics(other) != metrics(first)
    assert weights(other) != weights(first)


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
    with pytest.raises(ConfigError, match="with --deterministic, got "):
        build_config({"model": "m", "dataset": "arithmetic", "deterministic": True, **options})


def test_the_bits_of_a_processor_hang_on_its_threads_and_kernels():
    config = build_config({"model": "embedded", "dataset": "arithmetic", "device": "cpu"})
    assert "(--threads) and " in bits_hang_on(choose_device(config.model))
