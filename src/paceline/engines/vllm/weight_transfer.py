"""A model's weights as vLLM loads them: by the names of its files, with heads as wide as its CPU build knows."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.engines.local.weights import is_adapted, linear_problem, read_linear
from paceline.errors import ModelError


def named_weights(model: PreTrainedModel, *, only_trained: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Every parameter once, in the order of the modules: the model's own memory, or the sum with its LoRA adapter.

    What is tied is given under the first of its names. A sum is made when it is asked for: no second model exists.
    `only_trained` leaves out what training does not change, but for the neighbours of what it does: of query, key and
    value vLLM makes one layer, which it takes as a whole.

    Raises:
        ModelError: an adapter that is more than the product of two matrices.
    """
    return _of_module(model, "", set(), is_wanted=not only_trained)


def _of_module(module: nn.Module, prefix: str, given: set[int], *, is_wanted: bool) -> Iterator[tuple[str, Tensor]]:
    """`given` has the identities of parameters that were, which live as long as the model does."""
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
        if id(parameter) not in given and (is_wanted or parameter.requires_grad):
            given.add(id(parameter))
            yield prefix + name, parameter.detach()
    are_wanted = is_wanted or any(
        one.requires_grad for child in module.children() for one in child.parameters(recurse=is_adapted(child))
    )
    for name, child in module.named_children():
        if are_wanted or not is_adapted(child):
            yield from _of_module(child, f"{prefix}{name}.", given, is_wanted=are_wanted)


MEMORY = Path("/dev/shm")
"""Where files are memory; any directory serves."""


def deliver(vllm: Any, weights: Iterable[tuple[str, Tensor]], *, policy_version: int, workers: int) -> None:
    """Have every worker take all of these, which have seen so many updates, in one call."""
    if workers == 1:
        vllm.collective_rpc("take_weights", args=({"tensors": weights}, policy_version))
        return
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None, prefix="paceline-weights-") as directory:
        path = Path(directory) / "weights.safetensors"
        tensors = {name: tensor.contiguous() for name, tensor in weights}
        save_file(tensors, path)
        vllm.collective_rpc("take_weights", args=({"path": str(path), "names": list(tensors)}, policy_version))


NARROWEST = 32
"""Width of a head, at least, of vLLM's attention on a CPU."""
WIDENED = ("llama",)
"""Architectures whose heads vLLM takes as wide as the configuration says, without a norm over each head."""


def head_width(config: Any) -> int:
    """Return the width of an attention head from the configuration of a model's text part."""
    width: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return width


def widening(config: Any, device: str) -> int:
    """How many times as wide the heads have to be; 1: as they are."""
    width = head_width(config)
    is_narrow = device == "cpu" and width < NARROWEST and NARROWEST % width == 0
    return NARROWEST // width if is_narrow and config.model_type in WIDENED else 1


def widened(weights: Iterable[tuple[str, Tensor]], width: int, times: int) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model with heads of `width`, by name, as those of one with heads of `times` * `width`.

    vLLM's CPU build knows no narrower ones; they are filled up with zeros, the same function. Rotary positions turn the
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
    """Each head's rows at their places among zeros."""
    heads = value.unflatten(0, (-1, width))
    wide = heads.new_zeros(heads.shape[0], times * width, *heads.shape[2:])
    wide[:, places] = heads
    filled_up: Tensor = wide.flatten(0, 1)
    return filled_up
