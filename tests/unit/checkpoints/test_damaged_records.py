"""What somebody has written by hand into a run's records is a sentence, never a traceback or a wait."""

import json
import os
import struct
from pathlib import Path

import pytest

from paceline.checkpoints.journal import seal
from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from paceline.errors import CheckpointError, ModelError
from paceline.models.weight_headers import read_whole

OURS = '{"set": "s", "clock": {}'
DEEP = "[" * 100_000 + "]" * 100_000
BEYOND = "9" * 400
HUGE = (f'{{"step": {BEYOND}}}', f'{{"step": 1, "set": "s", "accuracy": {BEYOND}}}', f'{{"step": 1, "a": [-{BEYOND}]}}')


def run_at(path: Path) -> RunDir:
    with RunDir.create(path, "# paceline 0\nmodel: m\ndataset: d\n") as run_dir:
        run_dir.append_metrics({"clock": {}, "step": 1, "reward_mean": 0.5})
        run_dir.append_eval({"step": 0, "set": "s", "n": 1, "accuracy": 0.5})
    return RunDir(path)


@pytest.mark.parametrize(
    "line",
    [
        OURS + "}",
        OURS + ', "step": "1"}',
        OURS + ', "step": null}',
        "[1]",
        "1",
        DEEP,
        '{"a": ' + DEEP + "}",
        "{",
        *HUGE,
    ],
)
@pytest.mark.parametrize("name", ["metrics.jsonl", "evals.jsonl"])
def test_a_line_without_what_every_line_has_is_named(tmp_path, name, line, capsys):
    run_dir = run_at(tmp_path / "run")
    with (run_dir.path / name).open("a") as file:
        file.write(f"{line}\n")

    with pytest.raises(CheckpointError, match=f"{name}, line 2"):
        run_dir.metrics() + run_dir.evals()
    assert main(["report", str(run_dir.path)]) in (0, 2)  # the page shows what can be read
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("line", ["{}", '{"step": 1, "loss": 0.5}', '{"epoch": 1.0, "reward": 0.5}'])
@pytest.mark.parametrize("name", ["metrics.jsonl", "evals.jsonl"])
def test_a_line_of_a_programs_own_log_is_left_out_and_named_once(tmp_path, name, line, caplog):
    run_dir = run_at(tmp_path / "run")
    before = run_dir.metrics(), run_dir.evals()
    with (run_dir.path / name).open("a") as file:
        file.write(f"{line}\n")
    assert (run_dir.metrics(), run_dir.evals()) == before == (run_dir.metrics(), run_dir.evals())
    (said,) = caplog.messages
    assert f"{name} has lines that are no records of the run, which are left out" in said


@pytest.mark.parametrize("name", ["set", "n", "accuracy", "ci_low", "ci_high"])
def test_an_evaluation_with_a_value_of_another_kind_is_named(tmp_path, name):
    run_dir = run_at(tmp_path / "run")
    record = {"step": 1, "set": "s", "n": 1, "accuracy": 0.5, "ci_low": 0.1, "ci_high": 0.9, name: ["x"]}
    (run_dir.path / "evals.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(CheckpointError, match=rf"evals\.jsonl, line 1, has no {name} as it was written"):
        run_dir.evals()


@pytest.mark.parametrize("name", ["completion_tokens", "reward", "advantage", "prompt_tokens"])
def test_a_number_beyond_all_floats_in_a_rollout_is_none(tmp_path, name, capsys):
    run_dir = run_at(tmp_path / "run")
    record = {
        **{"task_id": "a", "sample": 0, "prompt": "p", "completion": "c", "finish_reason": "stop"},
        **{"completion_tokens": 1, "prompt_tokens": 1, "reward": 1.0, "advantage": 1.0, "rewards": {"f": 1.0}},
    }
    (run_dir.path / "rollouts" / "step-000001.jsonl").write_text(json.dumps({**record, name: 10**400}) + "\n")

    assert main(["report", str(run_dir.path)]) == 0
    assert main(["rollouts", str(run_dir.path), "--static", str(tmp_path / "pages")]) == 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[1]", "{", DEEP, "1", '{"final_step": "x"}', '{"final_step": true}', *HUGE])
def test_a_summary_of_another_kind_is_named(tmp_path, text, capsys):
    run_dir = run_at(tmp_path / "run")
    (run_dir.path / "summary.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"summary\.json is not the JSON object"):
        run_dir.summary()
    assert main(["report", str(run_dir.path)]) == 0  # the page shows what can be read
    assert main(["export", str(run_dir.path), str(tmp_path / "out")]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("record", [{}, {"step": "1"}, {"step": 1}, {"step": 1, "bytes": 2}, {"step": [1]}])
def test_a_journal_line_that_says_too_little_is_damaged(tmp_path, record):
    run_dir = run_at(tmp_path / "run")
    (run_dir.path / "journal.jsonl").write_bytes(seal(record))
    assert run_dir.journal() == {}
    assert run_dir.truncate_after(0).entries == ()


@pytest.mark.parametrize("name", ["identity.json", "metrics.jsonl", "evals.jsonl", "journal.jsonl", "summary.json"])
def test_a_pipe_in_the_place_of_a_record_is_no_record(tmp_path, name, capsys):
    run_dir = run_at(tmp_path / "run")
    (run_dir.path / name).unlink(missing_ok=True)
    os.mkfifo(run_dir.path / name)
    assert run_dir.identity() is None
    assert run_dir.journal() == run_dir.summary() == {}
    assert main(["report", str(run_dir.path)]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "header",
    [
        DEEP,
        '{"a": ' + DEEP + "}",
        "[]",
        "{",
        json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}),
        json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}}),
        json.dumps({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
        json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}),
        json.dumps({"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}}),
        '{"a": {"shape": [1e999], "data_offsets": [0, 4]}}',
        '{"a": {"shape": [1], "data_offsets": [0, ' + "9" * 5000 + "]}}",
    ],
)
def test_a_header_that_is_none_is_refused(tmp_path, header):
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0" * 4)
    with pytest.raises(ModelError, match=r"--model x cannot be loaded: model\.safetensors has"):
        read_whole(file, "--model x")


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**9, 5])
def test_a_header_longer_than_its_file_is_refused(tmp_path, length):
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(ModelError, match="has no whole header"):
        read_whole(file, "--model x")
