"""What `paceline doctor` says of a machine, and whether training can run on it."""

import pytest

from paceline.cli import doctor
from paceline.cli.doctor import Check, conclusion, embedded_model, extras, free_memory, symbolic_maths
from paceline.cli.main import main
from paceline.errors import RewardError


def test_the_doctor_says_that_training_can_run_where_these_tests_do(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("`paceline train` can run.\n")
    assert all(
        name in out for name in ("python", "torch", "transformers", "sandbox", "peft", "cores", "memory", "disk")
    )


def test_an_argument_is_refused(capsys):
    assert main(["doctor", "--loud"]) == 2
    assert "paceline doctor takes no argument, got '--loud'" in capsys.readouterr().err


def test_a_missing_extra_is_named_with_the_line_that_installs_it():
    there, missing = extras({"peft": "1.2", "wandb": None}.get, {"peft": "adapters", "wandb": "curves"})
    assert (there.state, there.says, there.remedy) == ("fine", "1.2, for adapters", "")
    assert (missing.state, missing.remedy) == ("missing", "pip install 'paceline[wandb]'")


def test_a_package_that_nothing_uses_is_not_recommended():
    (check,) = extras(lambda name: None, {"ray": ""})
    assert (check.says, check.remedy) == ("not installed, nothing uses it yet", "")


def test_an_embedded_model_without_weights_is_broken(tmp_path):
    (tmp_path / "config.json").touch()
    (tmp_path / "recipe.yaml").touch()
    check = embedded_model(tmp_path)
    assert (check.state, check.says) == ("broken", "model.safetensors is not there")


def test_answers_that_no_worker_compares_are_broken():
    def dead(gold, answer):
        raise RewardError("no worker starts")

    assert symbolic_maths(dead).state == "broken"
    assert "no worker starts" in symbolic_maths(dead).says
    assert symbolic_maths(lambda gold, answer: False).state == "broken"


def test_the_conclusion_names_the_first_thing_in_the_way():
    checks = [
        Check(name="wandb", state="missing", says="not installed"),
        Check(name="torch", state="broken", says="cannot be imported (no libcudart)", remedy="install it again"),
        Check(name="answers", state="broken", says="never mind", remedy="never mind"),
    ]
    assert conclusion(checks) == (
        "`paceline train` cannot run: torch cannot be imported (no libcudart); install it again."
    )
    assert conclusion(checks[:1]) == "`paceline train` can run."


def test_a_machine_that_cannot_train_ends_the_command_with_1(monkeypatch, capsys):
    broken = Check(name="torch", state="broken", says="is not there", remedy="install it")
    monkeypatch.setattr(doctor, "examine", lambda: [broken])
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.endswith("`paceline train` cannot run: torch is not there; install it.\n")


@pytest.mark.parametrize(
    ("text", "memory"),
    [("MemTotal: 100 kB\nMemAvailable:   3 kB\n", 3072), ("MemTotal: 100 kB\n", None)],
)
def test_free_memory_is_what_the_system_calls_available(tmp_path, text, memory):
    (tmp_path / "meminfo").write_text(text)
    assert free_memory(tmp_path / "meminfo") == memory


def test_free_memory_is_unknown_where_the_system_does_not_say(tmp_path):
    assert free_memory(tmp_path / "meminfo") is None
