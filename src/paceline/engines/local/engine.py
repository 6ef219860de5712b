"""The embedded engine: samples in the learner's process, on the learner's own weights."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typing_extensions import override

from paceline.engines import OnFinished, Request, Sampling, TakeNewer, TrainedEngine
from paceline.engines.local.choosing import choose_decoder
from paceline.engines.local.scheduling import SamplingJob, Scheduler
from paceline.engines.requests import check_requests, completions_of, limits_of, refuse_not_finite, texts_of
from paceline.engines.stopping import Stopping
from paceline.models.plain_forward import evaluating
from paceline.types import Completion


class LocalEngine(TrainedEngine):
    """An `Engine` over a transformers model. Weights are read at each call: an update in place is seen by the next.

    With `take_newer` they may also change within a call, between two tokens. Completions then go on with the cache that
    they have, keys and values of the older weights (PipelineRL, arXiv:2509.19128), and say which token is of which.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        concurrent_sequences: int,
        compute_dtype: torch.dtype,
        eos_token_ids: frozenset[int],
        take_newer: TakeNewer | None = None,
    ) -> None:
        """Choose the decoder, by a short comparison with the model's own logits.

        Args:
            model: the policy; its weights are shared, never changed.
            tokenizer: decodes completions.
            concurrent_sequences: completions computed at the same time, at most; bounds memory, never the result.
            compute_dtype: precision of the forward pass; a copy of the weights is made per call where theirs differs.
            eos_token_ids: a completion ends after any of these.
            take_newer: asked before each token; None: a call ends with the weights that it began with.

        Raises:
            ModelError: no decoder gives the model's own logits.
        """
        self.policy_version = 0
        """How many optimiser updates the weights have seen; copied into completions."""
        self._take_newer = None if take_newer is None else lambda: self._taken(take_newer())
        self._model, self._tokenizer, self._dtype = model, tokenizer, compute_dtype
        self._capacity, self._end_tokens = concurrent_sequences, eos_token_ids
        self._decoder, self.path, self.path_reason = choose_decoder(model, compute_dtype)

    @override
    def take_weights(self, policy_version: int) -> None:
        # the model's weights are read at each call.
        self.policy_version = policy_version

    @override
    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, on_finished: OnFinished | None = None
    ) -> list[tuple[Completion, ...]]:
        """Sample the completions of each request, on the model's own weights.

        Raises:
            DataError: a prompt without tokens; limits that do not fit keys or sampling.
            TrainingError: the logits are not finite.
        """
        check_requests(requests, sampling)
        jobs = _jobs(requests, self._capacity, sampling)
        if not jobs:
            return [() for _ in requests]
        vocab_size = self._model.get_output_embeddings().weight.shape[0]
        stopping = Stopping(self._tokenizer, self._end_tokens, sampling.stop, vocab_size)
        request_of = [index for index, request in enumerate(requests) for _ in request.keys]

        def tell(ended: list[tuple[int, list[int]]]) -> None:
            """Report completions, which the scheduler numbers over the whole call."""
            texts = texts_of(self._tokenizer, [tokens for _, tokens in ended])
            for (sequence, tokens), text in zip(ended, texts, strict=True):
                assert on_finished is not None
                on_finished(request_of[sequence], tuple(tokens), text)

        with torch.inference_mode(self.path == "fused"), evaluating(self._model):
            if self._take_newer is not None:
                self._take_newer()
            scheduler = Scheduler(
                decoder=self._decoder,
                sampling=sampling,
                stopping=stopping,
                jobs=jobs,
                policy_version=self.policy_version,
                take_newer=self._take_newer,
                concurrent_sequences=self._capacity,
                device=self._model.device,
                on_ended=None if on_finished is None else tell,
            )
            sampled = scheduler.run()
        refuse_not_finite(np.concatenate([logprobs for _, logprobs, _ in sampled]), self.policy_version)
        lists = [(tokens.tolist(), logprobs.tolist(), versions) for tokens, logprobs, versions in sampled]
        limits = [limit for request in requests for limit in limits_of(request, sampling)]
        completions = iter(completions_of(self._tokenizer, stopping, lists, limits))
        return [tuple(next(completions) for _ in request.keys) for request in requests]

    def _taken(self, version: int | None) -> int | None:
        self.policy_version = self.policy_version if version is None else version
        return version


def _jobs(requests: Sequence[Request], capacity: int, sampling: Sampling) -> list[SamplingJob]:
    """Requests with their completions numbered, cut where a group is larger than the engine's capacity."""
    jobs, first = [], 0
    for request in requests:
        limits = limits_of(request, sampling)
        for start in range(0, len(request.keys), capacity):
            part = slice(start, start + capacity)
            keys = request.keys[part]
            sequences = tuple(range(first + start, first + start + len(keys)))
            jobs.append(SamplingJob(prompt_ids=request.prompt_ids, sequences=sequences, keys=keys, limits=limits[part]))
        first += len(request.keys)
    return jobs
