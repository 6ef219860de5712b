"""Whole runs with vLLM as the engine: in float32 they are the runs of the local one."""

import pytest

from paceline.cli.main import main
from paceline.engines.vllm.window import check_vllm
from paceline.errors import ConfigError
from tests.support.cluster_runs import CLUSTER, completions, train, weights

try:
    check_vllm("cpu")
except ConfigError as missing:
    pytest.skip(str(missing), allow_module_level=True)

VLLM = ("--engine", "vllm", "--concurrent-sequences", 16, "--vllm-memory", "0.05GiB", "--max-prompt-length", 64)


def drawn(run) -> list[list[tuple]]:
    """What was sampled, from which weights, for which reward: all but the engine's logprobs."""
    return [[(one["completion"], one["policy_version"], one["rewards"]) for one in step] for step in completions(run)]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return train(tmp_path_factory.mktemp("local") / "run", kind="llama")


def test_a_run_in_one_process_is_the_run_of_the_local_engine_bit_for_bit(tmp_path, local):
    run = train(tmp_path / "run", *VLLM, kind="llama")
    assert drawn(run) == drawn(local)
    assert weights(run) == weights(local)


def test_an_adapter_is_sampled_with_as_the_local_engine_does(tmp_path):
    lora = ("--lora-rank", 2, "--merge-lora")
    one, other = (train(tmp_path / name, *lora, *more, kind="llama") for name, more in (("v", VLLM), ("l", ())))
    assert drawn(one) == drawn(other)
    assert weights(one) == weights(other)


def test_an_evaluation_gives_the_accuracy_of_the_local_engine(capsys):
    said = []
    for more in ((), ("--engine", "vllm")):
        assert main(["eval", "--eval-size", "200", *more]) == 0
        said.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("accuracy")])
    assert said[0] == said[1]
    assert len(said[0]) == 1


def test_producers_on_a_cluster_sample_with_vllm_and_one_that_is_killed_is_replaced(tmp_path, local):
    pytest.importorskip("ray")
    run = train(tmp_path / "run", *CLUSTER, *VLLM, trap="SIGKILL self trap", kind="llama")
    assert drawn(run) == drawn(local)
    assert weights(run) == weights(local)


def test_a_producer_whose_vllm_loses_a_process_is_replaced(tmp_path, local):
    pytest.importorskip("ray")
    spread = ("--cluster", "--vllm-tensor-parallel", 2)
    run = train(tmp_path / "run", *spread, *VLLM, trap="SIGKILL child trap", kind="llama")
    assert drawn(run) == drawn(local)
    assert weights(run) == weights(local)
