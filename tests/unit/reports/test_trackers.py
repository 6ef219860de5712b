"""Each tracker receives every number under one flat name, and its outages cost little and are reported."""

import json
import math
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import packaging
import pytest

from paceline.config.packages import TRACKERS, requirements
from paceline.config.reading import find_option
from paceline.errors import ConfigError
from paceline.reports.trackers import LIBRARIES, Sender, Trackers, check_trackers, flat_numbers, open_trackers
from paceline.reports.trackers.libraries import MlflowTracker, WandbTracker, mlflow_url

RECORD = {
    "step": 3,
    "loss": 0.25,
    "kl": None,
    "rewards": {"accuracy": {"mean": 0.5, "failures": 0}, "./my rewards.py:f": {"mean": None, "std": 1.5}},
    "clock": {"total": 2.0},
}
NUMBERS = {
    "step": 3.0,
    "loss": 0.25,
    "rewards/accuracy/mean": 0.5,
    "rewards/accuracy/failures": 0.0,
    "rewards/._my rewards.py:f/std": 1.5,
    "clock/total": 2.0,
}


def open_in(directory: Path, *names: str) -> Trackers:
    settings = {"learning_rate": 1e-6, "betas": (0.9, 0.99), "system_prompt": None, "output_dir": directory}
    return open_trackers(names, project="tests", run_name="one", directory=directory, settings=settings, notify=print)


class Server:
    """A tracker that keeps what it is told while it is there, and the clock of whoever sends."""

    url = None

    def __init__(self):
        self.is_there, self.kept, self.said, self.now, self.patience = True, [], [], 0.0, 0.0
        self.sender = Sender("mlflow", self, notify=self.said.append, clock=lambda: self.now)

    def log(self, numbers, step):
        self._answer()
        self.kept.append((step, dict(numbers)))

    def finish(self):
        self._answer()
        self.kept.append("finished")

    def _answer(self):
        if not self.is_there:
            self.now += self.patience
            raise ConnectionError("gone")


def test_every_tracker_has_a_class_an_extra_and_a_word_in_the_help():
    assert tuple(LIBRARIES) == TRACKERS
    assert set(TRACKERS) <= set(requirements())
    assert all(name in find_option("report_to").help for name in TRACKERS)


def test_a_record_becomes_flat_names_without_what_has_no_number():
    assert flat_numbers(RECORD) == NUMBERS


def test_text_is_no_number_and_a_truth_value_is_one():
    assert flat_numbers({"set": "gsm8k", "done": True}) == {"done": 1.0}


def test_two_names_that_would_share_a_curve_are_refused_by_name():
    with pytest.raises(ValueError, match=r"two numbers have the same name: \['rewards/a_b'\]"):
        flat_numbers({"rewards": {"a/b": 1, "a\\b": 2}})


def test_tensorboard_reads_back_what_was_logged_before_the_run_has_finished(tmp_path):
    accumulation = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trackers = open_in(tmp_path, "tensorboard")
    trackers.log(flat_numbers(RECORD), 3)
    trackers.log({"loss": 0.125}, 4)
    events = accumulation.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(NUMBERS)
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(3, 0.25), (4, 0.125)]
    assert events.Scalars("rewards/._my rewards.py:f/std")[0].value == 1.5
    (settings,) = events.Tensors("settings/text_summary")
    assert b'"learning_rate": 1e-06' in settings.tensor_proto.string_val[0]
    trackers.finish()


def test_tensorboard_draws_a_number_that_is_not_finite(tmp_path):
    accumulation = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trackers = open_in(tmp_path, "tensorboard")
    trackers.log({"loss": float("nan")}, 1)
    trackers.finish()
    events = accumulation.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert math.isnan(events.Scalars("loss")[0].value)


def test_mlflow_keeps_curves_and_settings_in_a_file_of_the_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    trackers = open_in(tmp_path, "mlflow")
    trackers.log(flat_numbers(RECORD), 3)
    trackers.finish()
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert run.data.metrics == NUMBERS
    assert run.data.params["learning_rate"] == "1e-06"
    assert (run.info.run_name, run.info.status) == ("one", "FINISHED")


def test_wandb_works_without_a_connection(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    trackers = open_in(tmp_path, "wandb")
    trackers.log(flat_numbers(RECORD), 3)
    trackers.finish()
    (log,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"accuracy/mean" in log.read_bytes()


class WandbRun:
    """A run that keeps what it is told."""

    url = None

    def __init__(self, **began):
        self.began, self.config, self.said = began, dict[str, object](), list[object]()

    def define_metric(self, name, **how):
        self.said.append((name, how))

    def log(self, numbers):  # with a `step`, a run loses what is beside it
        self.said.append(numbers)

    def finish(self):
        self.said.append("finished")


class Configuration(dict):
    """The configuration of a run, which refuses to be changed unawares."""

    def update(self, settings, *, allow_val_change):
        assert allow_val_change
        super().update(settings)


def wandb_of(monkeypatch, run):
    """The library with this active run, or none."""
    library = ModuleType("wandb")
    library.run, library.Error, library.init = run, OSError, WandbRun
    monkeypatch.setitem(sys.modules, "wandb", library)


STEPS = [("train/global_step", {}), ("*", {"step_metric": "train/global_step", "step_sync": True})]


@pytest.mark.parametrize(
    ("project", "variable", "taken"),
    [
        ("huggingface", "mine", "mine"),
        ("paceline", "mine", "mine"),
        ("given", "mine", "given"),
        ("paceline", None, "paceline"),
    ],
)
def test_wandb_opens_a_run_in_the_project_of_its_variable_unless_one_was_given(
    tmp_path, monkeypatch, project, variable, taken
):
    wandb_of(monkeypatch, None)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    if variable is not None:
        monkeypatch.setenv("WANDB_PROJECT", variable)
    tracker = WandbTracker(project=project, run_name="one", directory=tmp_path, settings={"seed": 3})
    tracker.log({"loss": 0.5}, 3)
    tracker.finish()
    run = tracker._run
    assert run.began == {"project": taken, "name": "one", "dir": tmp_path, "config": {"seed": 3}}
    assert run.said == [*STEPS, {"loss": 0.5, "train/global_step": 3}, "finished"]


def test_a_wandb_run_of_the_programs_own_is_taken_and_left_open(tmp_path, monkeypatch):
    run = WandbRun()
    run.config = Configuration(mine=1)
    wandb_of(monkeypatch, run)
    tracker = WandbTracker(project="huggingface", run_name="one", directory=tmp_path, settings={"seed": 3})
    tracker.log({"loss": 0.5}, 3)
    tracker.finish()
    assert run.config == {"mine": 1, "seed": 3}
    assert run.said == [*STEPS, {"loss": 0.5, "train/global_step": 3}]


class MlflowServer:
    """Runs by number, as a client of MLflow asks for them."""

    def __init__(self):
        self.experiments, self.runs, self.said = dict[str, str](), dict[str, SimpleNamespace](), list[object]()

    def client(self, tracking_uri):
        self.said.append(tracking_uri)
        return self

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        self.experiments[name] = "1"
        return "1"

    def create_run(self, experiment, run_name=None):
        info = SimpleNamespace(run_id=run_name, experiment_id=experiment)
        self.runs[run_name] = SimpleNamespace(info=info, data=SimpleNamespace(params={}))
        return self.runs[run_name]

    def get_run(self, number):
        return self.runs[number]

    def log_batch(self, number, *, params=(), metrics=()):
        self.said += [(number, *one) for one in (*params, *((name, value, step) for name, value, _, step in metrics))]

    def set_terminated(self, number):
        self.said.append(f"{number} finished")


def mlflow_of(monkeypatch, server, active):
    """The library of a program that has this active run, or none."""
    library, entities, exceptions = (ModuleType(f"mlflow{one}") for one in ("", ".entities", ".exceptions"))
    library.MlflowClient, library.active_run = server.client, lambda: active
    library.get_tracking_uri = lambda: "the program's"
    entities.Metric, entities.Param = lambda *metric: metric, lambda *param: param
    exceptions.MlflowException = OSError
    for one in (library, entities, exceptions):
        monkeypatch.setitem(sys.modules, one.__name__, one)


def test_mlflow_opens_a_run_in_the_experiment_of_its_variable_and_ends_it(tmp_path, monkeypatch):
    server = MlflowServer()
    mlflow_of(monkeypatch, server, None)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "a server")
    tracker = MlflowTracker(project="huggingface", run_name="one", directory=tmp_path, settings={"seed": 3})
    tracker.log({"loss": 0.5}, 3)
    tracker.finish()
    assert list(server.experiments) == ["mine"]
    assert server.said == ["a server", ("one", "seed", "3"), ("one", "loss", 0.5, 3), "one finished"]


def test_an_mlflow_run_of_the_programs_own_is_taken_with_its_parameters_and_left_open(tmp_path, monkeypatch):
    server = MlflowServer()
    active = server.create_run("7", run_name="active")
    active.data.params["seed"] = "as it was"
    mlflow_of(monkeypatch, server, active)
    settings = {"seed": 3, "loss_type": "dapo"}
    tracker = MlflowTracker(project="huggingface", run_name="one", directory=tmp_path, settings=settings)
    tracker.log({"loss": 0.5}, 3)
    tracker.finish()
    assert list(server.runs) == ["active"]
    assert server.said == ["the program's", ("active", "loss_type", "dapo"), ("active", "loss", 0.5, 3)]


def test_tensorboard_writes_where_its_variable_says(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "curves"))
    open_in(tmp_path, "tensorboard").finish()
    assert [one.name for one in tmp_path.iterdir()] == ["curves"]


def test_trackio_keeps_a_local_project(tmp_path):
    pytest.importorskip("trackio")
    code = (
        "import sys; from pathlib import Path; from paceline.reports.trackers import open_trackers\n"
        "place = {'project': 'tests', 'run_name': 'one', 'directory': Path(sys.argv[1])}\n"
        "t = open_trackers(['trackio'], **place, settings={}, notify=print)\n"
        "t.log({'rewards/accuracy/mean': 0.5}, 3); t.finish()"
    )
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", code, tmp_path], env=environment, check=True, timeout=60)
    with sqlite3.connect(tmp_path / "tests.db") as database:
        ((step, metrics),) = database.execute("select step, metrics from metrics").fetchall()
    assert (step, json.loads(metrics)) == (3, {"rewards/accuracy/mean": 0.5})


def test_no_tracker_does_nothing_and_writes_nothing(tmp_path):
    for names in ((), ("none",)):
        trackers = open_in(tmp_path, *names)
        trackers.log({"loss": 1.0}, 1)
        trackers.finish()
    assert not list(tmp_path.iterdir())


def test_only_what_others_can_reach_is_an_address_of_a_run(tmp_path):
    assert open_in(tmp_path, "tensorboard").urls == ()
    assert mlflow_url("https://me:secret@host/ml/", experiment="3", run="x") == "https://host/ml/#/experiments/3/runs/x"
    assert mlflow_url(f"sqlite:///{tmp_path}/mlflow.db", experiment="3", run="x") is None


def test_an_outage_is_said_once_and_what_waited_is_sent_in_order_afterwards():
    server = Server()
    server.sender.log({"loss": 1.0}, 1)
    server.is_there = False
    for step in (2, 3):
        server.sender.log({"loss": 1.0 / step}, step)
    assert server.said == [
        "--report-to mlflow takes no numbers (ConnectionError: gone): the run goes on, and up to 2000 entries wait "
        "until it does"
    ]
    server.is_there, server.now = True, 60.0
    server.sender.log({"loss": 0.25}, 4)
    server.sender.finish()
    assert server.kept == [
        (1, {"loss": 1.0}),
        (2, {"loss": 0.5}),
        (3, {"loss": 1 / 3}),
        (4, {"loss": 0.25}),
        "finished",
    ]
    assert server.said[1:] == ["--report-to mlflow takes numbers again, and has been sent what waited"]


def test_tries_during_an_outage_take_a_twentieth_of_the_time():
    server = Server()
    server.is_there, server.patience = False, 10.0
    server.sender.log({}, 1)  # ends at 10 s: the next try is due 200 s later
    server.now = 209.0
    server.sender.log({}, 2)
    assert server.now == 209.0
    server.now = 210.0
    server.sender.log({}, 3)
    assert server.now == 220.0


def test_what_an_outage_to_the_end_cost_is_said_with_its_number():
    server = Server()
    server.is_there = False
    for step in range(2003):
        server.sender.log({}, step)
    server.sender.finish()
    assert server.said[1:] == [
        "--report-to mlflow was not sent 2003 entries; the run's metrics.jsonl and evals.jsonl have them",
        "--report-to mlflow could not be closed (ConnectionError: gone)",
    ]
    assert len(server.sender._waiting) == 2000


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["tensorbord"],
            r"--report-to: no tracker 'tensorbord'; did you mean 'tensorboard'\?; choose from tensorboard, ",
        ),
        (["W&B"], r"--report-to: no tracker 'W&B'; choose from tensorboard, wandb, trackio, mlflow, all, none"),
        (["wandb", "none"], r"--report-to wandb none: 'none' must stand alone"),
        (["all", "wandb"], r"--report-to all wandb: 'all' must stand alone"),
    ],
)
def test_a_name_that_means_nothing_is_refused(names, message):
    with pytest.raises(ConfigError, match=message):
        check_trackers(names)


def run_without_packages(code: str, directory: Path) -> str:
    """The output of code that sees our source and the standard library, and of what pip installed `packaging` only."""
    source, packages = Path(__file__).parents[3] / "src", Path(packaging.__file__).parents[1]
    known = f"import sys; sys.path[:0] = [{str(packages)!r}]; import packaging.requirements; sys.path.pop(0)"
    code = f"{known}\nsys.path[:0] = ['.', {str(source)!r}]\n{code}"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True, cwd=directory, timeout=60
    ).stdout


def test_a_missing_library_is_refused_with_the_command_that_installs_it(tmp_path):
    # What runs of Weights & Biases leave behind is a directory of that name, and Python takes it for a package.
    (tmp_path / "wandb").mkdir()
    code = (
        "from paceline.errors import ConfigError\n"
        "from paceline.reports.trackers import check_trackers\n"
        "try: check_trackers(['wandb', 'mlflow'])\n"
        "except ConfigError as error: print(error)\n"
        "print(check_trackers(['all']))"
    )
    refusal, rest = run_without_packages(code, tmp_path).splitlines()
    # the bounds are the metadata's, which a source without an installation does not have
    bound = r"('wandb>=[\d.]+' 'mlflow>=[\d.]+'|wandb mlflow)"
    said = rf"--report-to wandb mlflow: not installed; run `pip install {bound}`, or leave it out"
    assert re.fullmatch(said, refusal), refusal
    assert rest == "()"


def test_the_check_imports_no_library():
    code = (
        "import sys; from paceline.reports.trackers import check_trackers; check_trackers(['all'])\n"
        "print(sorted({'torch', 'tensorboard', 'wandb', 'trackio', 'mlflow'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
