"""A model whose files lack weights, or have some that config.json has no place for, is refused at every command."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.models.places import PACKAGE
from tests.outside.desk import Desk


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--dataset", "arithmetic", "--max-steps", 1, "--output-dir", "runs/mine"),
        ("eval", "--dataset", "arithmetic", "--eval-size", 2),
        pytest.param(("serve", "--port", 0), marks=pytest.mark.long, id="serve"),
    ],
    ids=lambda words: words[0],
)
def test_a_missing_layer_ends_a_command_by_the_name_of_a_weight(desk: Desk, words):
    shutil.copytree(PACKAGE / "embedded", desk.path / "base", ignore=shutil.ignore_patterns("programs", "agent"))
    weights = load_file(desk.path / "base/model.safetensors")
    gone = [name for name in weights if name.startswith("model.layers.1.")]
    save_file({name: one for name, one in weights.items() if name not in gone}, desk.path / "base/model.safetensors")

    done = desk.paceline(words[0], "--model", "base", *words[1:])

    assert done.returncode == 2, done.stderr
    assert re.search(r"--model base: its files have no weight model\.layers\.1\.[a-z_.]+ \(and", done.stderr), (
        done.stderr
    )
    assert not (desk.path / "runs").exists()


@pytest.mark.long
def test_a_weight_without_a_place_in_config_json_ends_a_command_too(desk: Desk):
    shutil.copytree(PACKAGE / "embedded", desk.path / "base", ignore=shutil.ignore_patterns("programs", "agent"))
    described = json.loads((desk.path / "base/config.json").read_text())
    weights = load_file(desk.path / "base/model.safetensors")
    weights["model.layers.0.mlp.up_proj.bias"] = torch.ones(described["intermediate_size"])
    save_file(weights, desk.path / "base/model.safetensors")

    done = desk.paceline("eval", "--model", "base", "--dataset", "arithmetic", "--eval-size", 2)

    assert done.returncode == 2, done.stderr
    assert "base: its files have the weight model.layers.0.mlp.up_proj.bias, for which its config.json" in done.stderr
