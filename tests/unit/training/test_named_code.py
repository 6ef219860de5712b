"""No code that a received run directory names runs, under any command and by any option, until a command names it."""

import os
from pathlib import Path

import pytest

import paceline
from paceline.cli import chat
from paceline.cli.main import main
from paceline.config.building import build_config
from paceline.config.flat_yaml import to_yaml
from paceline.config.reading import options
from paceline.errors import ConfigError
from paceline.serving.loading import read_options
from paceline.training.setup.named_code import (
    MEASURED,
    NAMES_NO_CODE,
    READERS,
    allow_named_code,
    code_named_by,
    ran_before,
    takes_text,
)
from paceline.training.setup.run_request import new_run, resumed_run

EVIL = 'open({mark!r}, "w").close()\ndef f(*given, **columns): return [0.0]\nclass g:\n    reset = f\n'
CODE = (
    *(
        ("reward_funcs", ["{run}/evil.py:f"]),
        ("reward_funcs", ["evil:f"]),
        ("reward_funcs", ["accuracy", "evil:f(x=1)"]),
    ),
    *(("eval_reward_func", "{run}/evil.py:f"), ("eval_reward_func", "evil:f"), ("eval_reward_func", "evil(:f")),
    *(("advantage", "{run}/evil.py:f"), ("advantage", "evil:f"), ("bound", "{run}/evil.py:f"), ("bound", "evil:f")),
    *(("environment", ["mcp:touch {mark}"]), ("environment", ["harness:command:touch {mark}"])),
    *(("environment", ["harness:{run}/evil.py:f"]), ("environment", ["harness:evil:f"]), ("environment", ["evil:g"])),
    *(("environment", ["calculator=evil:g"]), ("environment", ["calculator", "x=mcp:touch {mark}"])),
    *(("environment", ["python(1):evil:g"]), ("environment", ["gymnasium:evil:Env-v0"])),
    *(("environment", ["skyrl_gym:evil:e"]), ("environment", ["verifiers:evil"]), ("environment", ["python:none"])),
    *(("dataset", ["verifiers:evil"]), ("eval_dataset", ["x=verifiers:evil"]), ("sandbox", "none")),
    *(("sandbox", "http://evil.example"), ("cluster", "evil.example:6379"), ("trust_remote_code", True)),
    *(("reward_funcs", ["judge:http://evil.example/v1(model=m, key_env=AWS_SECRET_ACCESS_KEY)"]),),
)
"""Options of a received run that lead to code, or to somebody's service with this user's keys."""
COMMANDS = {
    "train --resume {run}": [*READERS],
    "train --resume {run} --config {config}": ["environment", "trust_remote_code"],
    "train --config {config}": ["bound", "sandbox", "eval_dataset"],
    "plan --config {config}": ["reward_funcs", "advantage", "cluster"],
    "eval {run}": [*MEASURED],
    "eval --config {config} --model nowhere": [*MEASURED],
    "replay {run} --step 1": ["advantage", "bound", "trust_remote_code"],
    "audit --config {config}": ["reward_funcs", "dataset", "sandbox"],
    "export {run} out": ["trust_remote_code"],
}
"""Commands with the options whose code they would run: each must refuse it."""
READING = ("explain {run}", "explain --config {config}", "report {run}", "export {run} out", "eval {run}")
"""Commands that run none of the other options."""


@pytest.fixture
def received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return what makes a directory as a sender packs it: a run whose config.yaml has been changed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = tmp_path / "received"
    run.mkdir()
    monkeypatch.chdir(run)
    monkeypatch.syspath_prepend("")

    def make(option: str, value: object) -> tuple[Path, Path]:
        mark = tmp_path / "ran"
        (run / "evil.py").write_text(EVIL.format(mark=str(mark)))
        told = (
            [one.format(run=run, mark=mark) for one in ([value] if isinstance(value, str) else value)]
            if not isinstance(value, bool)
            else value
        )
        told = told[0] if isinstance(value, str) else told
        values = {"model": "embedded", "dataset": "arithmetic", option: told}
        (run / "config.yaml").write_text(to_yaml(build_config(values)))
        (run / ".lock").write_text("process 1 on host theirs\n")
        (run / "final").mkdir(exist_ok=True)
        (run / "final" / "config.json").write_text("{}")
        return run, mark

    return make


def test_every_option_that_takes_a_text_is_said_to_name_code_or_not():
    unclear = {option.name for option in options() if takes_text(option)} ^ {*READERS, *NAMES_NO_CODE}

    assert unclear == {"trust_remote_code"}  # true and false alone


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_the_code_that_a_received_run_names(received, command: str, capsys):
    for option, value in CODE:
        if option not in COMMANDS[command]:
            continue
        run, mark = received(option, value)
        status = main(command.format(run=run, config=run / "config.yaml").split())
        said = capsys.readouterr().err

        assert not mark.exists(), (option, value)
        assert status == 2, (option, value)
        assert "a run directory may be another's" in said, (option, value)


@pytest.mark.parametrize("command", READING)
def test_a_command_that_needs_no_code_of_a_run_leaves_it_alone(received, command: str, capsys):
    for option, value in (CODE[0], CODE[6], CODE[10], CODE[22]):
        run, mark = received(option, value)
        main(command.format(run=run, config=run / "config.yaml").split())

        assert not mark.exists(), (option, value)
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), CODE)
def test_resuming_a_received_run_is_refused_with_the_words_that_allow_it(received, option: str, value: object):
    run, _ = received(option, value)

    with pytest.raises(ConfigError, match="a run directory may be another's") as refused:
        resumed_run(run, {}, file=None, override=["reward_funcs", "environment"])

    assert f"--{option.replace('_', '-')}" in str(refused.value)


@pytest.mark.parametrize(("option", "value"), [one for one in CODE if one[0] in ("environment", "trust_remote_code")])
def test_chat_opens_no_tools_of_a_received_run(received, option: str, value: object):
    run, mark = received(option, value)

    with pytest.raises(ConfigError, match="a run directory may be another's"):
        read_options({}, file=str(run / "config.yaml"), runs=chat.OF_CODE)
    assert not mark.exists()


@pytest.mark.parametrize("head", ["", "!!python/object/apply:os.system ['touch ran']\n", "%YAML 1.1\n---\n"])
def test_a_received_run_without_its_marks_runs_nothing_either(received, head: str):
    run, mark = received("eval_reward_func", "evil:f")
    config = run / "config.yaml"
    config.write_text(head + config.read_text().partition("\n")[2])
    (run / ".lock").unlink()
    (run / "evals.jsonl").write_text("")

    with pytest.raises(ConfigError):
        paceline.evaluate(config=config)
    assert not mark.exists()


def test_a_run_named_through_a_link_is_still_a_run(received, tmp_path: Path):
    run, mark = received("eval_reward_func", "evil:f")
    (tmp_path / "mine.yaml").symlink_to(run / "config.yaml")

    with pytest.raises(ConfigError, match="a run directory may be another's"):
        paceline.evaluate(config=tmp_path / "mine.yaml")
    assert not mark.exists()


def test_what_a_command_names_is_allowed_from_then_on_until_it_changes(received):
    run, _ = received("advantage", "evil:f")
    config, file = build_config({"model": "m", "dataset": "d", "advantage": "evil:f"}), run / "config.yaml"

    allow_named_code(config, file, {"--advantage": "evil:f"})
    allow_named_code(config, file, {})  # as a resume without further words
    (run / "evil.py").write_text("def f(): return 1\n")
    with pytest.raises(ConfigError, match="that has changed since"):
        allow_named_code(config, file, {})
    allow_named_code(config, file, {}, override=["advantage"])  # the option that says that files have changed


def test_the_same_name_in_another_directory_is_other_code(received, tmp_path: Path, monkeypatch):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "evil.py").write_text("def f(): return 1\n")
    run, _ = received("advantage", "evil.py:f")
    config = build_config({"model": "m", "dataset": "d", "advantage": "evil.py:f"})
    monkeypatch.chdir(mine)
    allow_named_code(config, None, {})
    allow_named_code(config, run / "config.yaml", {})  # the name leads to this user's own file

    monkeypatch.chdir(run)
    with pytest.raises(ConfigError, match="a run directory may be another's"):
        allow_named_code(config, run / "config.yaml", {})


def test_a_command_is_known_by_its_directory_and_the_files_among_its_words(received, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.py").write_text("1")
    run, _ = received("environment", ["mcp:python server.py"])
    config = build_config({"model": "m", "dataset": "d", "environment": ["mcp:python server.py"]})
    allow_named_code(config, None, {})
    allow_named_code(config, run / "config.yaml", {})

    (tmp_path / "server.py").write_text("2")
    with pytest.raises(ConfigError, match="a run directory may be another's"):
        allow_named_code(config, run / "config.yaml", {})


def test_another_value_beside_the_runs_own_names_nothing(received):
    """`replay --advantage group` computes the run's own objective too."""
    run, _ = received("advantage", "evil:f")
    config = build_config({"model": "m", "dataset": "d", "advantage": "evil:f"})

    with pytest.raises(ConfigError, match="a run directory may be another's"):
        allow_named_code(config, run / "config.yaml", {"advantage": "group"})


def test_the_record_is_the_users_alone(received, tmp_path: Path):
    run, _ = received("advantage", "evil:f")
    config, record = (
        build_config({"model": "m", "dataset": "d", "advantage": "evil:f"}),
        tmp_path / "state/paceline/code-run",
    )
    allow_named_code(config, None, {})
    assert record.stat().st_mode & 0o777 == 0o600
    assert ran_before()

    os.chmod(record, 0o666)  # anybody may have written into it
    with pytest.raises(ConfigError, match="a run directory may be another's"):
        allow_named_code(config, run / "config.yaml", {})


@pytest.mark.parametrize(
    "values",
    [
        {"reward_funcs": ("accuracy", "cosine(max_length=9)", "model:org/name", "judge:runs/judge(mode=rank)")},
        {"environment": ("calculator", "x=python:auto", "search:docs", "guess:9", "reasoning_gym:chain_sum(a=1)")},
        {"dataset": ("a.jsonl", "org/name:config"), "eval_dataset": ("x=a.jsonl",), "sandbox": "landlock"},
        {"advantage": "group", "bound": "clip", "cluster": True, "system_prompt": "a:b", "stop": ("a:b",)},
    ],
)
def test_what_comes_with_the_package_needs_no_word(values):
    assert code_named_by(values) == ()


def test_a_users_own_run_goes_on_without_further_words(received, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def f(*given): return 0\n")
    request = new_run({"model": "embedded", "advantage": "mine.py:f", "output_dir": "runs/mine"}, file=None)
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(request.config))

    assert resumed_run(folder, {}, file=None, override=[]).config.advantage.advantage == "mine.py:f"
