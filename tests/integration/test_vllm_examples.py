"""ColossalChat's own example commands, translated, train with vLLM in the samplers, on Ray."""

from pathlib import Path

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from paceline.compat.commands.command import translate
from paceline.compat.commands.translation import as_words
from paceline.engines.vllm.window import check_vllm
from paceline.errors import ConfigError
from tests.support.colossalchat_commands import PROJECT, ROWS, SEVERAL_MACHINES, SINGLE_MACHINE, scaled_down
from tests.support.tiny import tiny_model, tiny_tokenizer

pytest.importorskip("ray")
try:
    check_vllm("cpu")
except ConfigError as missing:
    pytest.skip(str(missing), allow_module_level=True)

ELSEWHERE = ("vllm_tensor_parallel",)
"""What the commands say of machines that are not here."""


def trained(tmp_path: Path, example: str, flags: str) -> RunDir:
    model = tmp_path / "model"
    tiny_model("llama").save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    found = translate(scaled_down(tmp_path, example, ROWS[:4], model, flags), repair=True).options
    assert found["engine"] == "vllm"
    here = {"cluster": True, "vllm_memory": "0.05GiB"}  # not at the address of a cluster that is elsewhere
    options = {name: value for name, value in found.items() if name not in ELSEWHERE} | here
    assert main(["train", *as_words(options)]) == 0
    return RunDir(tmp_path / "runs" / PROJECT)


def test_the_example_for_one_machine_trains_with_two_samplers_and_two_trainers(tmp_path):
    run = trained(tmp_path, SINGLE_MACHINE, "-t 2 -i 2")
    assert [(step["prompts"], step["rollouts"]) for step in run.metrics()] == [(4, 16)]
    assert run.metrics()[0]["logprob_mismatch_mean"] < 1e-5


def test_the_example_for_several_machines_trains_scaled_down_to_this_one(tmp_path):
    run = trained(tmp_path, SEVERAL_MACHINES, "-t 4 -i 1 -tp 2 -pp 2 -zero 1 -ibs 2")
    assert [step["prompts"] for step in run.metrics()] == [2] * 4  # two episodes of four rows
