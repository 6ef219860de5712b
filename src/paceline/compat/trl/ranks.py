"""Methods of a trainer on the ranks of a launch: which of them all ranks call together."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from paceline.base_directory import held_base
from paceline.compat.trl.script_methods import ScriptMethods

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def together(method: MethodT) -> MethodT:
    """A method that all ranks call: the first one does it with the others' help, and all return what it returns."""

    @wraps(method)
    def on_each_rank(trainer: ScriptMethods, *given: Any, **named: Any) -> Any:
        launch = trainer._job.launch
        with held_base(trainer._job.base):
            if launch is None or launch.is_leading:
                return method(trainer, *given, **named)
            if not launch.place.leads:
                return launch.follow(method.__name__)
            with launch.lead(method.__name__):
                launch.result = method(trainer, *given, **named)
                launch.call("be_at", vars(trainer.state))
            return launch.result

    return cast(MethodT, on_each_rank)


def by_first_alone(method: MethodT) -> MethodT:
    """A method that the first rank does alone; on the others nothing happens."""

    @wraps(method)
    def on_first_rank(trainer: ScriptMethods, *given: Any, **named: Any) -> Any:
        return method(trainer, *given, **named) if trainer.is_world_process_zero() else None

    return cast(MethodT, on_first_rank)


def by_first(method: MethodT) -> MethodT:
    """A method that the first rank does alone, or with the help of all where they share the weights out."""
    helped, alone = together(method), by_first_alone(method)

    @wraps(method)
    def on_first_rank(trainer: ScriptMethods, *given: Any, **named: Any) -> Any:
        launch = trainer._job.launch
        return (helped if launch is not None and launch.worker.is_split else alone)(trainer, *given, **named)

    return cast(MethodT, on_first_rank)
