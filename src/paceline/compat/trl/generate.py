"""TRL's ways to sample outside the loop: a `generate` that a program puts on its model, and the trainer's `_generate`.

B completions, T tokens.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase
from typing_extensions import override

from paceline.compat.trl import datasets
from paceline.compat.trl.building import TrainingJob
from paceline.compat.trl.environments import GivenEnvironments
from paceline.compat.trl.rewards import up_to_last
from paceline.compat.trl.rollouts import checked_lists, extra_fields
from paceline.engines import FurtherRequests, OnFinished, Request, RequestStream, Sampling, TrainedEngine
from paceline.engines.requests import Stopping, check_requests, completions_of, limits_of, refuse_not_finite
from paceline.episodes.conversations import Draws
from paceline.episodes.driver import complete
from paceline.errors import ConfigError, TrainingError
from paceline.models.loaded import Loaded
from paceline.models.plain_forward import evaluating, plain_logits
from paceline.models.pretrained import end_token_ids
from paceline.objective.streams import loss_mask
from paceline.training.backend import OneProcess
from paceline.training.setup.samplers import sampling_of
from paceline.types import Completion

LOGGER = logging.getLogger(__name__)

NAME = "generate"


class ReplacedGenerate(TrainedEngine):
    """A `TrainedEngine` that calls the model's `generate`, which the program has replaced, as TRL does.

    All prompts of a call go in one batch, padded on the left. Random numbers are the replacement's own. A logprob is
    that of the model at the sampling's temperature, whatever distribution the token was drawn from.
    """

    path, path_reason = NAME, "the program has put it on its model"
    takes_further = False

    def __init__(
        self, policy: Loaded, tokenizer: PreTrainedTokenizerBase, end_tokens: frozenset[int], policy_version: int
    ) -> None:
        """A completion ends after any of `end_tokens`."""
        self._policy, self._tokenizer, self._end_tokens = policy, tokenizer, end_tokens
        self._vocab_size: int = policy.model.get_output_embeddings().weight.shape[0]
        self.policy_version = policy_version

    @override
    def take_weights(self, policy_version: int) -> None:
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
        """Sample the completions of each request.

        Raises:
            ConfigError: what `generate` returns is not its prompts with tokens behind them.
            DataError: a prompt without tokens; limits that do not fit keys or sampling.
            TrainingError: the model's logits are not finite.
        """
        check_requests(requests, sampling)
        prompts = [request.prompt_ids for request in requests for _ in request.keys]
        if not prompts:
            return [() for _ in requests]
        limits = [limit for request in requests for limit in limits_of(request, sampling)]
        stopping = Stopping(self._tokenizer, self._end_tokens, sampling.stop, self._vocab_size)
        with evaluating(self._policy.model), torch.no_grad():
            rows = self._asked(prompts, sampling, max(limits)).tolist()
            sampled = []
            for prompt, row, limit in zip(prompts, rows, limits, strict=True):
                tokens = _up_to_end(row[:limit], stopping)
                logprobs = self._logprobs(prompt, tokens, sampling.temperature)
                sampled.append((tokens, logprobs, [self.policy_version] * len(tokens)))
        completions = iter(completions_of(self._tokenizer, stopping, sampled, limits))
        return [tuple(next(completions) for _ in request.keys) for request in requests]

    @override
    def stream(self, stream: RequestStream, *, length: int) -> None:
        raise ConfigError("the model's generate must be its own where an endpoint samples, got a replacement")

    def _asked(self, prompts: Sequence[Sequence[int]], sampling: Sampling, limit: int) -> Int[Tensor, "B T"]:
        """Call `generate`; returns the tokens behind the prompts, those after an end token among them."""
        padding, width = self._tokenizer.pad_token_id, max(map(len, prompts))
        padding = min(self._end_tokens, default=0) if padding is None else padding
        ids = torch.full((len(prompts), width), padding)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.tensor(prompt), 1
        options: dict[str, Any] = {"temperature": sampling.temperature} if sampling.temperature > 0 else {}
        if sampling.stop:
            options["stop_strings"] = list(sampling.stop)
        described = GenerationConfig(
            max_new_tokens=limit,
            do_sample=sampling.temperature > 0,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p or None,
            pad_token_id=padding,
            eos_token_id=sorted(self._end_tokens) or None,
            **options,
        )
        owner, device = self._policy.adapter or self._policy.model, self._policy.model.device
        keywords = {"tokenizer": self._tokenizer} if sampling.stop else {}
        output = cast(Any, owner).generate(
            input_ids=ids.to(device), attention_mask=mask.to(device), generation_config=described, **keywords
        )
        if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(ids) or output.shape[1] <= width:
            got = str(tuple(output.shape)) if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise ConfigError(
                f"generate of the model must return a tensor of {len(ids)} rows, each of the {width} tokens that it "
                f"was given and at least one more, got {got}; correct it, or leave the model's own"
            )
        if output.is_floating_point() or not 0 <= int(output.min()) <= int(output.max()) < self._vocab_size:
            raise ConfigError(
                f"generate of the model must return token ids from 0 to {self._vocab_size - 1}, got {output.dtype} "
                f"from {output.min():g} to {output.max():g}; correct it, or leave the model's own"
            )
        return output[:, width:]

    def _logprobs(self, prompt: Sequence[int], tokens: Sequence[int], temperature: float) -> list[float]:
        """Log-probability of each token in nats, by the model's own forward pass."""
        ids = torch.tensor([*prompt, *tokens])
        logits = plain_logits(self._policy.model, ids, self._policy.compute_dtype)[len(prompt) - 1 : -1].float()
        logprobs = (logits / (temperature or 1.0)).log_softmax(-1)
        chosen = logprobs.gather(1, ids[len(prompt) :, None].to(logprobs.device)).squeeze(1).cpu()
        refuse_not_finite(chosen.numpy(), self.policy_version)
        return cast("list[float]", chosen.tolist())


def _up_to_end(tokens: list[int], stopping: Stopping) -> list[int]:
    """Cut a completion behind its first end token or stop string."""
    ends = stopping.ended(torch.tensor(tokens).numpy())
    for index, is_end in enumerate(ends):
        if is_end or (stopping.watches_text and stopping.completes_string(tokens[: index + 1])):
            return tokens[: index + 1]
    return tokens


@contextmanager
def sampling_by_program(job: TrainingJob) -> Iterator[None]:
    """Inside, completions come from the `generate` of the model, if the program has replaced it on the object.

    vLLM and a `rollout_func` sample all the same, as in TRL. ConfigError for a replacement on several processes.
    """
    policy = job.trainer.policy
    is_replaced = any(NAME in vars(model) for model in (policy.model, policy.adapter) if model is not None)
    is_asked = is_replaced and job.inputs.objects.completer is None and not job.args.use_vllm
    if is_asked and job.launch is not None:
        raise ConfigError(
            "the model's generate must be its own on several processes, got a replacement; give rollout_func, or run "
            "one process"
        )
    backend = job.backend
    if not is_asked or not isinstance(backend, OneProcess) or isinstance(backend.engine, ReplacedGenerate):
        yield
        return
    tokenizer = job.inputs.tokenizer
    ends = end_token_ids(tokenizer, policy.model.generation_config, policy.model.config)
    LOGGER.warning(
        "completions come from the generate that the program has put on its model; the logprobs that training compares "
        "with are the model's own, whatever it draws from"
    )
    before = (backend.engine, backend.sampler)
    backend.engine = ReplacedGenerate(policy, tokenizer, ends, backend.policy_version)
    rounds = cast(Any, backend.sampler.rounds)  # an `EngineSampler` in one process
    backend.sampler = replace(backend.sampler, rounds=replace(rounds, engine=backend.engine))
    try:
        yield
    finally:
        backend.engine, backend.sampler = before
        backend.engine.take_weights(backend.policy_version)


class VllmWeights:
    """The methods of TRL's `vllm_generation` that programs call."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def sync_weights(self) -> None:
        """Give the engine the weights as they are now; the loop itself does so after each of its updates.

        On several processes engines read them at each call.
        """
        if isinstance(self._backend, OneProcess):
            self._backend.engine.take_weights(self._backend.policy_version)


class Generated(NamedTuple):
    """Result of TRL's `_generate`, with an entry per completion."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    """Tokens of all turns, those that the model only read among them."""
    tool_mask: list[list[int]] | None
    """1 for a token that the model sampled, 0 for one that it read; None: it sampled all of them."""
    completions: list[Any]
    """Text, or messages where the prompt has messages."""
    logprobs: list[list[float]]
    """In nats; 0.0 for a token that the model only read."""
    extra_fields: dict[str, Any]
    """Further values that `rollout_func` returned."""
    images: None = None
    tool_images: tuple[()] = ()


def of_rollout_func(output: Any, prompts: Sequence[Any], tokenizer: PreTrainedTokenizerBase) -> Generated:
    """Completions that a program's own `rollout_func` has returned; ConfigError: it is not as `rollouts` describes."""
    lists = checked_lists(output, len(prompts))
    texts = tokenizer.batch_decode(lists["completion_ids"], skip_special_tokens=True)
    return Generated(
        prompt_ids=lists["prompt_ids"],
        completion_ids=lists["completion_ids"],
        tool_mask=lists.get("env_mask"),
        completions=[
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for prompt, text in zip(prompts, texts, strict=True)
        ],
        logprobs=lists["logprobs"],
        extra_fields=extra_fields(output),
    )


def generated(
    job: TrainingJob,
    environments: GivenEnvironments,
    prompts: Sequence[Any],
    *,
    calls: Iterator[int],
    hosts: AbstractContextManager[object],
) -> Generated:
    """Sample one completion of each prompt with the weights as they are, in conversations where there are tools.

    Nothing is scored, trained on or recorded. A prompt that comes twice is sampled twice, and a second call samples
    anew: `calls` numbers them. `hosts` is open while environments answer.

    Raises:
        DataError: a prompt cannot be used.
        TrainingError: an environment failed.
    """
    config, conversations = job.config, job.inputs.conversations
    rows = [{"prompt": prompt} for prompt in prompts]
    data = replace(config.data, on_bad_row="stop")
    tasks = datasets.make_tasks(
        rows, job.inputs.tokenizer, data, name="prompts", environments=environments, images=job.inputs.objects.images
    )
    call = next(calls)
    draws = Draws(seed=config.loop.seed, purpose=NAME, num_generations=1)
    with hosts, sampling_by_program(job):
        drawn = [(task, call) for task in tasks.looked_at]
        completed = complete(job.backend.engine, drawn, sampling_of(config.sampling), draws, conversations)
    samples = [(group.tasks[0], group.trajectories[0]) for group in completed]
    for _, trajectory in samples:
        if trajectory.failure is not None:
            raise TrainingError(trajectory.failure)
    masks = [[*loss_mask([span for span in trajectory.spans if span.by != "prompt"])] for _, trajectory in samples]
    return Generated(
        prompt_ids=[list(task.prompt_ids) for task, _ in samples],
        completion_ids=[list(trajectory.completion_ids) for _, trajectory in samples],
        tool_mask=masks if environments else None,
        completions=[
            trajectory.text if isinstance(prompt, str) else up_to_last(trajectory.messages, trajectory.text)
            for prompt, (_, trajectory) in zip(prompts, samples, strict=True)
        ],
        logprobs=[_spread(trajectory.logprobs, mask) for (_, trajectory), mask in zip(samples, masks, strict=True)],
        extra_fields={},
    )


def _spread(logprobs: Sequence[float], mask: Sequence[int]) -> list[float]:
    """Put the logprobs of the sampled tokens in their places."""
    values = iter(logprobs)
    return [next(values) if sampled else 0.0 for sampled in mask]
