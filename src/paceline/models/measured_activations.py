"""Bytes that a forward pass keeps for the backward pass, measured."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.models.activation_checkpointing import Activations
from paceline.models.activations import layers_of, weight_addresses
from paceline.models.forward import PolicyForward
from paceline.models.rows import on_device
from paceline.objective.micro_batches import MicroBatch, one_turn, pack


def measure_activations(model: PreTrainedModel, forward: PolicyForward, compute_dtype: torch.dtype) -> Activations:
    """Measure what a forward pass keeps by two short ones, whose difference leaves out what is kept once.

    These are the weights' copies in `compute_dtype`. Attention over longer sequences keeps no more per token, but for
    the keys and values of a prompt, which every one of its completions copies.
    """
    nbytes, tokens = list[int](), list[int]()
    for prompts in (2, 1):  # of 8 tokens each, with four completions of 8 inputs to each
        samples = [
            one_turn(group=n // 4, prompt_ids=(0,) * 8, completion_ids=(0,) * 9, advantage=0.0)
            for n in range(4 * prompts)
        ]
        batch = pack(samples, [0.0] * len(samples), range(len(samples)), dtype=model.dtype)
        nbytes.append(_saved_bytes(model, forward, on_device(batch, model.device), compute_dtype))
        tokens.append(batch.num_forwarded(forward.kind))
    return Activations(
        all_layers=(nbytes[0] - nbytes[1]) / (tokens[0] - tokens[1]),
        layer_input=model.config.get_text_config().hidden_size * model.dtype.itemsize,
        layers=len(layers_of(model)),
    )


def _saved_bytes(model: PreTrainedModel, forward: PolicyForward, batch: MicroBatch, compute_dtype: torch.dtype) -> int:
    """Storage behind everything that autograd keeps, each piece once, the weights not counted."""
    weights, saved = weight_addresses(model), dict[int, int]()

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        # the tensor itself would hold the node that holds it: a ring through C++ that is never freed
        return tensor.detach()

    half = compute_dtype != model.dtype
    with (
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        torch.autocast(model.device.type, dtype=compute_dtype, enabled=half),
    ):
        _alive = forward(model, batch)  # with it all that was noted, so that no address is used twice
    return sum(saved.values())
