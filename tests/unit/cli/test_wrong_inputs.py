"""Wrong inputs, one by one: exit status 2, one sentence that names what and where, no traceback, nothing written."""

import json

import pytest

from paceline.cli.main import main
from tests.support.wrong_inputs import CASES, furnish, make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "model"
    make_model(path)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    furnish(tmp_path, model)
    return tmp_path


def test_there_are_at_least_60_of_them():
    assert len(CASES) >= 60


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("line", "named"), CASES.values(), ids=CASES)
def test_a_wrong_input_is_one_sentence_and_leaves_nothing_behind(line, named, here, capsys):
    before = sorted(here.rglob("*"))
    status = main(line.split())
    error = capsys.readouterr().err
    assert status == 2
    assert error.startswith("paceline: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    for word in named:
        assert word in error
    assert sorted(path for path in here.rglob("*") if "__pycache__" not in path.parts) == before


def test_a_canary_in_a_configuration_never_runs(here, capsys):
    main(["train", "--config", "object.yaml"])
    assert not (here / "canary").exists()


def test_a_model_configuration_that_is_no_json_object_is_named(here, capsys):
    broken = here / "broken_model"
    broken.mkdir()
    (broken / "config.json").write_text(json.dumps([1]))
    (broken / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert main(["plan", "--model", "broken_model", "--dataset", "rows.jsonl"]) == 2
    assert "config.json is not a JSON object" in capsys.readouterr().err
