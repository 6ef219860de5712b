"""No code that a received run directory names runs, under any command and by any option, until a command names it."""

import json
import os
from pathlib import Path

import pytest

import paceline
from paceline.base_directory import held_base
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
FUNCTION_FORMS = ("evil.py:f", "./evil.py:f", "{run}/evil.py:f", "evil:f", "evil.deeper:f", "evil.py:f(x=1)")
FROM_THE_BASE = (
    *(("reward_funcs", ["accuracy", one]) for one in FUNCTION_FORMS),
    *((option, one) for option in ("eval_reward_func", "advantage", "bound") for one in FUNCTION_FORMS),
    *(
        ("environment", [before + one.replace(":f", ":g")])
        for before in ("", "name=", "harness:", "name=harness:")
        for one in FUNCTION_FORMS[:-1]
    ),
    *(("environment", [one]) for one in ("mcp:touch {mark}", "harness:command:touch {mark}", "a=gymnasium:evil:E-v0")),
    *(("environment", [one]) for one in ("skyrl_gym:evil:e", "verifiers:evil", "openenv:http://evil.example", "a.b:g")),
    *(("sandbox", one) for one in ("https://evil.example/run", "http://evil.example", "none")),
    *(("cluster", one) for one in ("evilhost:6379", "ray://evil.example:10001", "10.0.0.1:6379")),
    *(("reward_funcs", [one]) for one in ("judge:https://evil.example/v1(model=m)", "judge:http://evil/v1(model=m)")),
    *(("dataset", ["verifiers:evil"]), ("eval_dataset", ["x=verifiers:evil"])),
)
"""Forms in which a received run that names another base directory may name code or a service."""
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", READING)
def test_a_command_that_needs_no_code_of_a_run_leaves_it_alone(received, command: str, capsys):
    for option, value in (CODE[0], CODE[6], CODE[10], CODE[22]):
        run, mark = received(option, value)
        main(command.format(run=run, config=run / "config.yaml").split())

        assert not mark.exists(), (option, value)
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_no_form_of_code_runs_from_where_a_received_run_says_that_it_was_started(
    received, command: str, tmp_path: Path, monkeypatch, capsys
):
    """The module that the first word of such a text could name is not installed here."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for option, value in FROM_THE_BASE:
        if option not in COMMANDS[command]:
            continue
        run, mark = received(option, value)
        (run / "identity.json").write_text(json.dumps({"base": {"relative": ".", "absolute": str(run)}}))
        status = main(command.format(run=run, config=run / "config.yaml").split())
        said = capsys.readouterr().err

        assert not mark.exists(), (option, value)
        assert status == 2, (option, value)
        assert "a run directory may be another's" in said, (option, value, said)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("advantage", "mine.py:f(/evil.py:f"),  # loaded as the file `mine.py:f(/evil.py`
        ("reward_funcs", "judge:http://evil.example/mine.py:f"),
        ("sandbox", "http://evil.example/mine.py:f"),
    ],
)
def test_a_text_is_not_taken_for_code_that_this_user_has_run(received, tmp_path: Path, option: str, text: str):
    mine = tmp_path / "mine.py"
    mine.write_text("def f(): return 1\n")
    allow_named_code(build_config({"model": "m", "dataset": "d", "advantage": f"{mine}:f"}), None, {})
    run, _ = received(option, text)
    for link in ("mine.py", text.rpartition(":")[0]):  # files of the run that lead to the user's own
        if not (run / link).exists() and link != "mine.py:f(/evil.py":
            (run / link).parent.mkdir(parents=True, exist_ok=True)
            (run / link).symlink_to(mine)
    value = (text,) if option == "reward_funcs" else text

    with pytest.raises(ConfigError, match="a run directory may be another's"):
        allow_named_code(build_config({"model": "m", "dataset": "d", option: value}), run / "config.yaml", {})


def test_a_module_of_the_received_directory_is_not_the_one_that_was_run(received, tmp_path: Path, monkeypatch):
    """The received run names the user's own directory as its base, and is looked at from within."""
    mine = tmp_path / "mine"
    mine.mkdir()
    run, _ = received("environment", ["gymnasium:evil:Env-v0"])
    for name in ("gymnasium:evil:Env-v0", "evil:g"):
        config = build_config({"model": "m", "dataset": "d", "environment": [name]})
        (mine / "evil.py").write_text("g = 1\n")
        monkeypatch.chdir(mine)
        with held_base(mine):
            allow_named_code(config, None, {})
            allow_named_code(config, run / "config.yaml", {})
            monkeypatch.chdir(run)
            with pytest.raises(ConfigError, match="a run directory may be another's"):
                allow_named_code(config, run / "config.yaml", {})


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("option", "value"), CODE)
def test_resuming_a_received_run_is_refused_with_the_words_that_allow_it(received, option: str, value: object):
    run, _ = received(option, value)

    with pytest.raises(ConfigError, match="a run directory may be another's") as refused:
        resumed_run(run, {}, file=None, override=["reward_funcs", "environment"])

    assert f"--{option.replace('_', '-')}" in str(refused.value)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("option", "value"),
    [one for one in (*CODE, *FROM_THE_BASE) if one[0] in ("environment", "sandbox", "trust_remote_code")],
)
def test_chat_opens_no_tools_of_a_received_run(received, option: str, value: object):
    run, mark = received(option, value)

    with pytest.raises(ConfigError, match="a run directory may be another's"):
        read_options({}, file=str(run / "config.yaml"), runs=chat.CODE_OPTIONS)
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
