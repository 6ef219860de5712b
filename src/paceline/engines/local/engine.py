"""The embedded engine: samples in the learner's process, on the learner's own weights."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typing_extensions import override

from paceline.engines import (
    Finished,
    FurtherRequests,
    OnFinished,
    Request,
    RequestStream,
    Sampled,
    Sampling,
    TakeNewer,
    TrainedEngine,
)
from paceline.engines.local.choice import choose_decoder
from paceline.engines.local.routes import RouteLog
from paceline.engines.local.rows import ASSUMED_FREE, PARKED_SHARE, Parked, SamplingJob
from paceline.engines.local.scheduling import Scheduler
from paceline.engines.requests import Stopping, check_requests, completions_of, limits_of, refuse_not_finite, texts_of
from paceline.models.plain_forward import evaluating
from paceline.models.routing import connect_routers
from paceline.runtime.devices import free_memory
from paceline.types import Completion

if TYPE_CHECKING:
    from paceline.models.vision.tower import Vision


class LocalEngine(TrainedEngine):
    """An `Engine` over a transformers model. Weights are read at each call: an update in place is seen by the next.

    With `take_newer` they may also change within a call, between two tokens. Completions then continue with keys and
    values of the older weights (PipelineRL, arXiv:2509.19128), and record which weights sampled each token. So do the
    turns of a conversation, whose cache is kept in between.
    """

    takes_further = True

    def __init__(  # noqa: PLR0913 - one model and how it is sampled from, without a record for one caller
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        concurrent_sequences: int,
        compute_dtype: torch.dtype,
        eos_token_ids: frozenset[int],
        take_newer: TakeNewer | None = None,
        parked_bytes: int | None = None,
        quantization: Literal["none", "fp8"] = "none",
        notes_routes: bool = False,
        vision: "Vision | None" = None,
    ) -> None:
        """Choose the decoder, by a short comparison with the model's own logits.

        The weights are shared, never changed; a copy is made per call where `compute_dtype` differs from theirs.
        `concurrent_sequences` bounds memory, never the result. A completion ends after any of `eos_token_ids`.
        `take_newer` is asked before each token; None: a call ends with the weights that it began with. `parked_bytes`
        bounds what is kept between turns; None: a share of the memory that is free at a call. With fp8 the weights of
        layers and what they are multiplied by are rounded to eight bits; head, embedding and cache are not.
        `notes_routes`: completions say which experts the model's routers chose; no step is recorded as a CUDA graph.
        `vision` reads the images of prompts; None: a request with images is refused.

        Raises:
            ModelError: no decoder gives the model's own logits, or this model or device has no products in eight bits.
        """
        self.policy_version = 0
        """Number of optimiser updates of the weights; copied into completions."""
        self._take_newer = None if take_newer is None else lambda: self._taken(take_newer())
        self._model, self._tokenizer, self._dtype = model, tokenizer, compute_dtype
        self._capacity, self._end_tokens, self._parked_bytes = concurrent_sequences, eos_token_ids, parked_bytes
        self._routing = connect_routers(model)
        self._notes_routes = notes_routes and self._routing is not None
        self._reads_images = vision is not None
        self._decoder, self.path, self.path_reason = choose_decoder(
            model, compute_dtype, float8=quantization == "fp8", records=not self._notes_routes, vision=vision
        )

    @override
    def take_weights(self, policy_version: int) -> None:
        # the model's weights are read at each call.
        self.policy_version = policy_version

    @override
    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        on_finished: OnFinished | None = None,
        further: FurtherRequests | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Sample the completions of each request, on the model's own weights.

        Raises:
            DataError: a prompt without tokens, or that does not begin with what it continues; limits that do not fit
                keys or sampling.
            TrainingError: the logits are not finite.
        """
        call = _Call(sampling, self._capacity, reads_images=self._reads_images)
        jobs = call.add(requests)
        if not jobs and further is None:
            return [() for _ in requests]
        vocab_size = self._model.get_output_embeddings().weight.shape[0]
        stopping = Stopping(self._tokenizer, self._end_tokens, sampling.stop, vocab_size)

        def tell(ended: list[tuple[int, list[int]]]) -> list[bool]:
            """Report completions; returns which of them may be continued."""
            assert on_finished is not None
            texts = texts_of(self._tokenizer, [tokens for _, tokens in ended])
            continued = []
            for (sequence, tokens), text in zip(ended, texts, strict=True):
                finished = call.finished(sequence, tokens, text, stopping)
                continued.append(on_finished(finished))
                if continued[-1]:
                    call.continued[finished.request, finished.sample] = finished.token_ids
            return continued

        def take_jobs(wait: bool) -> list[SamplingJob] | None:
            assert further is not None
            more = further.take(wait=wait)
            return None if more is None else call.add(more)

        routes = self._route_log(wanted=self._notes_routes)
        with torch.inference_mode(self._decoder.refills), evaluating(self._model):
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
                take_jobs=None if further is None else take_jobs,
                parked=Parked(0 if further is None else self._most_parked()),
                routes=routes,
            )
            sampled = scheduler.run()
        refuse_not_finite(
            np.concatenate([logprobs for _, logprobs, _ in sampled] or [np.zeros(0)]), self.policy_version
        )
        lists = [(tokens.tolist(), logprobs.tolist(), versions) for tokens, logprobs, versions in sampled]
        made = completions_of(self._tokenizer, stopping, lists, call.limits)
        if routes is not None:
            prompts = [len(request.prompt_ids) for request in call.requests for _ in request.keys]
            noted = routes.by_completion([*zip(prompts, (len(own.token_ids) for own in made), strict=True)])
            made = [replace(own, prompt_routes=of[0], routes=of[1]) for own, of in zip(made, noted, strict=True)]
        completions = iter(made)
        return [tuple(next(completions) for _ in request.keys) for request in call.requests]

    @override
    def stream(self, stream: RequestStream, *, length: int) -> None:
        """Sample what `stream` gives, on the model's own weights; see `TrainedEngine`.

        Raises:
            DataError: a prompt without tokens, or limits that do not fit keys or sampling.
        """
        places, taken, numbered = dict[int, tuple[int, int]](), 0, 0

        def take_jobs(wait: bool) -> list[SamplingJob] | None:
            nonlocal taken, numbered
            if (more := stream.take(wait=wait)) is None:
                return None
            jobs = list[SamplingJob]()
            for request, sampling in more:
                check_requests([request], sampling, reads_images=self._reads_images)
                # rows of one distribution are drawn together, whatever their limits
                drawn_by = replace(sampling, max_completion_length=length, stop=())
                jobs += [
                    replace(job, sampling=drawn_by) for job in jobs_of(request, sampling, numbered, self._capacity)
                ]
                places.update((numbered + sample, (taken, sample)) for sample in range(len(request.keys)))
                taken, numbered = taken + 1, numbered + len(request.keys)
            return jobs

        def tell(sequences: np.ndarray, tokens: np.ndarray, logprobs: np.ndarray, ended: np.ndarray) -> np.ndarray:
            is_end = stopping.ended(tokens)
            columns = (column.tolist() for column in (sequences, tokens, logprobs, ended, is_end))
            sampled = [
                Sampled(
                    request=places[number][0],
                    sample=places[number][1],
                    token_ids=(token,),
                    logprobs=(logprob,),
                    finish_reason=("stop" if ends else "length") if has_ended else None,
                )
                for number, token, logprob, has_ended, ends in zip(*columns, strict=True)
            ]
            unwanted = np.array(stream.tell(sampled), dtype=bool)
            for number in sequences[ended | unwanted].tolist():
                del places[number]
            return unwanted

        vocab_size = self._model.get_output_embeddings().weight.shape[0]
        stopping = Stopping(self._tokenizer, self._end_tokens, (), vocab_size)
        self._route_log(wanted=False)
        with torch.inference_mode(self._decoder.refills), evaluating(self._model):
            Scheduler(
                decoder=self._decoder,
                sampling=Sampling(max_completion_length=length),
                stopping=stopping,
                jobs=(),
                policy_version=self.policy_version,
                take_newer=None,
                concurrent_sequences=self._capacity,
                device=self._model.device,
                on_ended=None,
                take_jobs=take_jobs,
                parked=Parked(0),
                on_drawn=tell,
                room=length,
            ).run()

    def _route_log(self, *, wanted: bool) -> RouteLog | None:
        """Let the routers choose for themselves, after passes of a trainer on the same model; note it if `wanted`."""
        if self._routing is not None:
            self._routing.rest(notes=wanted)
        return RouteLog(self._decoder) if wanted else None

    def _most_parked(self) -> int:
        if self._parked_bytes is not None:
            return self._parked_bytes
        free = free_memory(self._model.device)
        return int(PARKED_SHARE * (ASSUMED_FREE if free is None else free))

    def _taken(self, version: int | None) -> int | None:
        self.policy_version = self.policy_version if version is None else version
        return version


class _Call:
    """The requests of one call, with their completions numbered over all of them."""

    def __init__(self, sampling: Sampling, capacity: int, *, reads_images: bool) -> None:
        self._sampling, self._capacity, self._reads_images = sampling, capacity, reads_images
        self.requests = list[Request]()
        self.limits, self._places = list[int](), list[tuple[int, int]]()
        """Largest number of tokens of each completion, and its request and sample."""
        self._first = list[int]()
        """Number of each request's first completion."""
        self.continued = dict[tuple[int, int], tuple[int, ...]]()
        """Tokens of the completions that may be continued."""

    def add(self, requests: Sequence[Request]) -> list[SamplingJob]:
        """Make jobs of further requests, several where a group is larger than the engine's capacity."""
        check_requests(requests, self._sampling, self.requests, self.continued, reads_images=self._reads_images)
        jobs = []
        for request in requests:
            limits, first = limits_of(request, self._sampling), len(self.limits)
            continues = None if request.continues is None else self._first[request.continues[0]] + request.continues[1]
            jobs += jobs_of(request, self._sampling, first, self._capacity, continues=continues)
            self._places += [(len(self.requests), sample) for sample in range(len(limits))]
            self._first.append(first)
            self.limits += limits
            self.requests.append(request)
        return jobs

    def finished(self, sequence: int, tokens: list[int], text: str, stopping: Stopping) -> Finished:
        """Describe an ended completion."""
        request, sample = self._places[sequence]
        reason = stopping.finish_reason(tokens, self.limits[sequence])
        return Finished(request=request, sample=sample, token_ids=tuple(tokens), text=text, finish_reason=reason)


def jobs_of(
    request: Request, sampling: Sampling, first: int, capacity: int, *, continues: int | None = None
) -> list[SamplingJob]:
    """Make jobs of a request, several where its group is larger than the capacity; completions count from `first`."""
    limits = limits_of(request, sampling)
    return [
        SamplingJob(
            prompt_ids=request.prompt_ids,
            media=request.media,
            sequences=tuple(range(first + start, first + min(start + capacity, len(request.keys)))),
            keys=request.keys[start : start + capacity],
            limits=limits[start : start + capacity],
            sampling=sampling,
            continues=continues,
        )
        for start in range(0, len(request.keys), capacity)
    ]
