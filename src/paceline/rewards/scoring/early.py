"""Grading that starts on the first completions while the engine still samples the others."""

from collections.abc import Callable, Mapping, Sequence

from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.rewards.scoring.arguments import arguments_of
from paceline.rewards.selecting import is_for
from paceline.types import Completion, Task


def early_start(
    functions: Mapping[str, RewardFunction], tasks: Sequence[Task]
) -> Callable[[int, tuple[int, ...], str], None] | None:
    """What an engine is to call with a completion that has ended: index of its request, its tokens, its text.

    `tasks[i]` is the task of request i.

    None where no function has work that can start early. What is started here is only begun: `score` asks for all
    results, and a function that could not begin does the work then.
    """
    starting = {name: one for name, one in functions.items() if isinstance(one, BuiltIn) and one.begin is not None}
    if not starting:
        return None

    def start(request: int, token_ids: tuple[int, ...], text: str) -> None:
        task = tasks[request]
        sampled = Completion(token_ids=token_ids, logprobs=(), finish_reason="stop", text=text, policy_version=0)
        for name, function in starting.items():
            if function.begin is not None and is_for(task, name):
                function.begin(**arguments_of([task], [sampled]))

    return start
