"""`GRPOTrainer` as the ranks of torchrun or accelerate: law 10, the run of one process to rounding."""

import json
import os
import subprocess
import sys

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.config.flat_yaml import parse_yaml
from tests.support.forked import forked, python, torchrun
from tests.support.trl_ranks import CASES, trained, weights

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return folder, {case: trained(folder, case) for case in CASES}


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranked")
    done = torchrun("-m", "tests.support.trl_ranks", folder)
    assert done.returncode == 0, done.stderr
    return folder, [json.loads((folder / f"rank-{number}.json").read_text()) for number in range(2)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("saved", ["final", "again"])
def test_two_ranks_end_with_the_weights_of_one_process(alone, ranked, case, saved):
    mine, theirs = weights(ranked[0] / case / saved), weights(alone[0] / case / "final")
    assert mine.keys() == theirs.keys()
    assert max((mine[name] - theirs[name]).abs().max().item() for name in theirs) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_return_from_each_method_with_the_first_ones_result(alone, ranked, case):
    first, second = (rank[case] for rank in ranked[1])
    assert first["rewards"] == second["rewards"] == pytest.approx(alone[1][case]["rewards"])
    assert first["updates"] == second["updates"] == [3, 3]
    assert (first["leads"], second["leads"]) == (True, False)


def test_what_reward_functions_log_on_any_rank_is_in_the_log(alone, ranked):
    first = ranked[1][0]["copies"]
    assert [seen for seen, _ in first["logged"]] == [seen for seen, _ in alone[1]["copies"]["logged"]] == [0, 1, 2]
    assert {rank for _, rank in first["logged"]} == {0.5}  # each has half of the completions
    assert (first["mine"], ranked[1][1]["copies"]["mine"]) == (1, 0)


def test_a_configuration_of_another_tool_is_a_layout_here(ranked):
    texts = {case: (ranked[0] / case / "config.yaml").read_text() for case in CASES}
    options = {case: build_config(parse_yaml(text, "config.yaml")) for case, text in texts.items()}
    assert [options[case].parallel.zero_stage for case in CASES] == [0, 3, 2, 3]
    assert [options[case].optim.offload for case in CASES] == [(), ("parameters",), (), ()]


def test_accelerate_starts_the_same_run(tmp_path, alone):
    done = subprocess.run(
        [sys.executable, *ACCELERATE, "-m", "tests.support.trl_ranks", str(tmp_path), "copies"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    mine, theirs = weights(tmp_path / "copies" / "final"), weights(alone[0] / "copies" / "final")
    assert max((mine[name] - theirs[name]).abs().max().item() for name in theirs) < 1e-5


def test_a_rank_that_dies_ends_the_program_by_name_and_leaves_its_checkpoint(tmp_path):
    words = [*TORCHRUN, "-m", "tests.support.trl_ranks", str(tmp_path), "copies"]
    done = forked(python, words, os.getcwd(), {**os.environ, "DIES": "1"})
    assert done.returncode != 0
    assert "ProcessLost: rank 1 is gone" in done.stderr
    assert RunDir(tmp_path / "copies").metrics()[-1]["step"] == 2
