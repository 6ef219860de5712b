"""A trainer's run around the loop, which it observes: transformers' callbacks, best model, last numbers."""

import logging
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast

from transformers import TrainerControl, TrainerState
from transformers.trainer_utils import SaveStrategy, TrainOutput

from paceline.checkpoints.finding import Checkpoint, discard, read_checkpoint, step_directory
from paceline.compat.trl import history
from paceline.compat.trl.batches import describe_plan
from paceline.compat.trl.building import TrainingJob
from paceline.compat.trl.checkpoints import (
    PREFIX,
    STATE_FILE,
    add_model_files,
    forget,
    name_checkpoint,
    named_checkpoints,
    named_directories,
    step_of_name,
    write_state,
)
from paceline.compat.trl.fields import in_field_names
from paceline.compat.trl.history import LogNumbers, MetricsRecord
from paceline.compat.trl.rewards import RewardLog
from paceline.config.reading import options
from paceline.config.sections import Config
from paceline.errors import CheckpointError, ConfigError
from paceline.reports.console import open_console
from paceline.reports.trackers import Trackers
from paceline.runtime.interrupts import GraceOver
from paceline.training.backend import OneProcess
from paceline.training.evaluation import EvalResult, RewardResult
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.training.run import Requests, Run, notify, save, save_last
from paceline.training.session import RunSession
from paceline.training.setup.inputs import RunInputs
from paceline.training.setup.named_code import allow_named_code
from paceline.training.setup.run_request import RunRequest, Wording
from paceline.training.trainer import updates_per_step
from paceline.workers.backend import WorkerBackend

LOGGER = logging.getLogger(__name__)


MAY_CHANGE = frozenset(option.name for option in options()) - {"model"}
"""A resumed run takes other arguments and other rows, which it says and notes, but trains no other model."""
WORDING = Wording(resume=lambda _: "train(resume_from_checkpoint=True)", reword=in_field_names)


class CallbackObserver:
    """Drives callbacks as transformers' own loop does; a step here is a step there.

    Requests of callbacks are done here through the trainer's own methods, which a subclass or a program may override,
    in transformers' order.
    """

    def __init__(self, trainer: Any, job: TrainingJob, reward_log: RewardLog) -> None:
        """Start without an open run; `trainer` is a `GRPOTrainer`, whose file imports this one."""
        self.trainer, self.job, self.reward_log = trainer, job, reward_log
        self.handler, self.args, self.state = trainer.callback_handler, job.args, trainer.state
        self.control, self.console = TrainerControl(), open_console()
        self.run: Run | None = None
        self.has_begun = False
        """A run of this trainer was opened, so that files in the run directory may be its own."""
        self.trackers = Trackers(opened=())
        self._named = frozenset[int]()
        """Global steps of the checkpoints that have transformers' name, when it was last looked."""
        self._window: list[LogNumbers] = []
        self._in_epoch = False

    def train(self, job: TrainingJob, resume: Path | bool, *, before: str = "") -> TrainOutput:
        """Run all steps, load the best model if asked, write the final directory and the last numbers.

        `before` is a sentence on the trainer's earlier run, if this one starts from its weights. A signal to stop ends
        the run after its step with a checkpoint: KeyboardInterrupt of Ctrl-C, SystemExit of SIGTERM.
        """
        started, named = time.perf_counter(), Path(str(job.args.output_dir))
        request = RunRequest(
            config=job.config, output_dir=job.output_dir, named=named, base=job.base, resume=resume, override=MAY_CHANGE
        )
        allow_named_code(job.config, None, {}, output_dir=job.output_dir)
        with RunSession(request, job.inputs, WORDING) as session:
            self.restore(session.checkpoint)
            try:
                run = session.start(
                    partial(_restored, job, goes_on=bool(before)),
                    self,
                    opening=[describe_plan(job.args, job.config), *job.notes, *filter(None, [before])],
                    run_name=job.args.run_name,
                )
                try:
                    interrupt = session.run_steps()
                    how = f"{interrupt} after step {run.state.step}"
                except GraceOver as over:
                    interrupt, how = session.signal, "; ".join(over.args)
                if interrupt is None:
                    return self._finish(session, seconds=time.perf_counter() - started)
                notify(run, [f"{how}; {WORDING.resume(job.output_dir)} goes on"])
                if interrupt == signal.SIGTERM.name:
                    raise SystemExit(128 + signal.SIGTERM)
                raise KeyboardInterrupt(how)
            finally:
                # later logs and evaluations do not belong to the run
                self.run, self.trackers = None, Trackers(opened=())

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Set the trainer's own state, which reward functions hold too, as at a checkpoint or new."""
        state = self.state
        saved, updates = TrainerState(), updates_per_step(self.job.config)
        # a run that is killed between a checkpoint and the state beside it has none
        if checkpoint is not None and (checkpoint.path / STATE_FILE).is_file():
            saved = TrainerState.load_from_json(str(checkpoint.path / STATE_FILE))
        for field in fields(TrainerState):
            setattr(state, field.name, getattr(saved, field.name))
        if checkpoint is not None:
            state.global_step = checkpoint.state.step * updates
            state.epoch = checkpoint.state.position / len(self.job.inputs.tasks.tasks)
        state.max_steps = self.job.inputs.total_steps * updates
        state.num_train_epochs = round(self.args.num_train_epochs)
        state.train_batch_size = self.args.train_batch_size
        state.compute_steps(self.args, state.max_steps)
        for name in ("logging_steps", "eval_steps", "save_steps"):
            every = int(getattr(state, name))
            # callbacks fire once per batch of rollouts: a number of updates in between would never be met
            setattr(state, name, -(-every // updates) * updates)

    def start(self, run: Run, trackers: Trackers) -> None:
        """Open a run that stands at `state`."""
        self.run, self.control, self.trackers, self.has_begun = run, TrainerControl(), trackers, True
        self._window, self._in_epoch = [], False
        self.handler.train_dataloader = self.trainer.get_train_dataloader()
        if self.trainer.eval_dataset is not None and not isinstance(self.trainer.eval_dataset, Mapping):
            self.handler.eval_dataloader = self.trainer.get_eval_dataloader()
        if self.state.best_model_checkpoint is not None:
            run.protected.add(self._best_step)
        folder = run.run_dir.path
        forget(folder, [number for number in named_directories(folder) if number > self.state.global_step])
        self._named = named_checkpoints(folder)

    def begin(self, steps_done: int) -> Requests:
        """Save weights of an earlier run, fire on_train_begin, and evaluate if `eval_on_start` is set."""
        run = self._open_run()
        if run.saved_step is None and self.job.backend.policy_version > 0:
            save_last(run)  # they are nowhere else, and callbacks and the evaluation may take long
        self._fire("on_train_begin")
        if self.args.eval_on_start and steps_done == 0:
            self.trainer.evaluate()  # the weights at the start are no checkpoint: never the best
        return Requests(stop=self.control.should_training_stop)

    def step_begin(self, number: int) -> None:
        """Fire on_epoch_begin at the start of an epoch, then on_step_begin; ConfigError for a late change."""
        self.trainer._refuse_late_changes()
        self.reward_log.columns.clear()  # an evaluation's are of no step
        self._forget_objects()
        if not self._in_epoch:
            self._fire("on_epoch_begin")
            self._in_epoch = True
        if self.job.launch is not None:
            # the log grows with the run, and the other ranks have no use for it before the end
            now = {name: value for name, value in vars(self.state).items() if name != "log_history"}
            self.job.launch.call("begin_step", now)
        self._fire("on_step_begin")

    def step_end(self, record: MetricsRecord, batch: RolloutBatch) -> Requests:
        """Fire on_step_end, on_epoch_end at the end of an epoch, and do what the callbacks request after each."""
        last = record["step"] == self._open_run().inputs.total_steps
        ended = last or math.floor(record["epoch"]) > math.floor(self.state.epoch or 0)
        self.state.global_step = record["step"] * updates_per_step(self.job.config)
        self.state.epoch = record["epoch"]
        self.state.num_input_tokens_seen += history.num_tokens(batch)
        if warning := history.unrewarded(batch):
            LOGGER.warning(warning)
        numbers = history.step_numbers(record, batch, num_tokens=self.state.num_input_tokens_seen)
        if self.job.launch is not None:
            for log in self.job.launch.call("give_log"):
                self.reward_log.add(log)
        bonus = {"entropy_coef": self.trainer.entropy_coef} if self.job.config.loss.has_entropy_bonus else {}
        self._window.append({**numbers, **bonus, **self.reward_log.take_metrics()})
        self._fire("on_step_end")
        self._log_evaluate_save(batch)
        if ended:
            self._fire("on_epoch_end")
            self._in_epoch = False
            self._log_evaluate_save(batch)
        return Requests(stop=self.control.should_training_stop)

    def _take_metrics(self, mode: str) -> dict[str, float]:
        """Take the means of what a program has put into `trainer._metrics`, as TRL's own log does."""
        lists = self.trainer._metrics[mode]
        taken = {name: float(sum(values) / len(values)) for name, values in lists.items() if values}
        lists.clear()
        return taken

    def begin_step(self, state: Mapping[str, Any]) -> None:
        """Begin a step on this rank, in the first one's state."""
        self._forget_objects()
        self.be_at(state)

    def _forget_objects(self) -> None:
        """Forget the environments of the step before, which this rank's own episodes had."""
        self.trainer._environments.in_use.clear()

    def be_at(self, state: Mapping[str, Any]) -> None:
        """Set the trainer's state on this rank to the first one's: reward functions read it. During steps its
        `log_history` stays as it was, and comes at the end."""
        vars(self.state).update(state)

    def restart_rate(self) -> None:
        """Set this process's learning rate to the start of the arguments' schedule."""
        rate = self.job.trainer.rate
        if self.job.makes_scheduler and rate is not None:
            rate.go_to(0)

    def give_log(self) -> RewardLog:
        """Give what reward functions have logged on this rank."""
        return self.reward_log.take()

    def _log_evaluate_save(self, batch: RolloutBatch) -> None:
        if self.control.should_log and self._window:
            self.trainer.log({**history.averaged(self._window), **self._take_metrics("train")})
            self._window.clear()
            if self.args.log_completions:
                limit, columns = self.args.num_completions_to_print, self.reward_log.columns
                title = f"step {self.state.global_step}"
                history.print_completions(self.console, batch, title=title, limit=limit, columns=columns)
        if self.control.should_evaluate:
            self._note_best(self.trainer.evaluate())
        if self.control.should_save:
            save(self._open_run())
        # an overridden method need not have come to the callback that resets its wish
        self.control.should_log = self.control.should_evaluate = self.control.should_save = False

    def evaluated(self, results: Sequence[EvalResult]) -> Requests:
        """Do nothing: the trainer's own `evaluate` tells the callbacks."""
        return Requests()

    def report(self, result: EvalResult, *, prefix: str) -> LogNumbers:
        """Log one result, tell the callbacks, and return its numbers."""
        assert isinstance(result, RewardResult)  # the trainer builds no other evaluator
        stats = self.job.backend.measure(result.batch.groups)
        numbers = history.eval_numbers(result.record(), result.batch, stats, prefix=prefix)
        numbers[f"{prefix}_num_tokens"] = self.state.num_input_tokens_seen
        logged = {**self.reward_log.take_metrics(), **self._take_metrics("eval")}
        numbers |= {f"{prefix}_{name}": value for name, value in logged.items()}
        numbers["epoch"] = self.state.epoch
        self.trainer.log(numbers)
        self._fire("on_evaluate", metrics=numbers)
        return numbers

    def saved(self, checkpoint: Checkpoint) -> Requests:
        """Write the state beside the checkpoint, give it transformers' name, and fire on_save."""
        if self.state.best_global_step == self.state.global_step:
            self.state.best_model_checkpoint = os.path.join(
                str(self.args.output_dir), f"{PREFIX}{self.state.global_step}"
            )
            self._open_run().protected.clear()
            self._open_run().protected.add(checkpoint.state.step)
        write_state(self.state, checkpoint.path)
        if checkpoint.state.step == 0:
            return Requests()
        self._follow_names(newest=checkpoint.state.step)
        folder = name_checkpoint(self._open_run().run_dir.path, checkpoint, self.state.global_step)
        self.trainer.save_model(str(folder), _internal_call=True)
        add_model_files(folder, checkpoint)
        self._fire("on_save")
        self._follow_names(newest=checkpoint.state.step)
        return Requests(stop=self.control.should_training_stop)

    def _follow_names(self, *, newest: int) -> None:
        """Remove the names whose checkpoints are gone, and the checkpoints whose names a callback took away.

        The newest checkpoint stays, which the run may have to go on from, and the best one.
        """
        run, updates = self._open_run(), updates_per_step(self.job.config)
        there = named_checkpoints(run.run_dir.path)
        gone = self._named - there
        for step in {number // updates for number in gone} - {newest} - run.protected:
            folder = step_directory(run.run_dir.path / "checkpoints", step)
            if folder.is_dir():
                discard(folder)
        forget(run.run_dir.path, gone)
        self._named = there

    @property
    def _best_step(self) -> int:
        """Step of the best checkpoint; there is one."""
        return step_of_name(str(self.state.best_model_checkpoint), updates_per_step(self.job.config))

    def notify(self, sentence: str) -> None:
        """Print a line, in the names of fields."""
        self.console.print(in_field_names(sentence), highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        """Fire on_epoch_end for an incomplete epoch; on_train_end follows the last numbers."""
        if self._in_epoch:
            self._fire("on_epoch_end")

    def log(self, logs: LogNumbers) -> None:
        """Add a line to `log_history`, tell the callbacks and the trackers."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        self.state.log_history.append({**cast("dict[str, float]", logs), "step": self.state.global_step})
        self.trackers.log(history.tracker_numbers(logs), self.state.global_step)
        self._fire("on_log", logs=logs)

    def _finish(self, session: RunSession, *, seconds: float) -> TrainOutput:
        """Load the best model if asked, write the final directory, and log the summary with what is not logged yet."""
        run, state, args = session.run, self.state, self.args
        step = run.state.step
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            best = read_checkpoint(step_directory(run.run_dir.path / "checkpoints", self._best_step))
            self.job.backend.load_weights(best.model)
            step = best.state.step
            notify(
                run, [f"the best model, of update {state.best_global_step}, is loaded ({state.best_model_checkpoint})"]
            )
        losses = [record["loss"] for record in run.run_dir.metrics()]
        completions = sum(record["rollouts"] for record in run.run_dir.metrics())
        metrics: LogNumbers = {
            "train_runtime": round(seconds, 4),
            "train_samples_per_second": round(completions / seconds, 3),
            "train_steps_per_second": round(state.global_step / seconds, 3),
            "total_flos": state.total_flos,
            "train_loss": sum(losses) / len(losses) if losses else 0.0,
            "epoch": state.epoch,
        }
        self.trainer.log({**history.summary(metrics, self._window), **self._take_metrics("train")})
        self._window.clear()
        self._fire("on_train_end")
        session.finish(self.console, step=step)
        return TrainOutput(state.global_step, float(metrics["train_loss"] or 0.0), cast("dict[str, float]", metrics))

    def _open_run(self) -> Run:
        assert self.run is not None  # the loop calls between start and stop
        return self.run

    def _note_best(self, metrics: LogNumbers) -> None:
        """Note the best checkpoint by transformers' rule, after the callbacks have compared with the previous best."""
        name = self.args.metric_for_best_model
        if name is None:
            return
        if not isinstance(metrics, Mapping):
            raise ConfigError(f"evaluate must return its metrics for metric_for_best_model, got {metrics!r}")
        name = name if name.startswith("eval_") else f"eval_{name}"
        if name not in metrics:
            raise ConfigError(f"metric_for_best_model must be one of {', '.join(sorted(metrics))}, got {name!r}")
        value, best = metrics[name], self.state.best_metric
        better = value is not None and (best is None or (value > best if self.args.greater_is_better else value < best))
        if better:
            self.state.best_metric = value
            if self.args.save_strategy != SaveStrategy.NO:
                self.state.best_global_step = self.state.global_step
        if self.args.save_strategy == SaveStrategy.BEST:
            self.control.should_save = better

    def _fire(self, event: str, **more: Any) -> None:
        control = getattr(self.handler, event)(self.args, self.state, self.control, **more)
        self.control = self.control if control is None else control


@contextmanager
def _restored(
    job: TrainingJob, config: Config, inputs: RunInputs, checkpoint: Checkpoint | None, *, goes_on: bool
) -> Iterator[OneProcess | WorkerBackend]:
    """The `BackendFactory` of a trainer, whose weights are loaded when it is made."""
    if checkpoint is not None:
        version, updates = checkpoint.state.policy_version, checkpoint.state.step * updates_per_step(config)
        if not job.makes_scheduler and version > updates:
            raise CheckpointError(
                f"{checkpoint.path} is of weights with {version} updates, {updates} of them this run's, and the state "
                "of the program's own scheduler after those before is not known; start a new run from its weights with "
                f"model={str(checkpoint.model)!r}, or leave the scheduler in optimizers out"
            )
        job.backend.restore(checkpoint)
    elif job.backend.policy_version > 0 and not goes_on:
        raise CheckpointError(
            f"{job.output_dir} has no checkpoint to go on from, and the weights are already trained; make a new trainer"
        )
    yield job.backend
