"""What is made of a configuration before weights are read, and how little is loaded for it."""

import shlex
import subprocess
import sys

import pytest

from paceline.config.building import build_config
from paceline.errors import ConfigError, DataError, SandboxError
from paceline.runtime.own_code import own_name
from paceline.training.identity import graders
from paceline.training.setup.checks import check
from paceline.training.setup.configuration import read_configuration
from paceline.training.setup.held_out import reward_evaluator
from paceline.training.setup.inputs import RunObjects
from paceline.training.setup.preparation import own_objective, prepare
from tests.support.scripted import ScriptedEngine, completion, task
from tests.support.wrong_inputs import CASES, ROW, furnish, make_model

CODE = """
import sys
from paceline.config.building import build_config
from paceline.training.setup.preparation import own_objective, prepare
from paceline.training.setup.inputs import RunObjects
options = {"model": "model", "dataset": "rows.jsonl", "eval_dataset": "rows.jsonl", "max_completion_length": 100}
inputs = prepare(build_config({**options, "allow_overlap": True}))
assert (len(inputs.tasks.tasks), len(inputs.evaluators)) == (4, 1)
print("\\n".join(sys.modules))
"""
COMPUTES = {
    "transformers.modeling_utils",
    "paceline.models.loading",
    "paceline.engines.local.engine",
    "paceline.checkpoints.saving",
    "paceline.training.learner.learner",
    "paceline.training.loop",
}
"""Takes longer to load than all that is needed to refuse a run."""


READS = """
import sys
from paceline.cli.main import main
opened = []
names = ("rows.jsonl", "held_out.jsonl", "more.jsonl", "system.txt")


def note(event, given):
    if event == "open" and "paceline.training.session" not in sys.modules:  # until all is prepared
        opened.append(str(given[0]))


sys.addaudithook(note)
status = main(sys.argv[1:])
print(status, *(sum(file.endswith(name) for file in opened) for name in names))
"""


REFUSED = """
import sys
from paceline.cli.main import main
status = main(sys.argv[1:])
print(status, "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    "name",
    [
        "half of a model",
        "weights of other shapes",
        "adapter in no layer",
        "export of no whole checkpoint",
        "resume of no whole checkpoint",
    ],
)
def test_what_files_alone_can_tell_is_refused_without_torch(tmp_path, name):
    make_model(tmp_path / "tiny")
    (tmp_path / "here").mkdir()
    furnish(tmp_path / "here", tmp_path / "tiny")
    command = [sys.executable, "-c", REFUSED, *shlex.split(CASES[name][0])]
    done = subprocess.run(command, cwd=tmp_path / "here", capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "2 False", done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "reads"),
    [
        pytest.param(
            *("train --dataset rows.jsonl --eval-dataset held_out.jsonl --system-prompt file:system.txt", [1, 1, 0, 1]),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("train --dataset rows.jsonl more.jsonl#2 --dataset-size 3 --eval-dataset rows.jsonl", [1, 0, 1, 0]),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("eval --dataset held_out.jsonl --system-prompt file:system.txt --baseline model", [0, 1, 0, 1]),
            marks=pytest.mark.long,
        ),
        ("plan --dataset rows.jsonl", [1, 0, 0, 0]),
    ],
    ids=["train", "several datasets", "eval", "plan"],
)
def test_no_file_is_read_twice(tmp_path, command, reads):
    make_model(tmp_path / "model")
    for name in ("rows.jsonl", "held_out.jsonl", "more.jsonl"):
        (tmp_path / name).write_text(ROW * 4)
    (tmp_path / "system.txt").write_text("Add.")
    steps = "--max-steps 1 --prompts-per-step 1 --num-generations 2 --allow-overlap"
    steps = "" if command.startswith("eval") else steps
    words = f"{command} --model model --max-completion-length 4 {steps}".split()
    done = subprocess.run(
        [sys.executable, "-c", READS, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert list(map(int, done.stdout.splitlines()[-1].split())) == [0, *reads], done.stderr


@pytest.mark.parametrize(
    ("names", "most"),
    [(["rows.jsonl"], 3), (["rows.jsonl", "more.jsonl"], 6)],  # of two each has half
    ids=["one dataset", "several"],
)
def test_rows_behind_the_dataset_size_are_not_looked_at(tmp_path, names, most):
    make_model(tmp_path / "model")
    for name in names:
        (tmp_path / name).write_text(ROW * 3 + '{"answer": "2"}\n')
    places = [str(tmp_path / name) for name in names]
    options = {"model": str(tmp_path / "model"), "dataset": places, "max_completion_length": "4"}
    check(build_config({**options, "dataset_size": str(most)}))
    with pytest.raises(DataError, match=r"rows\.jsonl:4"):
        check(build_config({**options, "dataset_size": str(most + 1)}))


def test_a_schedule_of_the_options_own_takes_the_place_of_a_files_scheduler(tmp_path):
    (tmp_path / "run.yaml").write_text("model: m\ndataset: d\nlr_scheduler: cosine(warmup=2)\n")
    schedulers = [
        read_configuration(given, file=tmp_path / "run.yaml").config.optim.lr_scheduler
        for given in ({}, {"lr_schedule": "linear"}, {"lr_schedule": "linear", "lr_scheduler": "polynomial"})
    ]
    assert schedulers == ["cosine(warmup=2)", None, "polynomial"]


def test_a_sandbox_that_a_tool_cannot_have_is_refused_at_once(tmp_path, monkeypatch):
    def none_is_usable():
        raise FileNotFoundError(2, "No usable temporary directory found")

    make_model(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(ROW)
    monkeypatch.setattr("tempfile.gettempdir", none_is_usable)
    monkeypatch.setattr("paceline.environments.builtin.python._SANDBOXES", {})
    options = {"model": str(tmp_path / "model"), "dataset": str(tmp_path / "rows.jsonl"), "max_completion_length": "4"}
    with pytest.raises(SandboxError, match="--sandbox auto cannot be had on this machine"):
        check(build_config({**options, "environment": ["calculator", "python"], "reward_funcs": "accuracy"}))


@pytest.mark.parametrize(
    "names", [{"dataset": "plain.jsonl"}, {"dataset": "rows.jsonl", "eval_dataset": "plain.jsonl"}]
)
def test_a_conversation_does_not_go_on_from_plain_text(tmp_path, monkeypatch, names):
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(ROW)
    (tmp_path / "plain.jsonl").write_text('{"prompt": "1+1="}\n')
    options = {"model": "model", "max_completion_length": "4", "environment": "guess", "reward_funcs": (), **names}
    with pytest.raises(DataError, match=r"^row plain\.jsonl:1: its prompt is plain text, and a conversation \(--env"):
        prepare(build_config(options))


@pytest.mark.parametrize(
    ("name", "others"),
    [("accuracy", {"reward_funcs": "accuracy"}), ("overlong", {"reward_funcs": (), "overlong_share": 0.2})],
)
def test_an_environment_does_not_take_the_place_of_a_reward(tmp_path, monkeypatch, name, others):
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(ROW)
    options = {"model": "model", "dataset": "rows.jsonl", "max_completion_length": "4", **others}
    with pytest.raises(ConfigError, match=f"^--environment must not have the name of a reward, got '{name}'; .*NAME="):
        prepare(build_config({**options, "environment": f"{name}=guess:5"}))


def test_several_environments_need_rows_that_choose_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(ROW)
    config = build_config(
        {
            "model": "model",
            "dataset": "rows.jsonl",
            "max_completion_length": "4",
            "environment": ["small=guess:5", "large=guess:100"],
            "reward_funcs": "accuracy",
        }
    )
    with pytest.raises(
        DataError, match=r"^column 'environment' .* \(small, large\), and no row of the dataset has one"
    ):
        prepare(config)
    (tmp_path / "rows.jsonl").write_text(ROW + ROW.replace("{", '{"environment": "small", ', 1))
    assert len(prepare(config).tasks.tasks) == 2


def test_a_row_that_names_another_environment_than_the_one_given_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "model")
    named = ROW.replace("{", '{"environment": "small", ', 1)
    (tmp_path / "rows.jsonl").write_text(ROW + named)
    options = {"model": "model", "dataset": "rows.jsonl", "max_completion_length": "4", "reward_funcs": "accuracy"}
    assert len(prepare(build_config({**options, "environment": "small=guess:5"})).tasks.tasks) == 2
    for given in ({}, {"eval_dataset": "rows.jsonl", "dataset": "generic.jsonl"}):
        (tmp_path / "generic.jsonl").write_text(ROW)
        with pytest.raises(
            DataError,
            match=r"^row rows\.jsonl:2: column 'environment' must name an environment of --environment \(guess\), got "
            "'small'; correct the row, or rename the column if it means something else$",
        ):
            prepare(build_config({**options, "environment": "guess:5", **given}))


def test_prompts_of_conversations_are_not_cut(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(ROW)
    options = {"model": "model", "dataset": "rows.jsonl", "max_completion_length": "4", "long_prompts": "truncate_left"}
    message = "^--long-prompts must not be truncate_left with --environment, got 'truncate_left'; .*; use drop$"
    with pytest.raises(ConfigError, match=message):
        prepare(build_config({**options, "environment": "guess:5", "reward_funcs": ()}))


def test_a_whole_preparation_loads_nothing_that_computes_a_model(tmp_path):
    make_model(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(ROW * 4)
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split("\n"))
    assert "transformers.models.auto.tokenization_auto" in loaded
    assert not loaded & COMPUTES


def test_held_out_rewards_are_measured_however_training_filters():
    options = {"model": "embedded", "dataset": "rows.jsonl", "filter_range": ["0", "1"], "max_refills": "2"}
    config = build_config(
        {**options, "oversampling": "1.5", "num_generations": "2", "filter_func": "accuracy", "eval_generations": "2"}
        | {"eval_temperature": "1"}
    )
    functions = {"accuracy": lambda completions, **columns: [float(text == "2") for text in completions]}
    evaluator = reward_evaluator(config, "held-out", (task("a"), task("b")), functions, None, None)
    engine = ScriptedEngine([[completion("2"), completion("2")], [completion("1"), completion("2")]])
    found = evaluator.evaluate(engine, step=0)
    measured, rows = found.record(), found.completion_records()
    assert (measured["n"], measured["reward_mean"], measured["groups_zero_deviation"]) == (2, 0.75, 1)
    assert [(row["parsed"], row["format"]) for row in rows] == [(None, None)] * 4


OWN = """
def centred(rewards):
    given = [reward for reward in rewards if reward is not None]
    return [0.0 if reward is None else reward - sum(given) / len(given) for reward in rewards]


def surrogate(tokens):
    return -tokens.ratio * tokens.advantages


def mean(tokens):
    return surrogate(tokens).mean()
"""


def own_options(path, **more):
    return {"model": "embedded", "dataset": "arithmetic", "advantage": f"{path}:centred", **more}


def test_an_advantage_and_a_loss_of_ones_own_are_found_by_name_and_their_file_is_noted(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    config = build_config(own_options(path, bound=f"{path}:surrogate"))
    advantage, loss = own_objective(config, RunObjects())
    assert (advantage([1.0, None, 3.0]), loss.__name__) == ([-1.0, 0.0, 1.0], "surrogate")
    noted = graders(config)
    assert noted["advantage"].keys() | noted["bound"].keys() == {f"{path}:centred", f"{path}:surrogate"}
    path.write_text(OWN + "# mended\n")
    assert graders(config) != noted
    # what is built in has no file
    plain = graders(build_config({"model": "embedded", "dataset": "arithmetic"}))
    assert plain["advantage"] == plain["bound"] == {}


def test_a_loss_that_averages_is_refused_before_weights_are_read(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    with pytest.raises(ConfigError, match=r"--bound .*mine\.py:mean must .* so it averages or sums itself"):
        prepare(build_config(own_options(path, bound=f"{path}:mean")))


def test_functions_given_as_objects_stand_in_the_options_by_name():
    def halves(rewards):
        return [(reward or 0.0) / 2 for reward in rewards]

    given, options = RunObjects(advantage=halves), {"model": "embedded", "dataset": "arithmetic"}
    named = build_config({**options, "advantage": own_name(halves)})
    assert own_objective(named, given) == (halves, None)
    with pytest.raises(ConfigError, match="--advantage must name the function that is given as an object, got 'group'"):
        own_objective(build_config(options), given)
