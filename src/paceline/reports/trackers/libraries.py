"""One final class per tracking library, imported when the tracker is made: only a named one must be installed.

A library that opens no run at the start is refused. What it raises later is an outage, which `Sender` bears: the run
directory holds every number before a tracker sees it.

Libraries' variables mean what they mean to transformers' callbacks, and a run that the program has begun itself is
taken, and left open.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from paceline.base_directory import local_path
from paceline.errors import ConfigError

DEFAULT_PROJECTS = ("paceline", "huggingface")
"""Default values of `--project` and of transformers' `project`."""


def project_of(project: str, variable: str) -> str:
    """Return `project`; where that is a default, the project of this environment variable if it is set."""
    return (os.environ.get(variable) or project) if project in DEFAULT_PROJECTS else project


WANDB_STEP = "train/global_step"
"""Name of the step metric, which is transformers', so that curves of both can be compared."""


class Tracker(Protocol):
    """Draws numbers over steps. Knows nothing of what they mean."""

    url: str | None
    """Address of the curves; None: they are on this machine only."""

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Add one point to each named curve; steps do not go down."""

    def finish(self) -> None:
        """Write what is left and close."""


class TensorBoardTracker:
    """Event files in `TENSORBOARD_LOGGING_DIR`, else in `directory/tensorboard`, for `tensorboard --logdir`."""

    url: str | None = None

    def __init__(self, *, project: str, run_name: str, directory: Path, settings: Mapping[str, object]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = os.environ.get("TENSORBOARD_LOGGING_DIR")
        self._writer = SummaryWriter(str(local_path(folder) if folder else directory / "tensorboard"))
        text = json.dumps({"project": project, "run_name": run_name, **settings}, indent=2, default=str)
        # TensorBoard renders text as Markdown: four spaces keep it as it is
        self._writer.add_text("settings", "\n".join(f"    {line}" for line in text.splitlines()))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """One scalar each, on disk at once: a killed run keeps its curves."""
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)
        self._writer.flush()

    def finish(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbTracker:
    """A Weights & Biases run, its files under `directory/wandb`; `WANDB_MODE=offline` needs no account.

    Steps are a metric of their own, as with transformers: what the program logs beside a run goes on counting.
    """

    def __init__(self, *, project: str, run_name: str, directory: Path, settings: Mapping[str, object]) -> None:
        import wandb

        self._is_taken = wandb.run is not None
        try:
            if wandb.run is None:
                project = project_of(project, "WANDB_PROJECT")
                self._run = wandb.init(project=project, name=run_name, dir=directory, config=dict(settings))
            else:
                self._run = wandb.run
                self._run.config.update(dict(settings), allow_val_change=True)
        except wandb.Error as error:
            raise ConfigError(
                f"--report-to wandb: no run can be opened ({error}); run `wandb login`, or set WANDB_MODE=offline"
            ) from error
        self._run.define_metric(WANDB_STEP)
        self._run.define_metric("*", step_metric=WANDB_STEP, step_sync=True)
        self.url: str | None = self._run.url  # None offline

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Hand the numbers to the library's own process, which retries on a bad connection."""
        self._run.log({**numbers, WANDB_STEP: step})

    def finish(self) -> None:
        """Wait until everything is uploaded, or on disk when offline; a run of the program's stays open."""
        if not self._is_taken:
            self._run.finish()


class TrackioTracker:
    """A Trackio run in Trackio's own directory (`TRACKIO_DIR`), where `trackio show` finds it."""

    url: str | None = None

    def __init__(self, *, project: str, run_name: str, directory: Path, settings: Mapping[str, object]) -> None:
        import trackio

        # The dashboard takes a configuration of JSON values only.
        config = json.loads(json.dumps(dict(settings), default=str))
        try:
            self._run = trackio.init(project=project, name=run_name, config=config, embed=False)
        except ValueError as error:
            raise ConfigError(f"--report-to trackio: no run can be opened ({error}); change --project") from error

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Queue the numbers for the library's own thread."""
        self._run.log(dict(numbers), step=step)

    def finish(self) -> None:
        """Wait until everything is written."""
        self._run.finish()


def mlflow_url(address: str, *, experiment: str, run: str) -> str | None:
    """Where a server shows a run; None: the address is a file's. A password in the address stays out.

    >>> mlflow_url("http://me:secret@runs.example:5000/", experiment="1", run="ab")
    'http://runs.example:5000/#/experiments/1/runs/ab'
    """
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        return None
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}/#/experiments/{experiment}/runs/{run}"


class MlflowTracker:
    """An MLflow run on the server of `MLFLOW_TRACKING_URI`, else in the file `directory/mlflow.db`.

    A client of its own, so that a program that uses MLflow beside a run keeps its server.
    """

    def __init__(self, *, project: str, run_name: str, directory: Path, settings: Mapping[str, object]) -> None:
        from mlflow import MlflowClient, active_run, get_tracking_uri
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException

        address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(directory / 'mlflow.db').resolve()}"
        self._metric, taken = Metric, active_run()
        self._is_taken = taken is not None
        address = get_tracking_uri() if taken is not None else address
        try:
            self._client = MlflowClient(tracking_uri=address)
            run = self._client.get_run(taken.info.run_id) if taken is not None else self._begun(project, run_name)
            self._run_id = run.info.run_id
            # a parameter that the program has set cannot be changed
            params = [Param(name, str(value)) for name, value in settings.items() if name not in run.data.params]
            self._client.log_batch(self._run_id, params=params)
        except MlflowException as error:
            raise ConfigError(
                f"--report-to mlflow: no run can be opened at {address} ({error}); check MLFLOW_TRACKING_URI"
            ) from error
        self.url = mlflow_url(address, experiment=run.info.experiment_id, run=self._run_id)

    def _begun(self, project: str, run_name: str) -> Any:
        name = project_of(project, "MLFLOW_EXPERIMENT_NAME")
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        return self._client.create_run(number, run_name=run_name)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the numbers in one request."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, number, now, step) for name, number in numbers.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def finish(self) -> None:
        """Mark the run as finished; one of the program's stays open."""
        if not self._is_taken:
            self._client.set_terminated(self._run_id)
