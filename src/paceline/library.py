"""The Python API: `train`, `evaluate`, and a `Session` for a program's own loop; no torch before they are called.

Every option of the command line is a keyword, under its name with underscores. A model, a tokenizer, rows and functions
may be given as objects.
"""

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from paceline.base_directory import held_base, hold_base, working_directory
from paceline.config.rules import require
from paceline.config.sections import Config
from paceline.errors import DONE, INTERRUPTED, ConfigError, PacelineError
from paceline.reports.trained_run import TrainedRun
from paceline.rewards.judges.own_service import end_services
from paceline.training.measuring import measure
from paceline.training.setup.checks import (
    check,
    check_held_out,
    refuse_training_rows,
    refuse_unread_tasks,
    resolved,
)
from paceline.training.setup.configuration import (
    of_trained_run,
    read_configuration,
    with_named_tasks,
)
from paceline.training.setup.inputs import RunObjects, objects_apart
from paceline.training.setup.named_code import MEASURED, allow_named_code
from paceline.training.setup.run_request import RunRequest, Wording, new_run, resumed_run
from paceline.types import RolloutGroup
from paceline.workers.processes import carry_out, check_processes, choose_backend, saying_how_to_resume
from paceline.workers.torchrun.environment import launched

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.training.evaluation import AccuracyResult, EvalResult
    from paceline.training.learner.stats import UpdateStats
    from paceline.training.loop import Step
    from paceline.training.session import RunSession

FLAG = re.compile(r"(`[^`]*`)|--([a-z][a-z0-9-]*[a-z0-9])")
"""A command in backticks, which stays as it is, or an option."""


def in_keywords(text: str) -> str:
    """Name options as a program does.

    >>> in_keywords("--max-steps must be at least 1; `paceline plan --max-steps 1` shows it")
    'max_steps must be at least 1; `paceline plan --max-steps 1` shows it'
    """
    return FLAG.sub(lambda flag: flag[1] or flag[2].replace("-", "_"), text)


WORDING = Wording(resume=lambda run: f"resume={str(run)!r}", reword=in_keywords)


@contextmanager
def _said_in_keywords() -> Iterator[None]:
    try:
        yield
    except PacelineError as error:
        raise error.reworded(in_keywords, advise=_advice) from error


def _advice(text: str) -> str:
    """Name options as a program does, and write the run to continue as an argument."""
    before, separator, run = text.partition("continue it with --resume ")
    return f"{before}continue it with {WORDING.resume(Path(run))}" if separator and run else in_keywords(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Order:
    """A run requested by keywords, checked as far as files can tell."""

    request: RunRequest
    objects: RunObjects


def _order(
    options: Mapping[str, Any], config: str | Path | None, resume: str | Path | None, override: Sequence[str]
) -> _Order:
    (flags, objects), override = objects_apart(options), [override] if isinstance(override, str) else override
    if resume is not None:
        request = resumed_run(resume, flags, file=config, override=override)
    elif override:
        raise ConfigError("override names options that a resumed run may change, and resume is None; leave it out")
    else:
        request = new_run(flags, file=config)
    hold_base(request.base)
    process = launched(os.environ)
    if process is not None and resume is None:  # a default with the time would be another one on each rank
        require(request.config.loop.output_dir is not None, "output_dir", None, "be given on ranks", "name a directory")
    check_processes(request.config, process)
    objects = check(request.config, objects) if resume is None else resolved(request.config, objects)
    return _Order(request=request, objects=objects)


def train(
    *,
    config: str | Path | None = None,
    resume: str | Path | None = None,
    override: Sequence[str] = (),
    console: "Console | None" = None,
    **options: Any,
) -> TrainedRun:
    """Train to the end and return the run, as `paceline train` does with the same options.

        run = paceline.train(model="embedded", dataset="arithmetic", max_steps=140)
        run.evals[-1].accuracy, run.final_dir

    Args:
        config: a YAML file of options; keywords win over it.
        resume: a run directory, or one of its checkpoints, to continue from.
        override: options that may change what a resumed run computes.
        console: where progress is shown; None: the terminal or the notebook.
        options: every option of the command line. `model`, `dataset`, `eval_dataset`, `reward_funcs`, `advantage` and
            `bound` may be objects: a transformers or peft model (with its `tokenizer`), lists of dicts or
            `datasets.Dataset`, functions.

    Raises:
        PacelineError: an option is wrong, or the run failed; the sentence names the option and the remedy.
        KeyboardInterrupt: a signal; the step was finished and a checkpoint written to resume from.
    """
    with ExitStack() as after, _said_in_keywords(), held_base(working_directory()):
        after.callback(end_services)
        order = _order(options, config, resume, override)
        status = carry_out(order.request, order.objects, process=launched(os.environ), wording=WORDING, console=console)
    if status == INTERRUPTED:
        raise KeyboardInterrupt(f"go on with {WORDING.resume(order.request.shown)}")
    if status != DONE:  # of another rank than the first, which said why
        raise SystemExit(status)
    return TrainedRun(order.request.output_dir)


class Session:
    """A run whose loop is a program's own.

        with paceline.Session(model="embedded", reward_funcs=[mine], max_steps=100) as session:
            for step in session:
                groups = session.sample()
                stats = session.update(groups)

    Evaluations and checkpoints come as the options say; leaving the block writes the final model, the summary and the
    page. On ranks that a launcher started, the first one runs the loop's body and the others answer.
    """

    def __init__(
        self,
        *,
        config: str | Path | None = None,
        resume: str | Path | None = None,
        override: Sequence[str] = (),
        console: "Console | None" = None,
        **options: Any,
    ) -> None:
        """Check everything that needs no weights; arguments and errors are those of `train`."""
        with ExitStack() as after, _said_in_keywords(), held_base(working_directory()):
            after.callback(end_services)
            self._order = _order(options, config, resume, override)
            after.pop_all()
        self._console, self._process = console, launched(os.environ)
        self._opened, self._is_entered = self._open(), False
        self._session: RunSession | None = None
        self._step: Step | None = None
        self._interrupted: Callable[[], bool] = lambda: False

    @property
    def config(self) -> Config:
        """All options of the run."""
        return self._order.request.config

    @property
    def run(self) -> TrainedRun:
        """The run on disk."""
        return TrainedRun(self._order.request.output_dir)

    def __enter__(self) -> Self:
        """Load the weights, or read the checkpoint, and open the run directory."""
        if self._is_entered:
            raise ConfigError("a session is entered once; make another one, with resume= to go on")
        self._is_entered = True
        self._opened.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Write the final model and the summary, unless an error or a signal ended the block."""
        return self._opened.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[int]:
        """Yield the number of each step that is left; its body calls `sample` and then `update`, once each."""
        from paceline.training.loop import steps

        if self._process is not None and not self._process.leads:
            return
        run = self._after_step(must_update=True).run
        for step in steps(run, interrupted=self._interrupted):
            self._step = step
            yield step.number
            self._step = None

    def sample(self) -> tuple[RolloutGroup, ...]:
        """Sample and grade the step's completions, and compare them within each prompt."""
        return self._current("sample").sample()

    def update(self, groups: Iterable[RolloutGroup]) -> "UpdateStats":
        """Update the weights with the step's groups. A program may change what a group's rollouts have but for their
        completions, by `dataclasses.replace`; a group that it leaves out counts as filtered.

        Raises:
            ConfigError: a group is of another step, or an advantage is not a finite number.
        """
        step = self._current("update")
        with _said_in_keywords():
            return step.update(groups if isinstance(groups, tuple) else tuple(groups))

    def evaluate(self) -> "list[EvalResult]":
        """Measure every held-out set with the weights as they are, and record the results.

        Called after `update`, it finishes the step first, as `save` does.
        """
        from paceline.training.run import evaluate

        run = self._after_step().run
        results = evaluate(run, run.inputs.evaluators)
        run.observer.evaluated(results)
        run.clocked_until = None
        return results

    def save(self) -> None:
        """Write a checkpoint of the last step that has its update."""
        from paceline.training.run import save_last

        save_last(self._after_step().run)

    def _current(self, method: str) -> "Step":
        if self._step is None:
            raise ConfigError(f"{method}() belongs to a step; call it within `for step in session:`")
        return self._step

    def _after_step(self, *, must_update: bool = False) -> "RunSession":
        """Return the open session, after the current step if it has its update; `must_update` requires that.

        A step that the block leaves without one is not recorded; a resumed run goes on with its completions.
        """
        if self._session is None:
            raise ConfigError("the session is not open; use it within `with`, and on the first rank alone")
        if self._step is not None and (must_update or self._step.is_updated):
            self._step.finish()
        return self._session

    def _close(self) -> None:
        self._session = self._step = None

    @contextmanager
    def _open(self) -> Generator[None]:
        order, process = self._order, self._process
        with ExitStack() as around, saying_how_to_resume(order.request, WORDING), _said_in_keywords():
            around.enter_context(held_base(order.request.base))
            around.callback(end_services)
            launch = None
            if process is not None:
                from paceline.workers.torchrun.launch import Launch

                launch = Launch(process, self.config, order.objects)
                if not process.leads:
                    launch.follow()
                    yield
                    return
                around.enter_context(launch.lead())
            from paceline.reports.console import open_console
            from paceline.training.run import running
            from paceline.training.session import RunSession, opening_sentences
            from paceline.training.setup.preparation import prepare_request

            inputs, console = prepare_request(order.request, order.objects), self._console or open_console()
            session = RunSession(order.request, inputs, WORDING)
            around.enter_context(session)
            observer = session.command_line(console)
            make_backend = choose_backend(self.config, launch)
            run = session.start(make_backend, observer, opening=opening_sentences(inputs))
            self._session = session
            around.callback(self._close)
            with observer, session.stepping() as self._interrupted, running(run):
                yield
                self._after_step()  # a loop may be left by `break`
            if session.interrupt is not None:
                raise KeyboardInterrupt(f"{session.interrupt} after step {run.state.step}")
            session.finish(console)


def evaluate(
    *, config: str | Path | None = None, console: "Console | None" = None, **options: Any
) -> "list[AccuracyResult]":
    """Measure the accuracy of a model on held-out tasks, as `paceline eval` does with the same options.

        (result,) = paceline.evaluate(model="runs/sums/final", dataset="arithmetic", max_completion_length=64)
        result.describe()

    Objects may be given as to `train`. Returns a result per held-out set, with its interval and every completion.

    Raises:
        PacelineError: an option is wrong, or no task could be graded.
    """
    from paceline.reports.console import MeasurementDisplay, open_console

    with ExitStack() as after, _said_in_keywords(), held_base(working_directory()):
        after.callback(end_services)
        if isinstance(run := options.get("model"), TrainedRun):
            options["model"] = str(run.path)
        named, objects = objects_apart(options)
        flags, file = of_trained_run(named, config) if objects.model is None else (named, config)
        configuration = read_configuration(with_named_tasks(flags), file=file)
        hold_base(configuration.base)
        allow_named_code(configuration.config, configuration.ground, configuration.given, runs=MEASURED)
        options_of_run = configuration.config
        refuse_training_rows(options_of_run, configuration.ground, named)
        refuse_unread_tasks(options_of_run, named, objects.files)
        if launched(os.environ) is not None:
            raise ConfigError("evaluate is one process, and a launcher started several; call it in a program of one")
        objects = check_held_out(options_of_run, objects)
        name, longest = str(options_of_run.model.model), options_of_run.sampling.max_completion_length
        with MeasurementDisplay(console or open_console(), name=name, longest=longest) as display:
            say = display.say
            return [
                *measure(
                    options_of_run,
                    objects,
                    say=lambda text: say(in_keywords(text)),
                    is_length_free=configuration.ground is None and "max_completion_length" not in named,
                )
            ]
