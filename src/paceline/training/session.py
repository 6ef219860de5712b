"""A run from its directory to its final model: everything around the loop, the same for every entry point."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from paceline.checkpoints.existing_runs import ending_of, holds_work, write_ending
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
from paceline.checkpoints.saving import refuse_small_disk, room_of_run
from paceline.config.building import build_config
from paceline.config.changing import plain_options
from paceline.config.flat_yaml import parse_yaml, to_yaml
from paceline.data.prompts import length_histogram
from paceline.errors import ConfigError, PacelineError, ProcessLost, StorageError
from paceline.metrics.definitions import Record
from paceline.models.places import FINAL
from paceline.reports.trackers import open_trackers
from paceline.reports.trained_run import step_paces, summarise, unbroken_steps
from paceline.rewards.judges.own_service import end_services
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.interrupts import GraceOver, StopRequest
from paceline.runtime.watchdog import Watchdog, end_process
from paceline.training.backend import BackendFactory, in_this_process, make_task_sampler
from paceline.training.card import card_facts, write_card
from paceline.training.identity import RunChange, find_change, write_identity
from paceline.training.loop import run_steps
from paceline.training.observing import CommandLine, draw_page
from paceline.training.plan.batches import describe
from paceline.training.records import run_sentences
from paceline.training.rollout_journal import Journal, check_images, of_these_tasks
from paceline.training.run import START, Guards, Observer, Run, notify, refuse_other_records, save_last
from paceline.training.setup.file_names import run_base, same_names
from paceline.training.setup.inputs import RunInputs
from paceline.training.setup.run_request import COMMAND_LINE_WORDING, RunRequest, Wording


class RunSession:
    """One attempt of a run: directory, start point, watchdog, signals, final model.

    with RunSession(request, inputs) as session:
        run = session.start(in_this_process, observer)
        interrupt = session.run_steps()
        session.finish(console)
    """

    run: Run

    def __init__(self, request: RunRequest, inputs: RunInputs, wording: Wording = COMMAND_LINE_WORDING) -> None:
        """`wording`: how sentences are worded, on the console and in the run directory."""
        self._wording = wording
        self.config, self.inputs, self.output_dir = request.config, inputs, request.output_dir
        self._shown = request.shown
        self.checkpoint: Checkpoint | None = None
        """Where the run continues; None: at its first step."""
        self.signal: str | None = None
        """Name of the signal that arrived during the steps."""
        self.interrupt: str | None = None
        """Name of the signal that stopped the run before its last step, with a checkpoint to resume from."""
        self._resume, self._override = request.resume, request.override
        self._closing = ExitStack()
        self._run_dir: RunDir | None = None
        self._identity: Record | None = None
        self._change: RunChange | None = None
        self._sentences: list[str] = []

    @property
    def done(self) -> int:
        """Steps before the start point."""
        return 0 if self.checkpoint is None else self.checkpoint.state.step

    def __enter__(self) -> Self:
        """Open and lock the run that is resumed; refuse changed options, data or model.

        Raises:
            CheckpointError: there is no run, or no whole checkpoint.
            ConfigError: something else than before would be computed, and `override` does not name it.
        """
        if not self._resume:
            return self
        with ExitStack() as closing:
            run_dir, root = closing.enter_context(RunDir.open(self.output_dir)), self.output_dir / "checkpoints"
            refuse_other_records(self.output_dir, run_dir.metrics())
            named = self._resume if isinstance(self._resume, Path) else None
            checkpoint, damaged = (read_checkpoint(named), ()) if named else newest_checkpoint(root)
            before = run_dir.identity()
            if before is None:  # killed before it was written
                options = parse_yaml((run_dir.path / "config.yaml").read_text(encoding="utf-8-sig"), "config.yaml")
                before = {"options": plain_options(build_config(options))}
            recorded = same_names(before["options"], run_base(run_dir.path), plain_options(self.config))
            self._change = find_change(
                {**before, "options": recorded}, self.config, self.inputs, override=self._override
            )
            check_images(run_dir, 0 if checkpoint is None else checkpoint.state.step)
            self._sentences += damaged
            if checkpoint is None:
                self._sentences.append("no checkpoint was written yet: the run starts again from its first step")
            elif named:
                self._sentences += set_later_aside(run_dir, checkpoint.state.step)
            else:
                self._sentences += set_damaged_aside(root, checkpoint)
            self._run_dir, self._identity, self.checkpoint = run_dir, before, checkpoint
            self._closing = closing.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record how the attempt ended, in the directory and on its page; then close everything."""
        try:
            if self._run_dir is not None and not self._is_refusal(error):
                self._record_end(error)
                if error is not None or self.interrupt is not None:
                    draw_page(self.output_dir)
        finally:
            self._closing.__exit__(kind, error, trace)

    def _is_refusal(self, error: BaseException | None) -> bool:
        """Return True if an existing run was not resumed, so that its files are unchanged."""
        refused = isinstance(error, PacelineError) and error.exit_status == ConfigError.exit_status
        return refused and bool(self._resume) and not hasattr(self, "run")

    def _record_end(self, error: BaseException | None) -> None:
        worded = error.reworded(self._wording.reword) if isinstance(error, PacelineError) else error
        ending = ending_of(
            worded,
            step=self.run.state.step if hasattr(self, "run") else self.done,
            resume=self._wording.resume(self._shown) if holds_work(self.output_dir) else "start it again",
            interrupt=self.interrupt,
            signal=self.signal,
        )
        with suppress(StorageError):  # a full disk: what ended the run is what is raised
            write_ending(self.output_dir, ending)

    def _end_at_once(self, error: BaseException) -> None:
        """Record the end and end the process, whose main thread is stuck."""
        self._record_end(error)
        end_process(error)

    def command_line(self, console: Console) -> CommandLine:
        """Return the observer that shows this run on a console."""
        total, done, reword = self.inputs.total_steps, self.done, self._wording.reword
        return CommandLine(
            console,
            self.config,
            self.output_dir,
            name=str(self._shown),
            total_steps=total,
            done=done,
            reword=reword,
        )

    def start(
        self,
        make_backend: BackendFactory,
        observer: Observer,
        *,
        opening: Sequence[str] = (),
        run_name: str | None = None,
    ) -> Run:
        """Build the backend, restore the run, watch it; the observer gets `opening` and further sentences for the user.

        Raises:
            ConfigError: there is no room for its checkpoints, or a tracker opens no run.
        """
        config, checkpoint, closing = self.config, self.checkpoint, self._closing
        ACTIVITY.spans = [] if config.loop.profile else None
        inputs = self.inputs
        closing.callback(end_services)
        if inputs.conversations is not None:
            closing.enter_context(inputs.conversations.hosts)
        backend = closing.enter_context(make_backend(config, inputs, checkpoint))
        size, loop = backend.footprint(), config.loop
        saves = inputs.total_steps // loop.save_steps if loop.save_steps else 0
        needed = room_of_run(checkpoint=size.checkpoint, final=size.final, saves=saves, keep=loop.save_total_limit)
        refuse_small_disk(self.output_dir, needed=needed)
        # a new run directory is made last: weights that cannot be loaded leave nothing behind
        run_dir = self._run_dir or closing.enter_context(RunDir.create(self.output_dir, to_yaml(config)))
        self._run_dir = run_dir
        if _gets_signals():
            stuck = self.output_dir / "stuck" / f"{datetime.now():%Y%m%d-%H%M%S}"
            closing.enter_context(Watchdog(stuck, limit=config.loop.step_timeout, force=self._end_at_once))
        write_identity(run_dir, self._identity, self._change, config, inputs, step=self.done)
        trackers = open_trackers(
            config.loop.report_to,
            project=config.loop.project,
            run_name=run_name or self.output_dir.name,
            directory=self.output_dir,
            settings=plain_options(config),
            notify=observer.notify,
        )
        closing.callback(trackers.finish)
        run_dir.add_links(trackers.urls)
        # committed rollouts of later steps are used again, those of other prompts are not
        task_sampler = make_task_sampler(config, inputs, checkpoint)
        committed = of_these_tasks(run_dir.truncate_after(-1 if checkpoint is None else self.done), task_sampler)
        run_dir.discard_rollouts_after(self.done + len(committed.entries))
        journal = Journal(run_dir, task_sampler, committed, inputs.pictures)
        closing.callback(journal.close)
        backend.begin(journal)
        self.run = Run(
            config=config,
            inputs=inputs,
            backend=backend,
            run_dir=run_dir,
            journal=journal,
            observer=observer,
            guards=Guards(run_dir.metrics()),
            state=START if checkpoint is None else checkpoint.state,
            saved_step=None if checkpoint is None else checkpoint.state.step,
        )
        observer.start(self.run, trackers)
        sentences = [*self._sentences, *_recovery_sentences(run_dir, committed)]
        sentences += [*opening, *run_sentences(config, inputs, backend.sentences)]
        if checkpoint is not None:
            path = checkpoint.path
            if path.is_relative_to(self.output_dir):
                path = self._shown / path.relative_to(self.output_dir)
            sentences.append(f"going on after step {checkpoint.state.step} from {path}")
        sentences += [] if self._change is None else [f"from here on {what}" for what in self._change.describe()]
        notify(self.run, sentences)
        return self.run

    def run_steps(self) -> str | None:
        """Run every step; return the name of the signal that stopped them, None where the run is at its end.

        Raises:
            GraceOver: a signal's grace was over before the last checkpoint; its arguments say so, and what there is.
        """
        with self.stepping() as interrupted:
            run_steps(self.run, interrupted=interrupted)
        return self.interrupt

    @contextmanager
    def stepping(self) -> Iterator[Callable[[], bool]]:
        """Run all steps inside, and stop on a signal with a last checkpoint. Yields a function: has a signal come?"""
        run, stop = self.run, StopRequest(self.config.loop.stop_grace, tell=self._tell_of_stop)
        with ExitStack() as listening:
            if _gets_signals():
                listening.enter_context(stop)
            try:
                yield lambda: stop.received is not None
                if stop.received is None or run.stopping or run.state.step == self.inputs.total_steps:
                    return
                save_last(run)
                self.interrupt = stop.received
            except GraceOver as over:
                left = f"the last checkpoint is that of step {run.saved_step}"
                left = "there is no checkpoint yet" if run.saved_step is None else left
                raise GraceOver(str(over), left) from None
            finally:
                self.signal = stop.received

    def _tell_of_stop(self, signal: str) -> None:
        """Report at once what a first signal does; called in a thread of its own."""
        grace = self.config.loop.stop_grace
        within = f", within {grace:g} s (--stop-grace)" if grace else ""
        again = "press Ctrl-C again" if signal == "SIGINT" else "send it again"
        notify(
            self.run,
            [
                f"{signal}: stopping after what is under way ({ACTIVITY.doing}){within}, with a checkpoint; {again} to "
                "stop at once, without one"
            ],
        )

    def finish(self, console: Console, *, step: int | None = None) -> None:
        """Export the model (weights after `step`, None: the last), and write summary, report and model card."""
        run, final = self.run, self.output_dir / FINAL
        step = step or run.state.step
        ACTIVITY.begin("export of the trained model")
        run.backend.export(final)
        steps = unbroken_steps(run.run_dir, save_steps=run.config.loop.save_steps)
        predicted = run.backend.predict(steps) if steps else None
        paces = None if predicted is None else step_paces(steps, predicted_seconds=predicted)
        summarise(run.run_dir, final_step=step, checkpoint_seconds=run.checkpoint_seconds, paces=paces, console=console)
        card = write_card(card_facts(run.run_dir, run.config, final, step=step), final)
        page = draw_page(self.output_dir)
        # what is copied from here is on a line of its own
        for line in (
            f"model   {self._shown / FINAL} (its card: {card.name})",
            f"report  {self._shown / page.name if isinstance(page, Path) else page}",
            "next    what it wrote, and what was optimised:",
            f"paceline rollouts {self._shown}",
            f"paceline explain {self._shown}",
        ):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def opening_sentences(inputs: RunInputs) -> list[str]:
    """Describe the plan of a run and its data, before the first step."""
    sentences = [describe(inputs.plan), length_histogram(inputs.tasks.lengths)]
    if not inputs.evaluators:
        sentences.append("no held-out tasks: give --eval-dataset to see accuracy before and after")
    return sentences


def _recovery_sentences(run_dir: RunDir, committed: Committed) -> list[str]:
    sentences = list(committed.faults)
    if committed.entries:
        count, first = len(committed.entries), committed.entries[0]["step"]
        whose = "1 step's" if count == 1 else f"{count} steps'"
        sentences.append(f"{whose} rollouts used again, from step {first} on")
    if run_dir.torn_lines:
        sentences.append(f"{run_dir.torn_lines} unfinished lines cut from the run's records")
    if run_dir.replaced:
        sentences.append(f"{run_dir.path} held a run without a finished step; this one takes its place")
    return sentences


def _gets_signals() -> bool:
    """Return False outside the main thread, where no signals arrive."""
    return threading.current_thread() is threading.main_thread()


def set_later_aside(run_dir: RunDir, step: int) -> list[str]:
    """Move aside what a run did after the older checkpoint that it resumes from; return a sentence that says where.

    Records are copied before a checkpoint is moved, and none is removed before all are. A run that is killed in between
    has lost nothing, and continues from the newest checkpoint that is still in place.

    Raises:
        StorageError: the disk refused.
    """
    later = [checkpoint for number, checkpoint in numbered(run_dir.path / "checkpoints") if number > step]
    if not later:
        return []
    folder = free_name(run_dir.path / "aside", f"after-step-{step:06d}")
    copy_later(run_dir, step, folder)
    try:
        (folder / "checkpoints").mkdir()
        for checkpoint in reversed(later):
            checkpoint.rename(folder / "checkpoints" / checkpoint.name)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written ({error.strerror}); make room for it") from error
    names = later[0].name if len(later) == 1 else f"{later[0].name} to {later[-1].name}"
    return [f"going on before the newest checkpoint: {names} and the records after step {step} are kept in {folder}"]


def train(
    request: RunRequest,
    inputs: RunInputs,
    *,
    console: Console,
    make_backend: BackendFactory = in_this_process,
    wording: Wording = COMMAND_LINE_WORDING,
) -> bool:
    """Run a whole session, to the last step or to an interrupt, on the backend that `make_backend` builds.

    After the loss of a process of a cluster another attempt continues from the last checkpoint, up to `max_restarts`
    times, with the inputs of the first. A launcher starts its own processes again.

    Returns:
        True when the run is finished, False when a signal stopped it with a checkpoint to resume from.

    Raises:
        ProcessLost: one attempt too many ended so, or the first one before there was a run directory.
    """
    cluster, output_dir, remedy = request.config.cluster, request.output_dir, wording.resume(request.shown)
    restarts, most = 0, cluster.max_restarts if cluster.cluster else 0
    while True:
        try:
            with RunSession(request, inputs, wording) as session:
                observer = session.command_line(console)
                run = session.start(make_backend, observer, opening=opening_sentences(inputs))
                with observer:
                    interrupt = session.run_steps()
                if interrupt is None:
                    session.finish(console)
                else:
                    observer.notify(f"{interrupt} after step {run.state.step}; to go on: {remedy}")
                return interrupt is None
        except ProcessLost as lost:
            is_there = (output_dir / "config.yaml").exists()
            if restarts == most or not is_there:
                what = f"{remedy} continues from the last checkpoint" if is_there else "start the run again"
                raise ProcessLost(f"{lost}; {what}") from None
            restarts, request = restarts + 1, replace(request, resume=True)
            console.print(f"{lost}: restart {restarts} of {most} from the last checkpoint")
