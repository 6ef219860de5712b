"""Resolves names to functions: built-in rewards, `module:function`, `file.py:function`, judges."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import cast

from paceline.config.reading import base_name, is_code, served_model
from paceline.config.sampling import SamplingConfig
from paceline.config.sections import JUDGE, RewardConfig
from paceline.errors import RewardError
from paceline.rewards.builtin.answers import accuracy, boxed, gsm8k, think_answer_format, think_answer_tags
from paceline.rewards.builtin.code import code
from paceline.rewards.builtin.length import cosine, repetition, soft_overlong
from paceline.rewards.builtin.tools import react_format, tool_call
from paceline.rewards.function import RIGHT, BuiltIn, RewardContext, RewardFunction, parameters_of, right_of
from paceline.rewards.judges.judge import judge, rubric_file
from paceline.rewards.model_files import language_model_files
from paceline.runtime.own_code import file_of_code, nearest, own_function
from paceline.sandbox.levels import Level, open_sandbox
from paceline.sandbox.programs import Sandbox


def random_score(context: RewardContext) -> BuiltIn:
    """`random`: a number in [0, 1) that has nothing to do with quality.

    A run with this reward must not get better; where it does, what you measure is not what you reward. The number
    follows from prompt, completion and position in the batch.
    """

    def call(*, prompts: list[str], completions: list[str], **columns: object) -> list[float]:
        scores = []
        for position, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            # The first 53 bits of a hash, as a fraction; lone surrogates in a text are hashed like any character.
            row = f"{position}\x00{len(prompt)}\x00{prompt}{completion}".encode("utf-8", "surrogatepass")
            scores.append((int.from_bytes(blake2b(row, digest_size=8).digest(), "big") >> 11) / 2**53)
        return scores

    exception = "is the control that has nothing to do with quality"
    return BuiltIn(name="random", call=call, gold=None, audit_exception=exception)


Maker = Callable[..., BuiltIn]  # Called with a `RewardContext`, and the parameters of the name as keywords

BUILT_IN: Mapping[str, Maker] = {
    "accuracy": accuracy,
    "format": think_answer_format,
    "think_answer_tags": think_answer_tags,
    "boxed": boxed,
    "gsm8k": gsm8k,
    "cosine": cosine,
    "repetition": repetition,
    "soft_overlong": soft_overlong,
    "react_format": react_format,
    "tool_call": tool_call,
    "code": code,
    "random": random_score,
}
"""Makers of the built-in reward functions, by the name that `--reward-funcs` takes. The maker's docstring, signature
and `BuiltIn` record have everything that help, self-test, audit and documentation say of the function."""


def reward_context(rewards: RewardConfig, sampling: SamplingConfig, *, seed: int) -> RewardContext:
    """Return the context of a run's reward functions; the sandbox opens when the first program has to run."""
    return RewardContext(
        max_completion_length=sampling.max_completion_length,
        open_sandbox=partial(_shared_sandbox, rewards.sandbox),
        seed=seed,
        call_seconds=rewards.reward_timeout,
    )


@lru_cache(maxsize=4)
def _shared_sandbox(level: str) -> Sandbox:
    """Open the sandbox that training and evaluation share; it closes when the process ends."""
    return open_sandbox(url=level) if "://" in level else open_sandbox(cast(Level, level))


def default_system_prompt(names: Sequence[str]) -> str | None:
    """Return the default system message for these reward functions: that of the first function that has one.

    None where no function asks for a format: `accuracy` accepts several, a user's function has no such message, and the
    chat template says how tools are called.
    """
    context = RewardContext(max_completion_length=1)  # no message depends on a length
    functions = (BUILT_IN[base](context) for base in map(base_name, names) if base in BUILT_IN)
    return next((function.system_prompt for function in functions if function.system_prompt is not None), None)


NO_CONTEXT = RewardContext()  # Context of a function that is resolved outside a run


def resolve(name: str, context: RewardContext = NO_CONTEXT, *, flag: str = "--reward-funcs") -> RewardFunction:
    """Return the reward function that the option `flag` calls `name`, made for a run.

    A built-in name may carry parameters: `cosine(max_length=512)`. `judge:` and an address, or a model that the run
    serves itself, is a language model that grades. Another name with a colon is code of the user's own:
    `package.module:function` is imported, `path/to/file.py:function` is run once per content of the file.

    Raises:
        RewardError: no such built-in name, file, module or function, one that cannot be loaded, or a parameter that
            the function does not take.
    """
    base = base_name(name)
    if base.startswith(JUDGE):
        return judge(name, context)
    if base in BUILT_IN:
        return BUILT_IN[base](context, **parameters_of(name, BUILT_IN[base]))
    if base.endswith(".py"):
        raise RewardError(f"{flag}: {base!r} names a file; name the function in it, as {base}:function")
    if not is_code(name):
        raise RewardError(
            f"{flag}: no built-in reward function {base!r}{nearest(base, BUILT_IN)}; choose from "
            f"{', '.join(BUILT_IN)}, or give your own as file.py:function or module:function"
        )
    return own_function(name, flag=flag)


def has_home(name: str) -> bool:
    """Return True if a process can find the function by its name alone: it is built in, or code in a file or module."""
    return base_name(name) in BUILT_IN or ":" in name


def source_files(name: str) -> list[Path]:
    """List the file of the function `name`, or the rubric of a judge and the files of a model that the run serves
    itself. Empty for a built-in function, and for a module without a file."""
    if name.startswith(JUDGE):
        model, file = served_model(name), rubric_file(name)
        files = [] if model is None else language_model_files(model)
    else:
        files, file = [], None if base_name(name) in BUILT_IN else file_of_code(name)
    return [*files, *([] if file is None or not file.is_file() else [file])]


def right_from(name: str) -> float:
    """Return the least score that evaluation counts as right for the function of this name, without running user code.

    Raises:
        RewardError: a built-in function does not take the parameters in its name.
    """
    if base_name(name) not in BUILT_IN:
        return RIGHT
    return right_of(resolve(name, RewardContext(max_completion_length=1)))  # no threshold depends on a length
