"""What a model does with its last hidden states: the scale and the cap of its logits, measured on the model itself.

One name divides logits in one family of transformers and multiplies them in another, so no name is trusted.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from paceline.errors import ModelError, first_line
from paceline.kernels.logprobs import HeadRule
from paceline.models.plain_forward import MISFITS, evaluating
from paceline.models.vision.families import family_of

RAMP = (1.0, 1e6, 0.0, 1e-3, 1e3, -1e-3, -1.0, -1e3, -1e6)
"""Outputs that the output embedding is made to give, token by token. Nobody caps at 0, at 1e6 each cap shows."""
EXACT, RIGHT = 1e-6, 1e-4
"""Relative differences of a measured number from the configuration's, and of logits from their rule's."""


def decoder_of(model: PreTrainedModel) -> Any:
    """Return the module that gives the last hidden states of text; Llama 4's `base_model` is the model with its head.

    Of a model of the families that read images it is the language model within.
    """
    body: Any = model.base_model if model.base_model is not model else model.model
    if family_of(model.config.model_type) is None:
        return body
    return getattr(body, "language_model", getattr(body, "text_model", body))


@torch.no_grad()
def measured_head(model: PreTrainedModel) -> HeadRule:
    """Measure how a model makes logits of its last hidden states.

    Its output embedding must read a multiple of them; what it gives is replaced by a ramp, so that the logits show the
    scale and the cap whatever the weights are.

    ModelError: the model has no output embedding, or its logits follow no `HeadRule` with a scale above 0.
    """
    name, head = type(model).__name__, model.get_output_embeddings()
    if head is None:
        raise ModelError(f"{name} has no output embedding; use a causal language model")
    entered, ramp = list[Tensor](), torch.empty(0)

    def replaced(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        nonlocal ramp
        entered.append(arguments[0])
        cycled = [RAMP[token % len(RAMP)] for token in range(output.shape[-1])]
        ramp = torch.tensor(cycled, dtype=torch.float64, device=output.device)
        return ramp.expand(output.shape).clone()  # a model may change it in place

    ids = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    hook = head.register_forward_hook(replaced)
    try:
        with evaluating(model):
            states = decoder_of(model)(input_ids=ids, use_cache=False).last_hidden_state.double()
            logits = model(input_ids=ids, use_cache=False).logits.double()
    except torch.OutOfMemoryError:
        raise
    except MISFITS as error:
        raise ModelError(
            f"{name} does not show how it makes logits ({type(error).__name__}: {first_line(error)}); use a model of "
            "another family"
        ) from error
    finally:
        hook.remove()
    other = (
        f"{name} gives other logits than a scale and a cap make of its output embedding and its last hidden states, so "
        "that log-probabilities from hidden states would be wrong; use a model of another family"
    )
    if len(entered) != 1 or entered[0].shape != states.shape or logits.shape[-1] != len(ramp):
        raise ModelError(other)
    inputs = entered[0].double()
    before = float((inputs * states).sum() / states.square().sum())
    near, far = float(logits[0, 0, 0]), float(logits[0, 0, 1])  # where the ramp is 1 and 1e6
    cap, after = None, near
    if abs(far) < 0.5e6 * abs(near):
        cap = _as_configured(far, model.config)
        after = cap * math.atanh(near / cap) if abs(near) < abs(cap) else math.inf
    follows = after * ramp if cap is None else cap * torch.tanh(after * ramp / cap)
    is_multiple = bool((inputs - before * states).abs().max() <= RIGHT * states.abs().max())
    # each logit by its own size
    if not (is_multiple and torch.allclose(logits, follows.expand_as(logits), rtol=RIGHT, atol=1e-12 * abs(after))):
        raise ModelError(other)
    scale = _as_configured(before * after, model.config)
    if scale <= 0:
        raise ModelError(
            f"{name} multiplies its logits by {scale:g}, and a scale of logits must be above 0, as it is a temperature "
            "in training; use a model of another family"
        )
    return HeadRule(scale=scale, cap=cap)


def _as_configured(measured: float, config: PretrainedConfig) -> float:
    """Return the number of the configuration, its inverse or its share of the width that was measured, if it is there.

    What was measured has the rounding of its weights, which a resumed run would have otherwise.
    """
    text = config.get_text_config()
    values = [value for value in text.to_dict().values() if type(value) in (int, float)]
    numbers = [float(value) for value in values if value != 0 and math.isfinite(value)]
    candidates = [
        1.0,
        *numbers,
        *(1 / number for number in numbers),
        *(number / text.hidden_size for number in numbers),
    ]
    nearest = min(candidates, key=lambda candidate: abs(candidate - measured))
    return nearest if math.isclose(nearest, measured, rel_tol=EXACT) else measured
