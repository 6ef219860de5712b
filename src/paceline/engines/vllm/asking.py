"""Requests into vLLM and tokens out of it, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.engines import Request, Sampling
from paceline.engines.requests import Stopping, check_requests, limits_of
from paceline.errors import DataError

# Names shared by the engine and vLLM's workers, which may be other processes.
BACKEND = "paceline"
"""Name of the weight transfer in vLLM's table."""
EXTENSION = "paceline.engines.vllm.worker.Extension"
KEY = "paceline_key"
"""Name of a request's argument with the key of its random numbers."""
SAMPLING = "paceline_sampling"
"""Name of a request's argument with its `Sampling`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One completion to sample."""

    request: int
    """Index of its request in the call."""
    sample: int
    """Index among the completions of its request."""
    prompt_ids: tuple[int, ...]
    key: int
    limit: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NewTokens:
    """Tokens that vLLM has added to a completion."""

    index: int
    """Index of the completion in the call."""
    tokens: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]
    """Policy version of the weights that sampled each token."""
    has_ended: bool


@dataclass(kw_only=True, slots=True)
class Collected:
    """Tokens of one completion so far, each with its logprob and policy version."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def take(self, new: NewTokens, stopping: Stopping) -> bool:
        """Add tokens up to the end of a stop string; return whether one ends the completion."""
        for token, logprob, version in zip(new.tokens, new.logprobs, new.versions, strict=True):
            self.tokens.append(token)
            self.logprobs.append(logprob)
            self.versions.append(version)
            if stopping.completes_string(self.tokens):
                return True
        return False


def orders_of(requests: Sequence[Request], sampling: Sampling, *, first: int = 0) -> list[Order]:
    """Make one order per completion; `first` is the index of the first request in the call."""
    return [
        Order(request=index, sample=sample, prompt_ids=request.prompt_ids, key=key, limit=limit)
        for index, request in enumerate(requests, start=first)
        for sample, (key, limit) in enumerate(zip(request.keys, limits_of(request, sampling), strict=True))
    ]


class Call:
    """Requests, orders and tokens of one call, further requests included."""

    def __init__(self, sampling: Sampling, length: int) -> None:
        """`length` bounds the tokens of a prompt and its completion."""
        self.sampling, self._length = sampling, length
        self.requests, self.orders, self.collected = list[Request](), list[Order](), list[Collected]()
        self.asked = 0
        """Number of orders that have been sent to vLLM."""
        self.continued = dict[tuple[int, int], tuple[int, ...]]()
        """Tokens of the completions that may be continued, by request and sample."""

    def add(self, requests: Sequence[Request]) -> None:
        """Check further requests and add orders for their completions."""
        check_requests(requests, self.sampling, self.requests, self.continued)
        orders = orders_of(requests, self.sampling, first=len(self.requests))
        for order in orders:
            if len(order.prompt_ids) + order.limit > self._length:
                raise DataError(
                    f"prompt {order.request} of the batch has {len(order.prompt_ids)} tokens and up to {order.limit} "
                    f"to come, vLLM was started for {self._length}; raise --max-prompt-length"
                )
        self.requests += requests
        self.orders += orders
        self.collected += [Collected() for _ in orders]


class Asker:
    """Sends requests to vLLM and reads its outputs, by the index of the completion."""

    def __init__(self, vllm: Any, end_tokens: frozenset[int]) -> None:
        """`vllm` is a `LLMEngine`; a completion ends after any of `end_tokens`."""
        self._vllm, self._end_tokens = vllm, sorted(end_tokens)
        self._waiting = dict[str, int]()
        self._count = 0

    @property
    def waits(self) -> bool:
        """True if any completion has not ended."""
        return bool(self._waiting)

    def ask(self, call: Call, policy_version: int) -> None:
        """Queue a request for each new completion. What prompts share or continue, vLLM computes once.

        Its prefix cache is used within one policy version only.
        """
        for index in range(call.asked, len(call.orders)):
            self.queue(index, call.orders[index], call.sampling, policy_version, at_once=bool(call.sampling.stop))
        call.asked = len(call.orders)

    def ask_anew(self, call: Call, policy_version: int) -> None:
        """Queue completions without a token again after weights have changed, as prompts may be partly cached."""
        scheduled, own_names = self._vllm.engine_core.engine_core.scheduler.requests, self._vllm.output_processor
        names = [
            name
            for name in self._waiting
            if not any(scheduled[internal].num_output_tokens for internal in own_names.external_req_ids[name])
        ]
        self._vllm.abort_request(names)
        for index in [self._waiting.pop(name) for name in names]:
            self.queue(index, call.orders[index], call.sampling, policy_version, at_once=bool(call.sampling.stop))

    def queue(self, index: int, order: Order, sampling: Sampling, policy_version: int, *, at_once: bool) -> None:
        """Queue a completion; `at_once`: `step` returns each token at once, else all of them at the end."""
        name = self._add(
            order.prompt_ids,
            order.key,
            order.limit,
            sampling,
            cached_by=str(policy_version),
            at_once=at_once,
            stop_token_ids=self._end_tokens,
            skip_clone=True,
        )
        self._waiting[name] = index

    def step(self) -> list[NewTokens]:
        """Run one step; return the new tokens of queued completions."""
        outputs = list[NewTokens]()
        for output in self._vllm.step():
            index = self._waiting.get(output.request_id)
            if index is None:
                continue  # was aborted while the step was under way
            (completion,) = output.outputs
            if output.finished:
                del self._waiting[output.request_id]
            outputs.append(
                NewTokens(
                    index=index,
                    tokens=completion.token_ids,
                    logprobs=completion.logprobs.logprobs,
                    versions=completion.logprobs.ranks,  # see `KeyedSampler`
                    has_ended=output.finished,
                )
            )
        return outputs

    def abort(self, index: int) -> None:
        """Abort a completion that has ended for a reason unknown to vLLM."""
        (name,) = (name for name, waiting in self._waiting.items() if waiting == index)
        del self._waiting[name]
        self._vllm.abort_request([name])

    def abort_all(self) -> None:
        """Abort all completions that have not ended."""
        if self._waiting:
            self._vllm.abort_request(list(self._waiting))
            self._waiting.clear()

    def score(self, prompt: list[int], length: int) -> tuple[list[int], list[float]]:
        """Return a prompt with `length` greedy tokens after it, and logprobs of all but the first token, in nats."""
        greedy = Sampling(max_completion_length=length, temperature=0.0)
        self._add(prompt, 0, length, greedy, prompt_logprobs=0)
        outputs = list[Any]()
        while not outputs:
            outputs = self._vllm.step()
        (completion,) = outputs[0].outputs
        tokens = [*prompt, *completion.token_ids]
        return tokens, [*outputs[0].prompt_logprobs.logprobs, *completion.logprobs.logprobs]

    def _add(
        self,
        prompt_ids: Sequence[int],
        key: int,
        limit: int,
        sampling: Sampling,
        *,
        cached_by: str | None = None,
        at_once: bool = False,
        **options: Any,
    ) -> str:
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            max_tokens=limit,
            logprobs=0,
            flat_logprobs=True,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if at_once else RequestOutputKind.FINAL_ONLY,
            extra_args={KEY: key, SAMPLING: sampling},
            **options,
        )
        name = str(self._count)
        self._count += 1
        self._vllm.add_request(name, tokens_input(list(prompt_ids), cache_salt=cached_by), params)
        return name
