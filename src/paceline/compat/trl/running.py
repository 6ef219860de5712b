"""A trainer's run around the loop: its start, its steps, its end."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from transformers.trainer_utils import TrainOutput

from paceline.checkpoints.finding import Checkpoint
from paceline.compat.trl.batches import describe_plan
from paceline.compat.trl.building import TrainingJob
from paceline.compat.trl.observer import CallbackObserver
from paceline.compat.trl.translation import in_field_names
from paceline.config.reading import options
from paceline.config.sections import Config
from paceline.errors import CheckpointError
from paceline.runtime.interrupts import GraceOver
from paceline.training.backend import OneProcess
from paceline.training.run import notify
from paceline.training.session import RunSession
from paceline.training.setup.named_code import allow_named_code
from paceline.training.setup.run_inputs import RunInputs
from paceline.training.setup.run_request import RunRequest, Voice
from paceline.training.trainer import updates_per_step
from paceline.workers.backend import WorkerBackend

MAY_CHANGE = frozenset(option.name for option in options()) - {"model"}
"""A resumed run takes other arguments and other rows, which it says and notes, but trains no other model."""

VOICE = Voice(resume=lambda _: "train(resume_from_checkpoint=True)", reword=in_field_names)


def run_training(job: TrainingJob, observer: CallbackObserver, resume: Path | bool, *, before: str = "") -> TrainOutput:
    """Run all steps, load the best model if asked, write the final directory and the last numbers.

    `before` is a sentence on the trainer's earlier run, if this one starts from its weights. A signal to stop ends the
    run after its step with a checkpoint: KeyboardInterrupt of Ctrl-C, SystemExit of SIGTERM.
    """
    started = time.perf_counter()
    named = Path(str(job.args.output_dir))
    request = RunRequest(
        config=job.config, output_dir=job.output_dir, named=named, base=job.base, resume=resume, override=MAY_CHANGE
    )
    allow_named_code(job.config, None, {}, output_dir=job.output_dir)
    with RunSession(request, job.inputs, VOICE) as session:
        observer.restore(session.checkpoint)
        try:
            run = session.start(
                partial(_restored, job, goes_on=bool(before)),
                observer,
                opening=[describe_plan(job.args, job.config), *job.notes, *filter(None, [before])],
                run_name=job.args.run_name,
            )
            try:
                interrupt = session.run_steps()
                how = f"{interrupt} after step {run.state.step}"
            except GraceOver as over:
                interrupt, how = session.signal, "; ".join(over.args)
            if interrupt is None:
                return observer.finish(session, seconds=time.perf_counter() - started)
            notify(run, [f"{how}; {VOICE.resume(job.output_dir)} goes on"])
            if interrupt == signal.SIGTERM.name:
                raise SystemExit(128 + signal.SIGTERM)
            raise KeyboardInterrupt(how)
        finally:
            observer.stop()


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
