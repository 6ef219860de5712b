"""What every engine checks of its requests, and how it makes completions of tokens."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from paceline.engines import Request, Sampling
from paceline.engines.stopping import Stopping
from paceline.errors import DataError, TrainingError
from paceline.types import Completion, WeightChange


def limits_of(request: Request, sampling: Sampling) -> tuple[int, ...]:
    """Tokens of each of its completions, at most."""
    if request.limits is None:
        return (sampling.max_completion_length,) * len(request.keys)
    return request.limits


def check_requests(requests: Sequence[Request], sampling: Sampling) -> None:
    """Look at all requests before anything is computed.

    Raises:
        DataError: a prompt without tokens; limits that do not fit keys or sampling.
    """
    for index, request in enumerate(requests):
        if not request.prompt_ids:
            raise DataError(f"prompt {index} of the batch has 0 tokens, a prompt needs at least 1; drop the row")
        limits = limits_of(request, sampling)
        if len(limits) != len(request.keys):
            raise DataError(
                f"prompt {index} of the batch has {len(limits)} limits for {len(request.keys)} completions, "
                "each completion needs one; give as many limits as keys, or None"
            )
        for limit in limits:
            if not 1 <= limit <= sampling.max_completion_length:
                raise DataError(
                    f"prompt {index} of the batch limits a completion to {limit} tokens, a limit must lie in "
                    f"[1, {sampling.max_completion_length}], the sampling's own; change either"
                )


def refuse_not_finite(logprobs: np.ndarray, policy_version: int) -> None:
    """Refuse logprobs of logits that are not finite.

    Raises:
        TrainingError: one is not a finite number.
    """
    if not np.isfinite(logprobs).all():
        raise TrainingError(
            f"the policy's logits are not finite at version {policy_version}, a completion needs finite ones; "
            "lower --learning-rate or --max-grad-norm"
        )


def completions_of(
    tokenizer: PreTrainedTokenizerBase,
    stopping: Stopping,
    sampled: Sequence[tuple[list[int], list[float], Sequence[int] | np.ndarray]],
    limits: Sequence[int],
) -> list[Completion]:
    """Make completions of their tokens, logprobs and policy versions by token, and of their limits in tokens."""
    texts = texts_of(tokenizer, [tokens for tokens, _, _ in sampled])
    return [
        Completion(
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            finish_reason=stopping.finish_reason(tokens, limit),
            text=text,
            policy_version=int(versions[0]),
            weight_changes=weight_changes(versions),
        )
        for (tokens, logprobs, versions), text, limit in zip(sampled, texts, limits, strict=True)
    ]


def texts_of(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[Sequence[int]]) -> list[str]:
    """Decode completions without special tokens."""
    # one call into the tokenizer's library if transformers adds nothing: row by row takes 8 % of a small model's call
    if tokenizer.is_fast and not tokenizer.clean_up_tokenization_spaces:
        texts: list[str] = tokenizer.backend_tokenizer.decode_batch(tokens, skip_special_tokens=True)
        return texts
    return tokenizer.batch_decode([list(ids) for ids in tokens], skip_special_tokens=True)


def weight_changes(versions: Sequence[int] | np.ndarray) -> tuple[WeightChange, ...]:
    """List the tokens at which the policy version changes; a version is never older than that of the token before.

    >>> [(change.token, change.policy_version) for change in weight_changes([4, 4, 5, 7, 7])]
    [(2, 5), (3, 7)]
    """
    if versions[0] == versions[-1]:
        return ()  # nearly always
    places = (np.flatnonzero(np.diff(versions)) + 1).tolist()
    return tuple(WeightChange(token=place, policy_version=int(versions[place])) for place in places)
