"""Which rank a process is: by torchrun's variables or those of a step of Slurm, and never by half of them."""

import os
import subprocess
import sys

import pytest

from paceline.config.building import build_config
from paceline.errors import ConfigError
from paceline.workers.torchrun.environment import (
    Launched,
    check_launched,
    device_index,
    first_host,
    launched,
    tasks_of,
)

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "1000",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_CPUS_PER_TASK": "6",
}


def test_torchrun_says_it_all_and_keeps_the_port_open_itself():
    place = launched(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"})
    assert place == Launched(
        rank=5,
        size=8,
        local_rank=1,
        local_size=4,
        host="10.0.0.1",
        port=29500,
        is_hosted=True,
        attempt=2,
        cores=None,
        has_own_devices=False,
    )
    assert not place.leads
    assert not place.is_one_machine


def test_the_first_rank_opens_the_port_of_a_launcher_that_does_not():
    place = launched(TORCHRUN | {"RANK": "0"})
    assert (place.leads, place.is_hosted, place.attempt) == (True, False, 0)


def test_a_step_of_slurm_meets_on_its_first_machine_at_a_port_of_its_own():
    place = launched(SRUN)
    assert (place.rank, place.size, place.local_rank, place.local_size) == (5, 7, 1, 3)
    assert (place.host, place.port, place.cores) == ("gpu03", 15_000 + 1000 * 31 % 15_000 + 2, 6)
    assert launched(SRUN | {"SLURM_STEP_ID": "3"}).port == place.port + 1


def test_an_address_that_is_given_wins_over_slurms():
    place = launched(SRUN | {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "4711"})
    assert (place.host, place.port) == ("10.0.0.9", 4711)


def test_torchrun_within_a_step_of_slurm_is_torchruns():
    assert launched(SRUN | TORCHRUN).size == 8


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1000"},  # a batch script
        SRUN | {"SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_a_process_that_is_the_only_one_is_no_rank(environment):
    assert launched(environment) is None


def test_accelerates_single_process_in_the_place_of_several_is_refused():
    asked_for_two = {"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    with pytest.raises(ConfigError, match="starts a single process, whatever --num_processes says; start the ranks"):
        launched(asked_for_two)
    assert launched({"ACCELERATE_USE_CPU": "True"}) is None
    assert launched(asked_for_two | TORCHRUN).size == 8


@pytest.mark.parametrize("environment", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_every_variable_is_asked_for_by_name(environment):
    for name in environment.keys() - {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_CPUS_PER_TASK"}:
        rest = {key: value for key, value in environment.items() if key != name}
        with pytest.raises(ConfigError, match=f"^{name} must be set for every rank, and is not; start the ranks with"):
            launched(rest)


def test_a_variable_that_is_no_number_is_named_with_its_value():
    with pytest.raises(ConfigError, match="LOCAL_RANK must be a number, got 'first'; start the ranks with torchrun"):
        launched(TORCHRUN | {"LOCAL_RANK": "first"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node1", "node1"), ("a-[2-4,7],b", "a-2"), ("rack[1-2]n[05-09]", "rack1n05"), ("x[11],y[1-2]", "x11")],
)
def test_the_first_machine_of_a_list_in_slurms_short_form(nodes, first):
    assert first_host(nodes) == first


def test_tasks_per_machine_in_slurms_short_form():
    assert [tasks_of(node, "8(x2),3,1(x2)") for node in range(5)] == [8, 8, 3, 1, 1]


def test_each_rank_of_a_machine_has_a_device_of_its_own_or_is_refused():
    assert device_index(launched(TORCHRUN), visible=4) == 1
    assert device_index(launched(SRUN), visible=1) == 0
    with pytest.raises(ConfigError, match="this machine shows 2 to its 4 ranks; start 2 on it, or give --device cpu"):
        device_index(launched(TORCHRUN), visible=2)


@pytest.mark.parametrize(
    "options", [{"cluster": True}, {"vllm_tensor_parallel": 2, "engine": "vllm"}], ids=["cluster", "vllm"]
)
def test_what_starts_processes_of_its_own_is_refused_on_ranks(options):
    name = next(iter(options)).replace("_", "-")
    config = build_config({"model": "embedded", "dataset": "arithmetic", **options})
    with pytest.raises(ConfigError, match=f"^--{name} must be .* where a launcher starts the processes"):
        check_launched(config, launched(TORCHRUN))


@pytest.mark.parametrize("option", ["reward_funcs", "eval_reward_func"])
def test_a_judge_that_each_process_would_serve_is_refused_where_there_are_several(option):
    given = {"model": "embedded", "dataset": "arithmetic", option: "judge:runs/judge(mode=score)"}
    remedy = r"serve it once, by `paceline serve --model runs/judge`, as judge:http://HOST:PORT/v1\(model=runs/judge\)"
    with pytest.raises(ConfigError, match=f"must give the address of a judge in 8 processes .*{remedy}"):
        check_launched(build_config(given), launched(TORCHRUN))
    with pytest.raises(ConfigError, match=f"must give the address of a judge with --cluster, got .*{remedy}"):
        build_config({**given, "cluster": True})
    there = "judge:http://127.0.0.1:8000/v1(model=runs/judge)"
    build_config({**given, option: there, "cluster": True})


@pytest.mark.long
def test_an_evaluation_on_ranks_is_refused_by_one_of_each_machine():
    said = []
    for number in ("0", "1"):
        place = TORCHRUN | {"LOCAL_RANK": number, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        command = [sys.executable, "-m", "paceline", "eval"]
        said.append(subprocess.run(command, env=place, capture_output=True, text=True, check=False, timeout=60))
    assert [one.returncode for one in said] == [2, 0]
    assert "paceline eval is one process, and a launcher started 8; start it without one" in said[0].stderr
    assert said[0].stdout == said[1].stdout == said[1].stderr == ""


def test_a_layout_that_does_not_fit_the_ranks_is_refused_before_they_meet():
    config = build_config({"model": "embedded", "dataset": "arithmetic", "tensor_parallel": 3})
    with pytest.raises(ConfigError, match=r"--tensor-parallel 3 .* must divide the number of processes that train, 8"):
        check_launched(config, launched(TORCHRUN))


def test_ranks_on_several_machines_need_a_secret_and_those_of_one_do_not():
    config = build_config({"model": "embedded", "dataset": "arithmetic"})
    with pytest.raises(ConfigError, match=r"^PACELINE_RANKS_SECRET must be set where ranks are on several machines"):
        check_launched(config, launched(TORCHRUN))
    with pytest.raises(ConfigError, match=r"^PACELINE_RANKS_SECRET must have at least 16 characters, got 5"):
        check_launched(config, launched(TORCHRUN | {"PACELINE_RANKS_SECRET": "short"}))
    secret = {"PACELINE_RANKS_SECRET": "0123456789abcdef"}
    check_launched(config, launched(TORCHRUN | secret))
    assert secret["PACELINE_RANKS_SECRET"] not in repr(launched(TORCHRUN | secret))
    check_launched(config, launched(TORCHRUN | {"LOCAL_WORLD_SIZE": "8"}))
