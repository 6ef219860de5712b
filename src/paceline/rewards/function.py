"""What a reward function is."""

from typing import Any, Protocol


class RewardFunction(Protocol):
    """Grades a batch of completions; knows nothing of models, losses or files.

    Called as `f(prompts=..., completions=..., completion_ids=..., answer=..., prompt_messages=..., **columns)`: lists
    with one entry per completion, every column of the dataset among them. `prompts` are texts with the chat template
    applied, `prompt_messages` the messages that went into it (None for a prompt of plain text). A function without
    `**columns` gets only the arguments that its signature names.

    It returns a list (or tuple, array or tensor) with one number per completion, None for a completion that is not
    its task. An `async def` function may be given too: those of a run share one event loop and wait at the same time.

        def shorter(completion_ids, **columns):
            return [-len(ids) / 1000 for ids in completion_ids]
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One number or None per completion, or an awaitable of that list."""
