"""A run from its directory to its final model: what lies around the loop, and the command line's way into it."""

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from paceline.checkpoints.finding import (
    Checkpoint,
    free_name,
    newest_checkpoint,
    numbered,
    read_checkpoint,
    set_damaged_aside,
)
from paceline.checkpoints.journal import Committed
from paceline.checkpoints.run_directory import RunDir, copy_later
from paceline.config.changing import plain_options
from paceline.config.flat_yaml import to_yaml
from paceline.config.sections import Config
from paceline.errors import ProcessLost, StorageError
from paceline.metrics.definitions import Record
from paceline.reports.console import RunDisplay
from paceline.reports.summary import step_paces, summarise, unbroken_steps
from paceline.reports.trackers.opening import Trackers, open_trackers
from paceline.runtime.devices import choose_device, used_memory
from paceline.runtime.heartbeat import HEARTBEAT
from paceline.runtime.signals import GraceOver, StopRequest
from paceline.runtime.watchdog import Watchdog
from paceline.training.backend import Backend, BackendFactory, in_this_process, make_task_sampler
from paceline.training.card import card_facts, write_card
from paceline.training.footprint import refuse_no_room
from paceline.training.guards import Guards
from paceline.training.identity import RunChange, begin_identity, change_identity, find_change, keep_graders
from paceline.training.loop import START, Run, notify, run_steps, save_last
from paceline.training.observing import CommandLine, Observer, Timetable
from paceline.training.records import opening_sentences
from paceline.training.reporting import RunningReport, draw_page
from paceline.training.rollout_journal import Journal, of_these_tasks
from paceline.training.setup.run_inputs import RunInputs


def train(
    config: Config,
    inputs: RunInputs,
    output_dir: Path,
    *,
    resume: Path | bool,
    console: Console,
    make_backend: BackendFactory = in_this_process,
    override: Collection[str] = (),
) -> bool:
    """Train to the last step, or to an interrupt, on the backend that `make_backend` builds.

    `resume`: True continues from the newest whole checkpoint; a path names the checkpoint to continue from. Options in
    `override` may differ from those that the run had.

    After the loss of a process of a cluster another attempt continues from the last checkpoint, up to `max_restarts`
    times, with the inputs of the first. A launcher starts its own processes again.

    Returns:
        True when the run is finished, False when a signal stopped it with a checkpoint to resume from.

    Raises:
        ProcessLost: one attempt too many ended so, or the first one before there was a run directory.
    """
    restarts, most = 0, config.cluster.max_restarts if config.cluster.cluster else 0
    while True:
        try:
            return _attempt(
                config, inputs, output_dir, resume=resume, console=console, make_backend=make_backend, override=override
            )
        except ProcessLost as lost:
            is_there = (output_dir / "config.yaml").exists()
            if restarts == most or not is_there:
                remedy = f"`paceline train --resume {output_dir}` continues from the last checkpoint"
                raise ProcessLost(f"{lost}; {remedy if is_there else 'start the run again'}") from None
            restarts, resume = restarts + 1, True
            console.print(f"{lost}: restart {restarts} of {most} from the last checkpoint")


def _attempt(
    config: Config,
    inputs: RunInputs,
    output_dir: Path,
    *,
    resume: Path | bool,
    console: Console,
    make_backend: BackendFactory,
    override: Collection[str],
) -> bool:
    with ExitStack() as closing:
        start = StartPoint()
        if resume:
            start = _start_point(config, inputs, output_dir, closing, resume=resume, override=override)
        checkpoint = start.checkpoint
        display = RunDisplay(
            console,
            name=str(output_dir),
            total_steps=inputs.total_steps,
            done=start.step,
            memory=None if config.cluster.cluster else partial(used_memory, choose_device(config.model)),
        )
        inputs = replace(inputs, progress=display.watched)
        ready = closing.enter_context(make_backend(config, inputs, checkpoint))
        refuse_no_room(config, output_dir, ready.backend.footprint(), total_steps=inputs.total_steps)
        # a new run directory is made last: weights that cannot be loaded leave nothing behind
        run_dir = start.run_dir or closing.enter_context(RunDir.create(output_dir, to_yaml(config)))
        stuck = output_dir / "stuck" / f"{datetime.now():%Y%m%d-%H%M%S}"
        closing.enter_context(Watchdog(stuck, limit=config.loop.step_timeout))
        if start.identity is None:
            begin_identity(run_dir, config, inputs)
        elif start.change is not None:
            change_identity(run_dir, start.identity, start.change, config, inputs, step=start.step)
        else:
            keep_graders(run_dir, start.identity, config)
        trackers = run_trackers(config, output_dir, run_name=output_dir.name, notify=display.say)
        closing.callback(trackers.finish)
        run_dir.add_links(trackers.urls)
        report = RunningReport(output_dir, notify=display.say)
        observer = CommandLine(display=display, trackers=trackers, timetable=_timetable(config, inputs), report=report)
        run, committed = make_run(config, inputs, ready.backend, run_dir, checkpoint, observer=observer)
        closing.callback(run.journal.close)
        display.watched.recall(run_dir.metrics(), run_dir.evals())
        if resume and checkpoint is None:
            notify(run, ["no checkpoint was written yet: the run starts again from its first step"])
        opening = opening_sentences(config, inputs, ready.sentences, checkpoint)
        changed = [] if start.change is None else [f"from here on {what}" for what in start.change.describe()]
        notify(run, [*start.sentences, *directory_sentences(run_dir, committed), *opening, *changed])
        with report, display:
            interrupt = _run_to_the_end(run)
        if interrupt is not None:
            remedy = f"`paceline train --resume {output_dir}` goes on"
            report.write()
            notify(run, [f"{interrupt} after step {run.state.step}; {remedy}"])
            return False
        finish(run, console)
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class StartPoint:
    """Start point of an attempt: what an earlier one left; empty for a new run."""

    run_dir: RunDir | None = None
    checkpoint: Checkpoint | None = None
    identity: Record | None = None
    change: RunChange | None = None
    sentences: tuple[str, ...] = ()
    """Sentences on damaged checkpoints, and on where later ones were moved."""

    @property
    def step(self) -> int:
        """Step of the checkpoint to resume from; 0 for a new run."""
        return 0 if self.checkpoint is None else self.checkpoint.state.step


def _start_point(
    config: Config,
    inputs: RunInputs,
    output_dir: Path,
    closing: ExitStack,
    *,
    resume: Path | bool,
    override: Collection[str],
) -> StartPoint:
    """Open the run in a directory, lock it until `closing`, and refuse changed options, data or model."""
    run_dir = closing.enter_context(RunDir.open(output_dir))
    root, is_named = output_dir / "checkpoints", isinstance(resume, Path)
    checkpoint, damaged = (read_checkpoint(resume), ()) if isinstance(resume, Path) else newest_checkpoint(root)
    identity = run_dir.identity()
    change = None if identity is None else find_change(identity, config, inputs, override=override)
    aside = list[str]()
    if checkpoint is not None:
        step = checkpoint.state.step
        aside = set_later_aside(run_dir, step) if is_named else set_damaged_aside(root, checkpoint)
    return StartPoint(
        run_dir=run_dir, checkpoint=checkpoint, identity=identity, change=change, sentences=(*damaged, *aside)
    )


def set_later_aside(run_dir: RunDir, step: int) -> list[str]:
    """Move aside what a run did after the older checkpoint that it resumes from; return a sentence that says where.

    Records are copied before a checkpoint is moved, and none is removed before all are. A run that is killed in between
    has lost nothing, and continues from the newest checkpoint that is still in place.

    Raises:
        StorageError: the disk refused.
    """
    later = [place for number, place in numbered(run_dir.path / "checkpoints") if number > step]
    if not later:
        return []
    folder = free_name(run_dir.path / "aside", f"after-step-{step:06d}")
    copy_later(run_dir, step, folder)
    try:
        (folder / "checkpoints").mkdir()
        for place in reversed(later):
            place.rename(folder / "checkpoints" / place.name)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written ({error.strerror}); make room for it") from error
    names = later[0].name if len(later) == 1 else f"{later[0].name} to {later[-1].name}"
    return [f"going on before the newest checkpoint: {names} and the records after step {step} are kept in {folder}"]


def _run_to_the_end(run: Run) -> str | None:
    """Run every step; on a signal, stop after a last checkpoint and return the signal's name, else None.

    Raises:
        KeyboardInterrupt: a signal's grace was over before that checkpoint.
    """
    with StopRequest(run.config.loop.stop_grace) as stop:
        try:
            run_steps(run, interrupted=lambda: stop.received is not None)
            if run.state.step == run.inputs.total_steps:
                return None
            save_last(run)
        except GraceOver as over:
            raise KeyboardInterrupt(str(over), last_checkpoint(run)) from None
    return stop.received


def last_checkpoint(run: Run) -> str:
    """Name the checkpoint that a run resumes from which ends before a checkpoint of its last step."""
    if run.saved_step is None:
        return "there is no checkpoint yet, so the run begins anew"
    return f"the last checkpoint is that of step {run.saved_step}"


def make_run(
    config: Config,
    inputs: RunInputs,
    backend: Backend,
    run_dir: RunDir,
    checkpoint: Checkpoint | None,
    *,
    observer: Observer,
) -> tuple[Run, Committed]:
    """Restore the run at its checkpoint, and return the committed rollouts of later steps with it."""
    done, task_sampler = (
        0 if checkpoint is None else checkpoint.state.step,
        make_task_sampler(config, inputs, checkpoint),
    )
    committed = of_these_tasks(run_dir.truncate_after(-1 if checkpoint is None else done), task_sampler)
    run_dir.discard_rollouts_after(done + len(committed.entries))
    journal = Journal(run_dir, task_sampler, committed)
    backend.begin(journal)
    run = Run(
        config=config,
        inputs=inputs,
        backend=backend,
        run_dir=run_dir,
        journal=journal,
        observer=observer,
        guards=Guards(config.optim, run_dir.metrics()),
        progress=inputs.progress,
        state=START if checkpoint is None else checkpoint.state,
        saved_step=None if checkpoint is None else checkpoint.state.step,
    )
    return run, committed


def directory_sentences(run_dir: RunDir, committed: Committed) -> list[str]:
    """Describe what was found in the run directory: missing, damaged and reused records."""
    lines = list(committed.faults)
    if committed.entries:
        count, first = len(committed.entries), committed.entries[0]["step"]
        whose = "1 step's" if count == 1 else f"{count} steps'"
        lines.append(f"{whose} rollouts used again, from step {first} on")
    if run_dir.torn_lines:
        lines.append(f"{run_dir.torn_lines} unfinished lines cut from the run's records")
    if run_dir.replaced:
        lines.append(f"{run_dir.path} held a run without a finished step; this one takes its place")
    return lines


def run_trackers(config: Config, directory: Path, *, run_name: str, notify: Callable[[str], None]) -> Trackers:
    """Open the trackers of `--report-to`, with every option as settings; `notify` hears of their outages.

    Raises:
        ConfigError: one of them opens no run.
    """
    return open_trackers(
        config.loop.report_to,
        project=config.loop.project,
        run_name=run_name,
        directory=directory,
        settings=plain_options(config),
        notify=notify,
    )


def _timetable(config: Config, inputs: RunInputs) -> Timetable:
    return Timetable(
        eval_steps=config.evaluation.eval_steps, save_steps=config.loop.save_steps, total_steps=inputs.total_steps
    )


def finish(run: Run, console: Console, *, step: int | None = None) -> None:
    """Export the model, sum the run up, draw its report, write the model's card.

    Args:
        run: the run at its end.
        console: the terminal that is told.
        step: the step of the weights; None: the last.
    """
    output_dir, final = run.run_dir.path, run.run_dir.path / "final"
    HEARTBEAT.beat("run", "export of the trained model")
    run.backend.export(final)
    steps = unbroken_steps(run.run_dir, save_steps=run.config.loop.save_steps)
    foreseen = run.backend.foresee(steps) if steps else None
    paces = None if foreseen is None else step_paces(steps, foreseen_seconds=foreseen)
    summarise(run.run_dir, checkpoint_seconds=run.checkpoint_seconds, paces=paces, console=console)
    card = write_card(card_facts(run.run_dir, run.config, final, step=step or run.state.step), final)
    console.print(f"model   {final} (its card: {card.name})", soft_wrap=True)
    console.print(
        f"report  {draw_page(output_dir)}   next: `paceline rollouts {output_dir}` shows what it wrote, "
        f"`paceline explain {output_dir}` what was optimised",
        soft_wrap=True,
    )
