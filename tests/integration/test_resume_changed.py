"""A run that is gone on with after something has changed: an option, its configuration, its data, its model."""

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from paceline.config.building import build_config
from paceline.config.flat_yaml import parse_yaml
from tests.chaos.conversing import furnish_conversing
from tests.chaos.runs import Place
from tests.support.cluster_runs import ROWS, train, weights


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("changed") / "place"
    same_rows = ("--eval-dataset", f"set={place / 'rows.jsonl'}", "--allow-overlap")
    train(place, "--save-steps", 2, *same_rows, "--eval-reward-func", "format")
    return place


@pytest.fixture(scope="module")
def whole(finished) -> bytes:
    return weights(RunDir(finished / "run"))


@pytest.fixture
def whole_run(finished) -> Iterator[RunDir]:
    """The finished run, which is put back as it was."""
    before = {file: file.read_bytes() for file in finished.rglob("*") if file.is_file()}
    yield RunDir(finished / "run")
    shutil.rmtree(finished)
    for file, content in before.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


@pytest.fixture
def cut(whole_run) -> RunDir:
    """The run as a process left it that was killed after step 3, with its checkpoint of step 2, its files in place."""
    for later in ("final", "checkpoints/step-000004"):
        shutil.rmtree(whole_run.path / later)
    return whole_run


def resume(run: RunDir, line: str = "") -> int:
    return main(["train", "--resume", str(run.path), *line.split()])


def refusal(run: RunDir, capsys, line: str = "") -> str:
    """The sentence of a refusal, after which the directory is as it was."""
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file() and file.name != ".lock"}
    assert resume(run, line) == 2
    after = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file() and file.name != ".lock"}
    assert after == before
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def changes(run: RunDir) -> list[dict]:
    found = run.identity()
    assert found is not None
    return found["changes"]


def test_the_options_of_the_run_itself_may_stand_beside_resume_in_any_spelling(finished, whole, cut):
    again = f"--learning_rate 1e-2 --max-steps 4 --output-dir {cut.path} --model {finished / 'model'}"
    assert resume(cut, again) == 0
    assert weights(cut) == whole
    assert changes(cut) == []


def test_what_changes_no_number_is_taken_and_written_down_with_its_step(whole, cut, capsys):
    assert resume(cut, "--save-steps 1 --eval-steps 1") == 0
    assert "--save-steps is 1 and was 2" in " ".join(capsys.readouterr().out.split())
    assert weights(cut) == whole
    assert changes(cut) == [
        {
            "after_step": 2,
            "options": {"eval_steps": {"old": 0, "new": 1}, "save_steps": {"old": 2, "new": 1}},
            "files": {},
        }
    ]
    text = (cut.path / "config.yaml").read_text()
    assert "# after step 2: --save-steps is 1 and was 2\n" in text
    assert build_config(parse_yaml(text, "config.yaml")).loop.save_steps == 1


def test_what_changes_the_maths_goes_on_only_by_name_and_then_without_asking_again(whole, cut, capsys):
    assert "--learning-rate is 0.02 and was 0.01" in refusal(cut, capsys, "--learning-rate 0.02")
    assert resume(cut, "--learning-rate 0.02 --override learning_rate") == 0
    assert weights(cut) != whole
    (entry,) = changes(cut)
    assert entry["after_step"] == 2
    assert entry["options"] == {"learning_rate": {"old": 0.01, "new": 0.02}}
    assert [record["learning_rate"] for record in cut.metrics()] == [0.01, 0.01, 0.02, 0.02]
    assert resume(cut) == 0
    assert len(changes(cut)) == 1


def test_a_preset_that_is_given_anew_brings_its_values(cut, capsys):
    said = refusal(cut, capsys, "--preset gspo")
    assert "--preset is gspo and was none" in said
    assert "--ratio-level is sequence and was token" in said
    assert "was edited" not in said


def test_what_follows_from_an_option_that_is_given_anew_is_asked_for_with_it(cut, capsys):
    said = refusal(cut, capsys, "--engine-quantization fp8 --override engine_quantization")
    assert "--rollout-correction is token_truncate and was none, with which" in said
    assert "--override engine_quantization rollout_correction" in said


def test_an_edited_configuration_is_found_out(cut, capsys):
    file = cut.path / "config.yaml"
    file.write_text(file.read_text().replace("temperature: 1.0", "temperature: 0.5", 1))
    assert "--temperature is 0.5 and was 1.0 (config.yaml was edited)" in refusal(cut, capsys)


def test_a_changed_row_is_found_out_by_its_name_and_taken_by_name(finished, cut, capsys):
    rows = [{**row, "answer": "#### 9"} if number == 3 else row for number, row in enumerate(ROWS)]
    (finished / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = refusal(cut, capsys)
    assert "rows.jsonl has other content than it had, first in row" in said
    assert "rows.jsonl:4" in said
    assert "--override dataset eval_dataset" in said
    assert resume(cut, "--override dataset eval_dataset") == 0
    assert list(changes(cut)[0]["files"]) == ["dataset", "eval_dataset"]


def test_rows_that_are_gone_are_counted(finished, cut, capsys):
    (finished / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:5]))
    assert "has 5 rows and had 6" in refusal(cut, capsys)


def test_another_model_in_the_same_place_is_found_out(finished, cut, capsys):
    file = finished / "model" / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    assert "has another model.safetensors than it had" in refusal(cut, capsys)
    config = finished / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "rms_norm_eps": 1e-3}))
    assert "(and one more difference)" in refusal(cut, capsys)
    assert resume(cut, "--override model") == 0


def test_another_chat_template_is_named_alone_and_taken_by_name(finished, cut, capsys):
    file = finished / "model" / "chat_template.jinja"
    file.write_text(file.read_text() + " ")
    named = f"--model {finished / 'model'} has another chat template than it had"
    assert refusal(cut, capsys).startswith(f"paceline: {named}, so that")
    (finished / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in reversed(ROWS)))
    said = refusal(cut, capsys)
    assert "rows.jsonl has other content than it had, first in row rows.jsonl:1, " in said
    assert f", {named}, so that" in said
    (finished / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert resume(cut, "--override model") == 0
    assert list(changes(cut)[0]["files"]) == ["model"]


def test_prompts_that_change_without_a_known_reason_are_found_out(cut, capsys):
    record = dict(cut.identity())
    record["dataset"] = {**record["dataset"], "blocks": ["another", *record["dataset"]["blocks"][1:]]}
    cut.write_identity(record)
    assert "rows.jsonl has other content than it had, first in row rows.jsonl:1, so that" in refusal(cut, capsys)


def test_another_reward_function_in_the_same_file_is_found_out_and_taken_by_name(finished, cut, capsys):
    file = finished / "reward.py"
    file.write_text(file.read_text() + "# mended\n")
    said = refusal(cut, capsys)
    assert "reward.py:" in said
    assert "has changed since you ran it" in said
    assert "--override reward_funcs\n" in said
    assert resume(cut, "--override reward_funcs") == 0
    assert list(changes(cut)[0]["files"]) == ["reward_funcs"]


def test_a_run_whose_record_was_not_written_yet_goes_on(cut):
    (cut.path / "identity.json").unlink()
    assert resume(cut) == 0
    assert changes(cut) == []


def test_what_followed_an_older_checkpoint_that_is_gone_on_from_is_kept(whole, whole_run, capsys):
    run, before = whole_run, whole_run.metrics()
    rate = "--learning-rate 0.02 --override learning_rate"
    assert main(["train", "--resume", str(run.path / "checkpoints" / "step-000002"), *rate.split()]) == 0
    kept = RunDir(run.path / "aside" / "after-step-000002")
    sentence = f"step-000004 and the records after step 2 are kept in {kept.path}"
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert [place.name for place in (kept.path / "checkpoints").iterdir()] == ["step-000004"]
    assert (kept.metrics(), kept.rollout_steps(), list(kept.journal())) == (before[2:], [3, 4], [3, 4])
    assert "learning_rate: 0.01" in (kept.path / "config.yaml").read_text()
    assert [record["learning_rate"] for record in run.metrics()] == [0.01, 0.01, 0.02, 0.02]
    assert weights(run) != whole


def test_another_place_is_no_way_to_go_on(cut, capsys):
    assert "--output-dir elsewhere is not the run behind --resume" in refusal(cut, capsys, "--output-dir elsewhere")


def test_there_is_nothing_to_override_in_a_new_run(capsys):
    assert main(["train", "--override", "beta"]) == 2
    assert "there is no --resume" in capsys.readouterr().err


def test_another_environment_in_the_same_file_is_found_out_and_taken_by_name(tmp_path, capsys, monkeypatch):
    place = furnish_conversing(tmp_path / "place")
    monkeypatch.chdir(place.folder)
    assert main(["train", *place.words()]) == 0
    run = place.run
    for later in ("final", "checkpoints/step-000003"):
        shutil.rmtree(run.path / later)
    file = place.folder / "world.py"
    file.write_text(file.read_text().replace("% 10", "% 9"))
    capsys.readouterr()
    assert "has changed since you ran it, so that it would compute something else: environment" in refusal(run, capsys)
    assert resume(run, "--override environment") == 0
    assert changes(run)[0]["files"] == {"environment": "World has other code or content than it had"}
    assert resume(run) == 0


SHORT = ("--max-completion-length", "60")  # a tool may be shown beside


def installed(folder: Path, version: str, text: str) -> None:
    """Install a package of one module, as pip leaves it."""
    for old in folder.glob("*"):
        shutil.rmtree(old)
    (folder / "worlds").mkdir(parents=True)
    (folder / "worlds" / "__init__.py").write_text(text)
    described = folder / f"world_makers-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: world-makers\nVersion: {version}\n")
    (described / "top_level.txt").write_text("worlds\n")


@pytest.fixture
def packaged(tmp_path, monkeypatch) -> Iterator[Place]:
    """A place with a run of two steps, whose environment is of an installed package; what it ended with is `aside`."""
    place, site = furnish_conversing(tmp_path / "place"), tmp_path / "site"
    installed(site, "1.0", (place.folder / "world.py").read_text())
    monkeypatch.chdir(place.folder)
    monkeypatch.syspath_prepend(site)
    assert main(["train", *place.words(), "--environment", "worlds:World", "--max-steps", "2", *SHORT]) == 0
    place.run.path.joinpath("final").rename("aside")
    yield place
    sys.modules.pop("worlds", None)


def install_anew(place: Place, version: str, text: str) -> None:
    installed(place.folder.parent / "site", version, text)
    sys.modules.pop("worlds")
    importlib.invalidate_caches()


def test_another_version_of_an_environments_package_is_named(packaged, capsys):
    install_anew(packaged, "1.1", (packaged.folder / "world.py").read_text())
    capsys.readouterr()
    named = "--environment World is of world-makers 1.1 and was of world-makers 1.0, so that"
    assert named in refusal(packaged.run, capsys)
    assert resume(packaged.run, "--override environment") == 0


def test_another_schema_of_a_tool_is_named(packaged, capsys):
    tool = '    tools = [{"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}]\n'
    text = (packaged.folder / "world.py").read_text().replace("class World:\n", f"class World:\n{tool}")
    install_anew(packaged, "1.0", text)
    capsys.readouterr()
    assert "names code that has changed since you ran it" in refusal(packaged.run, capsys)
    said = refusal(packaged.run, capsys, "--environment worlds:World")
    assert said.startswith(
        "paceline: --environment World has other tools than it had (and 2 more differences), so that"
    )


def test_what_is_committed_is_read_without_the_environments_package(packaged, capsys):
    """Resuming needs it, as prompts show its tools, and says so; nothing is changed, and with it the run goes on."""
    whole = Path("aside", "model.safetensors").read_bytes()
    shutil.rmtree(packaged.folder.parent / "site" / "worlds")
    sys.modules.pop("worlds")
    importlib.invalidate_caches()
    assert main(["replay", "run", "--step", "2"]) == 0
    assert main(["report", "run"]) == 0
    assert main(["rollouts", "run", "--static", "pages"]) == 0
    capsys.readouterr()
    assert "names code that is not found: environment worlds:World; install its package" in refusal(
        packaged.run, capsys
    )
    installed(packaged.folder.parent / "site", "1.0", (packaged.folder / "world.py").read_text())
    importlib.invalidate_caches()
    assert resume(packaged.run) == 0
    assert weights(packaged.run) == whole
