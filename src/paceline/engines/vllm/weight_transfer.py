"""A model's weights as vLLM loads them: by the names of its files, with heads as wide as its CPU build knows.

After each transfer a probe compares logprobs of a few tokens through vLLM with the trainer's: a fingerprint says what
arrived, and only what comes out says what is computed with.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.engines.local.weights import is_adapted, linear_problem, read_linear
from paceline.errors import ModelError, TrainingError
from paceline.models.families import layer_plans
from paceline.models.plain_forward import plain_logits


def named_weights(model: PreTrainedModel, *, only_trained: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter once, in the order of the modules: the model's memory, or the sum with its LoRA adapter.

    Tied parameters come under their first name. Sums are made lazily, so no second model exists. `only_trained` leaves
    out what training does not change, except neighbours of trained parameters: vLLM joins query, key and value, and
    loads them as a whole.

    Raises:
        ModelError: an adapter that is more than the product of two matrices.
    """
    return _of_module(model, "", set(), is_wanted=not only_trained)


def _of_module(module: nn.Module, prefix: str, seen: set[int], *, is_wanted: bool) -> Iterator[tuple[str, Tensor]]:
    """`seen` holds the ids of parameters already yielded, which live as long as the model does."""
    if is_adapted(module):
        problem = linear_problem(module)
        if problem is not None:
            raise ModelError(
                f"--engine vllm takes an adapter as the sum of two matrices, and {prefix.rstrip('.')} {problem}; "
                "use --engine local, or a plain LoRA adapter"
            )
        weight, bias = read_linear(module)
        yield f"{prefix}weight", weight
        if bias is not None:
            yield f"{prefix}bias", bias
        return
    for name, parameter in module.named_parameters(recurse=False):
        if id(parameter) not in seen and (is_wanted or parameter.requires_grad):
            seen.add(id(parameter))
            yield prefix + name, parameter.detach()
    are_wanted = is_wanted or any(
        parameter.requires_grad
        for child in module.children()
        for parameter in child.parameters(recurse=is_adapted(child))
    )
    for name, child in module.named_children():
        if are_wanted or not is_adapted(child):
            yield from _of_module(child, f"{prefix}{name}.", seen, is_wanted=are_wanted)


MEMORY = Path("/dev/shm")
"""Directory whose files are in memory; any other works too."""


def deliver(vllm: Any, weights: Iterable[tuple[str, Tensor]], *, policy_version: int, workers: int) -> None:
    """Send weights of this policy version to all workers, in one call."""
    if workers == 1:
        vllm.collective_rpc("take_weights", args=({"tensors": weights}, policy_version))
        return
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None, prefix="paceline-weights-") as directory:
        path = Path(directory) / "weights.safetensors"
        tensors = {name: tensor.contiguous() for name, tensor in weights}
        save_file(tensors, path)
        vllm.collective_rpc("take_weights", args=({"path": str(path), "names": list(tensors)}, policy_version))


NARROWEST = 32
"""Smallest head width of vLLM's attention on a CPU."""
WIDENED = ("llama",)
"""Model types whose head width vLLM reads from the configuration, without a norm over each head."""


def widening(config: Any, device: str) -> int:
    """Return the factor by which heads must be widened for vLLM; 1: they need not be."""
    width = layer_plans(config)[0].head_dim
    is_narrow = device == "cpu" and width < NARROWEST and NARROWEST % width == 0
    return NARROWEST // width if is_narrow and config.model_type in WIDENED else 1


def widened(weights: Iterable[tuple[str, Tensor]], width: int, times: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a model with heads of `width`, by name, as those of one with heads of `times` * `width`.

    vLLM's CPU build needs wider heads; zero padding computes the same function. Rotary positions turn the
    pair (i, i + width / 2) at the rate base ** (-2 i / width), so pair i becomes pair `times` * i. Scores are divided
    by the root of the width, so queries are multiplied by that of `times`.
    """
    turned = torch.cat([torch.arange(half, half + times * width // 2, times) for half in (0, times * width // 2)])
    for name, value in weights:
        kind, what = ("", "") if times == 1 else name.split(".")[-2:]
        if kind == "o_proj" and what == "weight":
            yield name, _filled_up(value.T, width, torch.arange(width), times).T.contiguous()
        elif kind in ("q_proj", "k_proj", "v_proj"):
            places = torch.arange(width) if kind == "v_proj" else turned
            yield name, _filled_up(value * times**0.5 if kind == "q_proj" else value, width, places, times)
        else:
            yield name, value


def _filled_up(value: Tensor, width: int, places: Tensor, times: int) -> Tensor:
    """Scatter each head's rows into zeros."""
    heads = value.unflatten(0, (-1, width))
    wide = heads.new_zeros(heads.shape[0], times * width, *heads.shape[2:])
    wide[:, places] = heads
    filled_up: Tensor = wide.flatten(0, 1)
    return filled_up


PROMPT_LENGTH = 24
GREEDY_TOKENS = 4
"""Tokens sampled after the prompt, as single steps run other kernels than prompts."""
PROBE_LENGTH = PROMPT_LENGTH + GREEDY_TOKENS


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowed:
    """Largest differences of logprobs, in nats, that count as rounding if no logprob is below `-USUAL`."""

    largest: float
    mean: float


USUAL = 10.0
"""Negative logprob in nats of a token of average probability among 20,000. Rounding grows with the numbers."""
ALLOWED = {
    # measured: 1.2e-5 at most, on 8 layers of random weights with a standard deviation of 0.05
    torch.float32: Allowed(largest=1e-4, mean=1e-4),
    # measured: 0.06 at most, 0.024 in the mean
    torch.bfloat16: Allowed(largest=0.5, mean=0.1),
}


def probe_prompt(vocab_size: int) -> list[int]:
    """Return made-up tokens, the same in every call."""
    return [(index * 7919 + 1) % vocab_size for index in range(PROMPT_LENGTH)]


def trainer_logprobs(model: PreTrainedModel, token_ids: Sequence[int], dtype: torch.dtype) -> list[float]:
    """Compute the logprob of each later token by the model's own forward pass in `dtype`, at temperature 1."""
    ids = torch.tensor(list(token_ids), device=model.device)
    logprobs = plain_logits(model, ids, dtype)[:-1].float().log_softmax(-1)
    values: list[float] = logprobs.gather(1, ids[1:, None])[:, 0].tolist()
    return values


def check_probe(engine: Sequence[float], trainer: Sequence[float], dtype: torch.dtype, *, policy_version: int) -> None:
    """Compare logprobs of the engine and the trainer.

    Raises:
        TrainingError: they differ by more than rounding, so the engine would sample from other weights.
    """
    differences = [abs(logprob - other) for logprob, other in zip(engine, trainer, strict=True)]
    largest, mean = max(differences), sum(differences) / len(differences)
    times = max(1.0, *(abs(logprob) / USUAL for logprob in trainer))
    allowed = Allowed(largest=ALLOWED[dtype].largest * times, mean=ALLOWED[dtype].mean * times)
    if not (largest <= allowed.largest and mean <= allowed.mean):  # nor is one that is no number
        raise TrainingError(
            f"vLLM's logprobs of a probe differ from the trainer's by up to {largest:.2g} nats ({mean:.2g} in the "
            f"mean) at policy version {policy_version}, rounding is below {allowed.largest:.2g} ({allowed.mean:.2g}): "
            "it does not compute with the weights that it was given; use --engine local for this model"
        )
