"""Requests into vLLM and tokens out of it, step by step."""

from collections.abc import Sequence
from typing import Any

from paceline.engines import Sampling
from paceline.engines.vllm.collecting import News, Order
from paceline.engines.vllm.names import KEY, SAMPLING


class Asker:
    """Knows vLLM's requests by the index of their completion."""

    def __init__(self, vllm: Any, end_tokens: frozenset[int]) -> None:
        """`vllm` is a `LLMEngine`; a completion ends after any of `end_tokens`."""
        self._vllm, self._end_tokens = vllm, sorted(end_tokens)
        self._waiting = dict[str, int]()
        self._count = 0

    @property
    def waits(self) -> bool:
        """True if any completion has not ended."""
        return bool(self._waiting)

    def ask(self, orders: Sequence[Order], sampling: Sampling) -> None:
        """Queue a request per completion: what prompts share, vLLM computes once."""
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        for index, order in enumerate(orders):
            params = SamplingParams(
                max_tokens=order.limit,
                logprobs=0,
                flat_logprobs=True,
                ignore_eos=True,
                stop_token_ids=self._end_tokens,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA if sampling.stop else RequestOutputKind.FINAL_ONLY,
                extra_args={KEY: order.key, SAMPLING: sampling},
                skip_clone=True,
            )
            self._waiting[self._add(tokens_input(list(order.prompt_ids)), params)] = index

    def step(self) -> list[News]:
        """What one step has brought of those that wait."""
        news = list[News]()
        for output in self._vllm.step():
            index = self._waiting.get(output.request_id)
            if index is None:
                continue  # was aborted while the step was under way
            (completion,) = output.outputs
            if output.finished:
                del self._waiting[output.request_id]
            news.append(
                News(
                    index=index,
                    tokens=completion.token_ids,
                    logprobs=completion.logprobs.logprobs,
                    versions=completion.logprobs.ranks,  # see `KeyedSampler`
                    has_ended=output.finished,
                )
            )
        return news

    def abort(self, index: int) -> None:
        """This completion has ended, by what vLLM does not know of."""
        (name,) = (name for name, waiting in self._waiting.items() if waiting == index)
        del self._waiting[name]
        self._vllm.abort_request([name])

    def abort_all(self) -> None:
        """Whatever still waits is not wanted any more."""
        if self._waiting:
            self._vllm.abort_request(list(self._waiting))
            self._waiting.clear()

    def score(self, prompt: list[int], length: int) -> tuple[list[int], list[float]]:
        """Prompt and `length` most probable tokens after it, and the logprobs of all but the first, in nats."""
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        greedy = Sampling(max_completion_length=length, temperature=0.0)
        params = SamplingParams(
            max_tokens=length,
            logprobs=0,
            prompt_logprobs=0,
            flat_logprobs=True,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={KEY: 0, SAMPLING: greedy},
        )
        self._add(tokens_input(prompt), params)
        outputs = list[Any]()
        while not outputs:
            outputs = self._vllm.step()
        (completion,) = outputs[0].outputs
        tokens = [*prompt, *completion.token_ids]
        return tokens, [*outputs[0].prompt_logprobs.logprobs, *completion.logprobs.logprobs]

    def _add(self, prompt: Any, params: Any) -> str:
        name = str(self._count)
        self._count += 1
        self._vllm.add_request(name, prompt, params)
        return name
