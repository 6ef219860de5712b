"""A model's weights under the names that its files have, which are the names that vLLM loads."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.engines.local.adapters import is_adapted, linear_problem, read_linear
from paceline.errors import ModelError


def named_weights(model: PreTrainedModel, *, only_trained: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Every parameter once, in the order of the modules: the model's own memory, or the sum with its LoRA adapter.

    What is tied is given under the first of its names. A sum is made when it is asked for: no second model exists.

    Args:
        model: the policy.
        only_trained: leave out what training does not change, but for the neighbours of what it does: of query, key and
            value vLLM makes one layer, which it takes as a whole.

    Raises:
        ModelError: an adapter that is more than the product of two matrices.
    """
    return _of_module(model, "", set(), is_wanted=not only_trained)


def _of_module(module: nn.Module, prefix: str, given: set[int], *, is_wanted: bool) -> Iterator[tuple[str, Tensor]]:
    """`given` has the identities of parameters that were, which live as long as the model does."""
    if is_adapted(module):
        yield from _of_adapted(module, prefix)
        return
    for name, parameter in module.named_parameters(recurse=False):
        if id(parameter) not in given and (is_wanted or parameter.requires_grad):
            given.add(id(parameter))
            yield prefix + name, parameter.detach()
    are_wanted = is_wanted or any(_is_trained(child) for child in module.children())
    for name, child in module.named_children():
        if are_wanted or not is_adapted(child):
            yield from _of_module(child, f"{prefix}{name}.", given, is_wanted=are_wanted)


def _is_trained(layer: nn.Module) -> bool:
    return any(one.requires_grad for one in layer.parameters(recurse=is_adapted(layer)))


def _of_adapted(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
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
