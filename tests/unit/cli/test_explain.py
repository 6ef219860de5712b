"""`paceline explain`: the formula, and where each value came from."""

import json
import subprocess
import sys

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.explain import OPTION_SOURCES, VALUE_SOURCES, source_of
from paceline.cli.main import main
from paceline.config.building import build_config
from paceline.config.flat_yaml import to_yaml
from paceline.config.presets import PRESETS
from paceline.config.reading import options
from paceline.reports.page.html import configuration
from paceline.reports.page.reading import read_run


def explained(capsys, *words: str) -> tuple[str, dict[str, list[str]]]:
    """What is printed, and of each option what stands beside it: value, origin, source."""
    assert main(["explain", *words]) == 0
    out = capsys.readouterr().out
    names = {option.name for option in options()}
    cells = [[cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in out.splitlines()]
    return out, {row[0]: row[1:] for row in cells if row and row[0] in names and len(row) > 2}


def test_every_option_has_its_value_and_its_origin(capsys):
    out, rows = explained(capsys, "--preset", "dapo", "--learning_rate=1e-5", "--tp", "2", "--max-steps", "3")
    assert set(rows) == {option.name for option in options()}
    assert rows["learning_rate"] == ["1.0e-05", "flag"]
    assert rows["preset"] == ["dapo", "flag"]
    assert rows["max_refills"] == ["3", "preset dapo", "[DAPO, arXiv:2503.14476, Eq. 11]"]
    assert rows["tensor_parallel"] == ["2", "another tool's flag"]
    assert rows["dataset"] == ["arithmetic", "recipe.yaml line 4"]
    assert rows["warmup_steps"] == ["3", "recipe.yaml line 13, fitted to the flags"]
    assert rows["filter_func"] == ["accuracy", "follows from others"]
    assert rows["top_k"] == ["0", "default"]
    assert "policy_t = -min(r_t A, clip(r_t, 1 - 0.2, 1 + 0.28) A)" in out
    assert "Preset dapo: DAPO, arXiv:2503.14476, Eq. 8, 11 and 13. It differs from that in sampling again" in out


def test_a_value_of_a_file_has_its_line_and_a_flag_wins(capsys, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("# mine\nmodel: org/m\ndataset: d.jsonl\n\nclip-eps-low: 0.1\nbeta: 0.0\n")
    _, rows = explained(capsys, "--config", str(file), "--preset", "grpo", "--dataset", "other.jsonl")
    assert rows["model"] == ["org/m", "mine.yaml line 2"]
    assert rows["clip_eps_low"][:2] == ["0.1", "mine.yaml line 5"]
    assert rows["beta"][:2] == ["0.0", "mine.yaml line 6"]
    assert rows["clip_eps_high"][:2] == ["0.2", "preset grpo"]
    assert rows["dataset"] == ["other.jsonl", "flag"]


def test_what_a_flag_takes_the_place_of_is_at_its_default(capsys, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model: org/m\ndataset: d.jsonl\nmax_steps: 50\n")
    flags = ("--num-epochs", "2")
    _, rows = explained(capsys, "--config", str(file), *flags)
    assert (rows["num_epochs"], rows["max_steps"]) == (["2.0", "flag"], ["null", "default"])


def test_a_run_names_the_lines_that_say_more_than_preset_and_default(capsys, tmp_path):
    config = build_config({"model": "m", "dataset": "d", "preset": "dapo", "seed": 7, "max_refills": 5})
    RunDir.create(tmp_path / "run", to_yaml(config))
    lines = (tmp_path / "run" / "config.yaml").read_text().splitlines()
    _, rows = explained(capsys, str(tmp_path / "run"))
    assert rows["seed"] == ["7", f"config.yaml line {lines.index('seed: 7') + 1}"]
    assert rows["max_refills"][:2] == ["5", f"config.yaml line {lines.index('max_refills: 5') + 1}"]
    assert rows["overlong_share"][:2] == ["0.2", "preset dapo"]
    assert rows["temperature"] == ["1.0", "default"]


def test_the_correction_of_stale_completions_names_its_number_and_its_origin(capsys, tmp_path):
    words = ["--model", "m", "--dataset", "d", "--cluster", "--max-staleness", "1"]
    out, rows = explained(capsys, *words)
    origin = "default with --max-staleness above 0 or --engine-quantization fp8"
    assert rows["rollout_correction"][:2] == ["token_truncate", origin]
    assert "c_t = min(rho, 2), rho = old_t / rollout_t" in " ".join(out.split())
    assert explained(capsys, *words, "--rollout-correction", "none")[1]["rollout_correction"] == ["none", "flag"]
    for name, given in (("stale", {}), ("off", {"rollout_correction": "none"})):
        config = build_config({"model": "m", "dataset": "d", "cluster": True, "max_staleness": 1, **given})
        RunDir.create(tmp_path / name, to_yaml(config))
    assert explained(capsys, str(tmp_path / "stale"))[1]["rollout_correction"][1] == origin
    assert explained(capsys, str(tmp_path / "off"))[1]["rollout_correction"][1].startswith("config.yaml line")


def test_another_tools_command_is_explained_in_our_options(capsys):
    words = "-- python rl_example.py --dataset d.jsonl --model org/m -t 1 -i 4 -b vllm -rt boxed".split()
    _, rows = explained(capsys, *words)
    assert rows["model"] == ["org/m", "another tool's flag"]
    assert rows["top_k"] == ["0", "default"]


def test_what_is_no_run_and_what_stands_behind_one_is_refused(capsys, tmp_path):
    assert main(["explain", str(tmp_path)]) == 2
    assert f"paceline explain {tmp_path} is not a run directory" in capsys.readouterr().err
    assert main(["explain", str(tmp_path), "--seed", "1"]) == 2
    assert "takes one run directory and nothing else, got '--seed'" in capsys.readouterr().err


def test_neither_torch_nor_numpy_is_loaded_to_explain():
    code = (
        "import json, sys; from paceline.cli.main import main; main(['explain']); "
        "print(json.dumps(sorted({'torch', 'transformers', 'numpy', 'datasets', 'rich'} & sys.modules.keys())))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(out.splitlines()[-1]) == []


def test_a_source_is_of_an_option_and_of_a_value_that_exist():
    by_name = {option.name: option for option in options()}
    assert OPTION_SOURCES.keys() <= by_name.keys()
    for name, of_values in VALUE_SOURCES.items():
        assert of_values.keys() <= set(by_name[name].choices)
    assert not OPTION_SOURCES.keys() & VALUE_SOURCES.keys()


@pytest.mark.parametrize("name", ["dr_grpo", "gspo", "cispo", "rloo", "scalerl"])
def test_what_is_special_in_a_preset_has_the_presets_paper_as_its_source(name):
    paper = PRESETS[name].source.split(",")[1].strip()
    assert any(paper in (source_of(*item) or "") for item in PRESETS[name].values.items())


def test_the_report_shows_the_formula_above_the_configuration(tmp_path):
    RunDir.create(tmp_path / "run", "model: m\ndataset: d\npreset: gspo\n")
    assert "clip(<i>r</i>, 1 &minus; 0.0003, 1 + 0.0004) <i>A</i>)" in configuration(read_run(tmp_path / "run"))
    (tmp_path / "run" / "config.yaml").write_text("model: m\ndataset: d\nan_option_of_long_ago: 1\n")
    section = configuration(read_run(tmp_path / "run"))
    assert "an_option_of_long_ago" in section
    assert "minimised" not in section
