"""The same few tokens through vLLM and through the trainer's model: does the engine compute with these weights?

A fingerprint says what arrived; only what comes out says what is computed with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from paceline.errors import TrainingError
from paceline.models.plain_forward import plain_logits

PROMPT_LENGTH = 24
GREEDY_TOKENS = 4
"""Sampled after the prompt, so that single steps are compared too: they take other kernels than prompts do."""
PROBE_LENGTH = PROMPT_LENGTH + GREEDY_TOKENS


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowed:
    """Differences of logprobs, in nats, that are taken for rounding where no logprob is below `-USUAL`."""

    largest: float
    mean: float


USUAL = 10.0
"""Nats: a token of about average probability among 20000. Rounding grows with the numbers that are rounded."""
ALLOWED = {
    # measured: 1.2e-5 at most, on 8 layers of random weights with a standard deviation of 0.05
    torch.float32: Allowed(largest=1e-4, mean=1e-4),
    # measured: 0.06 at most, 0.024 in the mean
    torch.bfloat16: Allowed(largest=0.5, mean=0.1),
}


def probe_prompt(vocab_size: int) -> list[int]:
    """Made-up tokens, the same for every call."""
    return [(index * 7919 + 1) % vocab_size for index in range(PROMPT_LENGTH)]


def trainer_logprobs(model: PreTrainedModel, token_ids: Sequence[int], dtype: torch.dtype) -> list[float]:
    """Compute the logprob of each later token by the model's own forward pass in `dtype`, at temperature 1."""
    ids = torch.tensor(list(token_ids), device=model.device)
    logprobs = plain_logits(model, ids, dtype)[:-1].float().log_softmax(-1)
    values: list[float] = logprobs.gather(1, ids[1:, None])[:, 0].tolist()
    return values


def check_probe(engine: Sequence[float], trainer: Sequence[float], dtype: torch.dtype, *, policy_version: int) -> None:
    """Hold one to the other.

    Raises:
        TrainingError: they differ by more than rounding, so the engine would sample from other weights.
    """
    differences = [abs(one - other) for one, other in zip(engine, trainer, strict=True)]
    largest, mean = max(differences), sum(differences) / len(differences)
    times = max(1.0, *(abs(one) / USUAL for one in trainer))
    allowed = Allowed(largest=ALLOWED[dtype].largest * times, mean=ALLOWED[dtype].mean * times)
    if not (largest <= allowed.largest and mean <= allowed.mean):  # nor is one that is no number
        raise TrainingError(
            f"vLLM's logprobs of a probe differ from the trainer's by up to {largest:.2g} nats ({mean:.2g} in the "
            f"mean) at policy version {policy_version}, rounding is below {allowed.largest:.2g} ({allowed.mean:.2g}): "
            "it does not compute with the weights that it was given; use --engine local for this model"
        )
