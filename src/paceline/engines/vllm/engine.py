"""vLLM as an engine of a training run: it samples with the trainer's weights, which are sent after each update."""

import contextlib
from collections.abc import Generator, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.engines import Finished, FurtherRequests, OnFinished, Request, RequestStream, Sampled, Sampling, TakeNewer
from paceline.engines.requests import Stopping, check_requests, completions_of, refuse_not_finite, texts_of
from paceline.engines.vllm.asking import Asker, Call, NewTokens, Order, orders_of
from paceline.engines.vllm.starting import Room, start
from paceline.engines.vllm.weight_transfer import (
    GREEDY_TOKENS,
    check_probe,
    deliver,
    named_weights,
    probe_prompt,
    trainer_logprobs,
    widened,
    widening,
)
from paceline.engines.vllm.window import check_vllm
from paceline.errors import EngineError, PacelineError, TrainingError, first_line
from paceline.models.families import layer_plans
from paceline.runtime.activity import ACTIVITY
from paceline.types import Completion, FinishReason


class VllmEngine:
    """A `TrainedEngine` over vLLM in this process. Its copy of the model's weights is renewed by `take_weights`."""

    path = "vllm"
    takes_further = True

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        compute_dtype: torch.dtype,
        eos_token_ids: frozenset[int],
        room: Room,
        take_newer: TakeNewer | None = None,
    ) -> None:
        """Start vLLM, with weights, cache and computation in `compute_dtype`, and give it the model's weights.

        The model is never changed; its weights may have an adapter in them, which vLLM does not see. A completion ends
        after any of `eos_token_ids`. `take_newer` is asked before each step of vLLM; None: a call ends with the weights
        that it began with.

        Raises:
            ConfigError: the installed vLLM is not one that this was written against.
            ModelError: an adapter that is more than the product of two matrices.
            TrainingError: vLLM does not compute what the model does.
        """
        check_vllm(model.device.type)
        for _ in named_weights(model):
            pass  # looks at every adapter before the time is spent
        self.policy_version = 0
        """Policy version of vLLM's weights; copied into completions."""
        self._model, self._tokenizer, self._dtype, self._room = model, tokenizer, compute_dtype, room
        self._take_newer = take_newer
        self._vocab_size = model.get_output_embeddings().weight.shape[0]
        self._end_tokens = frozenset(token for token in eos_token_ids if token < self._vocab_size)
        self._busy = self._asleep = self._is_complete = False
        with self._dying("it started"):
            self._vllm = start(model, compute_dtype, room)
        self._asker = Asker(self._vllm, self._end_tokens)
        self.take_weights(0)
        self.path_reason = f"vLLM on {model.device.type}, checked against the trainer's logprobs after every update"

    def take_weights(self, policy_version: int) -> None:
        """Send the model's current weights, of this policy version, to vLLM.

        All weights are sent the first time, then those that training changes. vLLM's prefix cache is reset, and its
        logprobs are compared with the model's.

        Raises:
            TrainingError: completions are being sampled, or vLLM computes other logprobs than the model.
            EngineError: vLLM failed.
        """
        if self._busy:
            raise TrainingError(
                f"weights of policy version {policy_version} came while completions were sampled from version "
                f"{self.policy_version}; wait until `generate` has returned, or give them by `take_newer`"
            )
        with self._dying("it took weights"):
            if self._asleep:
                self._vllm.wake_up(tags=["weights"])
            self._deliver(policy_version)
            if self._asleep:
                self._vllm.wake_up(tags=["kv_cache"])
            self._asleep, self._is_complete = False, True
            forgotten = self._vllm.reset_prefix_cache()
        if not forgotten:
            raise EngineError("vLLM keeps parts of prompts that were computed with weights which it no longer has")
        self._probe()

    def rest(self) -> None:
        """Free the GPU's memory for the learner until the next `take_weights`; nothing happens on a CPU."""
        if self._model.device.type == "cuda" and not self._asleep:
            with self._dying("it went to sleep"):
                self._vllm.sleep(level=2)
            self._asleep, self._is_complete = True, False

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        on_finished: OnFinished | None = None,
        further: FurtherRequests | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Sample the completions of each request by vLLM, which finds what a request continues in its own cache.

        Where newer weights come meanwhile, a request that has no token yet, the next turn of a conversation, is
        computed as a whole with these.

        Raises:
            DataError: a prompt without tokens, too long, or that does not begin with what it continues; limits that do
                not fit keys or sampling.
            TrainingError: the logits are not finite.
            EngineError: vLLM failed.
        """
        call = Call(sampling, self._room.length)
        call.add(requests)
        if self._asleep:
            self.take_weights(self.policy_version)
        stopping = Stopping(self._tokenizer, self._end_tokens, sampling.stop, self._vocab_size)
        with contextlib.closing(self._ending(call, further, stopping)) as ending:
            for index in ending:
                if on_finished is None:
                    continue
                order, tokens = call.orders[index], call.collected[index].tokens
                finished = Finished(
                    request=order.request,
                    sample=order.sample,
                    token_ids=tuple(tokens),
                    text=texts_of(self._tokenizer, [tokens])[0],
                    finish_reason=stopping.finish_reason(tokens, order.limit),
                )
                if on_finished(finished):
                    call.continued[order.request, order.sample] = finished.token_ids
        refuse_not_finite(
            np.concatenate([completion.logprobs for completion in call.collected] or [[]]), self.policy_version
        )
        sampled = [(completion.tokens, completion.logprobs, completion.versions) for completion in call.collected]
        completions = iter(completions_of(self._tokenizer, stopping, sampled, [order.limit for order in call.orders]))
        return [tuple(next(completions) for _ in request.keys) for request in call.requests]

    def stream(self, stream: RequestStream, *, length: int) -> None:
        """Sample what `stream` gives by vLLM; see `TrainedEngine`. What prompts share it finds in its own cache.

        Raises:
            DataError: a prompt without tokens, or limits that do not fit keys or sampling.
            EngineError: vLLM failed.
        """
        orders, taken, queued = dict[int, Order](), 0, 0
        is_open, self._busy = True, True
        try:
            while is_open or self._asker.waits:
                more = stream.take(wait=not self._asker.waits) if is_open else ()
                is_open = more is not None
                for request, sampling in more or ():
                    check_requests([request], sampling)
                    for order in orders_of([request], sampling, first=taken):
                        with self._dying("it took requests"):
                            self._asker.queue(queued, order, sampling, self.policy_version, at_once=True)
                        orders[queued] = order
                        queued += 1
                    taken += 1
                if not self._asker.waits:
                    continue
                with self._dying("it sampled"):
                    outputs = self._asker.step()
                sampled = [
                    Sampled(
                        request=orders[new.index].request,
                        sample=orders[new.index].sample,
                        token_ids=tuple(new.tokens),
                        logprobs=tuple(new.logprobs),
                        finish_reason=self._why(new) if new.has_ended else None,
                    )
                    for new in outputs
                ]
                for new, is_unwanted in zip(outputs, stream.tell(sampled), strict=True):
                    if is_unwanted and not new.has_ended:
                        self._asker.abort(new.index)
                    if is_unwanted or new.has_ended:
                        del orders[new.index]
        finally:
            self._busy = False
            self._asker.abort_all()

    def _why(self, new: NewTokens) -> FinishReason:
        return "length" if self._end_tokens.isdisjoint(new.tokens[-1:]) else "stop"

    def _ending(self, call: Call, further: FurtherRequests | None, stopping: Stopping) -> Generator[int, None, None]:
        """Sample; yield the index of each completion as soon as it has ended. Aborts the rest if closed early."""
        self._busy, ended, tokens = True, 0, 0
        ACTIVITY.advance("generate", 0, len(call.orders))
        try:
            while True:
                if further is not None:
                    more = further.take(wait=not self._asker.waits and call.asked == len(call.orders))
                    if more is None:
                        further = None
                    else:
                        call.add(more)
                if not self._asker.waits and call.asked == len(call.orders):
                    if further is None:
                        break
                    continue
                # Completions under way keep their cache, as in every engine; those without a token find nothing that
                # older weights have computed. The probe waits for the next `take_weights`: here it would be another
                # request among those under way.
                version = None if self._take_newer is None else self._take_newer()
                if version is not None:
                    with self._dying("it took weights"):
                        self._deliver(version)
                        self._asker.ask_anew(call, version)
                with self._dying("it took requests"):
                    self._asker.ask(call, self.policy_version)
                with self._dying("it sampled"):
                    outputs = self._asker.step()
                for new in outputs:
                    stopped = call.collected[new.index].take(new, stopping)
                    if stopped and not new.has_ended:
                        self._asker.abort(new.index)
                    tokens += len(new.tokens)
                    if stopped or new.has_ended:
                        ended += 1
                        yield new.index
                ACTIVITY.advance("generate", ended, len(call.orders), tokens=tokens)
        finally:
            self._busy = False
            self._asker.abort_all()

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        config = self._model.config.get_text_config()
        weights = named_weights(self._model, only_trained=self._is_complete)
        return widened(weights, layer_plans(config)[0].head_dim, widening(config, self._model.device.type))

    def _deliver(self, policy_version: int) -> None:
        deliver(self._vllm, self._weights(), policy_version=policy_version, workers=self._room.tensor_parallel)
        self.policy_version = policy_version

    def _probe(self) -> None:
        """Compare logprobs of the same tokens by vLLM and by the model."""
        with self._dying("it was probed"):
            tokens, engine = self._asker.score(probe_prompt(self._vocab_size), GREEDY_TOKENS)
        trainer = trainer_logprobs(self._model, tokens, self._dtype)
        check_probe(engine, trainer, self._dtype, policy_version=self.policy_version)

    @contextlib.contextmanager
    def _dying(self, when: str) -> Iterator[None]:
        """Turn any failure of vLLM into an EngineError that names the occasion."""
        try:
            yield
        except PacelineError:
            raise
        except _failures() as error:
            raise EngineError(
                f"vLLM failed when {when} at policy version {self.policy_version}, {type(error).__name__}: "
                f"{first_line(error)}; its own messages are above"
            ) from error


def _failures() -> tuple[type[Exception], ...]:
    from vllm.v1.engine.exceptions import EngineDeadError  # only now: vLLM reads its environment when it is imported

    return (RuntimeError, ValueError, AssertionError, EngineDeadError)
