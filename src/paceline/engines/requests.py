"""Shared by engines: checks of requests, the end of completions, and completions made of tokens."""

from collections.abc import Mapping, Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from paceline.engines import Request, Sampling
from paceline.errors import DataError, TrainingError
from paceline.types import Completion, FinishReason, WeightChange


def limits_of(request: Request, sampling: Sampling) -> tuple[int, ...]:
    """Return the largest number of tokens of each of its completions."""
    if request.limits is None:
        return (sampling.max_completion_length,) * len(request.keys)
    return request.limits


def check_requests(
    requests: Sequence[Request],
    sampling: Sampling,
    earlier: Sequence[Request] = (),
    continued: Mapping[tuple[int, int], Sequence[int]] | None = None,
    *,
    reads_images: bool = False,
) -> None:
    """Check requests before anything is computed.

    `earlier` are the call's earlier requests, `continued` the tokens of completions that may be continued, by request
    and sample. `reads_images`: the engine's model does.

    Raises:
        DataError: a prompt without tokens; limits that do not fit keys or sampling; images that the model cannot read
            or that lie outside the prompt; a prompt that does not begin with what it continues.
    """
    for index, request in enumerate(requests, start=len(earlier)):
        if not request.prompt_ids:
            raise DataError(f"prompt {index} of the batch has 0 tokens, a prompt needs at least 1; drop the row")
        if request.media:
            _check_media(index, request, reads_images=reads_images)
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
        if request.continues is not None:
            _check_continues(index, request, earlier, continued or {})


def _check_media(index: int, request: Request, *, reads_images: bool) -> None:
    """Check that the model reads images, and that those of a prompt lie in it one behind another."""
    if not reads_images:
        raise DataError(
            f"prompt {index} of the batch has {len(request.media)} images, and this engine's model reads text alone; "
            "name a model that reads images with --model, or drop the row"
        )
    end = 0
    for image in request.media:
        if image.length < 1 or not end <= image.start <= len(request.prompt_ids) - image.length:
            raise DataError(
                f"prompt {index} of the batch has an image of {image.length} tokens from token {image.start} on, and "
                f"an image must lie in [{end}, {len(request.prompt_ids)}), behind the one before it; give the places "
                "of the prompt's own tokens"
            )
        end = image.start + image.length


def _check_continues(
    index: int,
    request: Request,
    earlier: Sequence[Request],
    continued: Mapping[tuple[int, int], Sequence[int]],
) -> None:
    """Check that a prompt begins with what it continues, whose cache it uses."""
    assert request.continues is not None
    tokens = continued.get(request.continues)
    if tokens is None:
        raise DataError(
            f"prompt {index} of the batch continues {request.continues}, which names no ended completion that "
            "`on_finished` returned True for; name one, or None"
        )
    if len(request.keys) != 1:
        raise DataError(f"prompt {index} of the batch continues a completion with {len(request.keys)} keys; give one")
    continued_request = earlier[request.continues[0]]
    if request.media != continued_request.media:
        raise DataError(
            f"prompt {index} of the batch has {len(request.media)} images and continues {request.continues}, whose "
            f"prompt has {len(continued_request.media)} or others, and a continued prompt must have the same; give "
            "these, or None as what it continues"
        )
    before = (*continued_request.prompt_ids, *tokens)
    if request.prompt_ids[: len(before)] != before:
        raise DataError(
            f"prompt {index} of the batch does not begin with the {len(before)} tokens of prompt and completion that "
            f"it continues, {request.continues}; give these, or None as what it continues"
        )


def refuse_not_finite(logprobs: np.ndarray, policy_version: int) -> None:
    """Refuse logprobs of logits that are not finite numbers, by a TrainingError."""
    if not np.isfinite(logprobs).all():
        raise TrainingError(
            f"the policy's logits are not finite at version {policy_version}, a completion needs finite ones; "
            "lower --learning-rate or --max-grad-norm"
        )


class Stopping:
    """Detects ends of completions: end tokens by a table, stop strings by decoding a tail where one can have ended.

    Made once per call of an engine.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, end_tokens: frozenset[int], stop: tuple[str, ...], vocab_size: int
    ) -> None:
        """`vocab_size` is the number of the model's logits, which may exceed the tokenizer's vocabulary."""
        self.watches_text = bool(stop)
        self._tokenizer, self._stop = tokenizer, stop
        self._ends = np.zeros(vocab_size, dtype=bool)
        self._ends[[token for token in end_tokens if token < vocab_size]] = True
        # True for tokens whose own text holds the last character of some stop string; for all where that text cannot
        # tell, since a space may be stripped and a character may be spread over byte tokens
        last = {text[-1] for text in stop}
        unclear = any(character.isspace() or not character.isascii() for character in last)
        self._may_finish_a_string = np.full(vocab_size, unclear)
        if last and not unclear:
            texts = tokenizer.batch_decode([[token] for token in range(vocab_size)])
            self._may_finish_a_string[:] = [any(character in text for character in last) for text in texts]
        # One character takes up to four byte tokens; a margin for tokens that decode to nothing.
        self._tail = 4 * max((len(text) for text in stop), default=0) + 16

    def ended(self, tokens: np.ndarray) -> np.ndarray:
        """Return True for end tokens."""
        ends: np.ndarray = self._ends[tokens]
        return ends

    def candidates(self, tokens: np.ndarray) -> np.ndarray:
        """Return indices of tokens whose text may complete a stop string, for `completes_string` to check."""
        return np.flatnonzero(self._may_finish_a_string[tokens])

    def completes_string(self, completion: Sequence[int]) -> bool:
        """Return whether the last token completes a stop string, which may be the name of a special token."""
        if not self._may_finish_a_string[completion[-1]]:
            return False
        text = self._tokenizer.decode(list(completion[-self._tail :]), skip_special_tokens=False)
        return any(stop in text for stop in self._stop)

    def finish_reason(self, completion: Sequence[int], limit: int) -> FinishReason:
        """Return `stop` if an end token or a stop string ended the completion, `length` if only its limit did."""
        if len(completion) < limit or self._ends[completion[-1]] or self.completes_string(completion):
            return "stop"
        return "length"


def completions_of(
    tokenizer: PreTrainedTokenizerBase,
    stopping: Stopping,
    sampled: Sequence[tuple[list[int], list[float], Sequence[int] | np.ndarray]],
    limits: Sequence[int],
) -> list[Completion]:
    """Make completions from tokens, logprobs and policy versions by token, and limits in tokens."""
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
    tokens = (np.flatnonzero(np.diff(versions)) + 1).tolist()
    return tuple(WeightChange(token=token, policy_version=int(versions[token])) for token in tokens)
