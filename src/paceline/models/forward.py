"""Hidden states that predict a micro-batch's targets: packed where the model allows it, padded rows elsewhere."""

from dataclasses import dataclass, fields, replace
from typing import Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from paceline.batching import MicroBatch, PaddedAttention, PaddedRows, Sample, pack, padded_attention, padded_rows
from paceline.errors import ModelError
from paceline.models.attention import NAME, NO_MASK

PROBE_TOLERANCE = 1e-3
"""Largest relative difference between two right forward passes in float32: rounding, far below any mistake."""

Record = TypeVar("Record", MicroBatch, PaddedAttention, PaddedRows)


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyForward:
    """How this model's hidden states are computed, and why."""

    kind: Literal["packed", "padded"]
    reason: str
    """Empty for `packed`; for `padded`, what keeps the model from the packed path."""

    def __call__(self, model: PreTrainedModel, batch: MicroBatch) -> Float[Tensor, "N H"]:
        """Hidden state, after the final norm, that predicts each target. `batch` lies on the model's device."""
        return _packed_hidden(model, batch) if self.kind == "packed" else _padded_hidden(model, batch)


def choose_forward(model: PreTrainedModel) -> PolicyForward:
    """Try the packed path on a few random tokens and keep it where it agrees with the model's own forward.

    Raises:
        ModelError: the model's logits are not its output embedding applied to its last hidden state, so that
            log-probabilities computed from hidden states would be wrong.
    """
    _refuse_soft_cap(model)
    probe = _probe_batch(model.config.get_text_config().vocab_size, model.device, model.dtype)
    before = model.config._attn_implementation
    with torch.no_grad():
        padded = _padded_hidden(model, probe)
        _check_head(model, probe, padded)
        if not type(model)._supports_attention_backend:
            return PolicyForward(kind="padded", reason=f"{type(model).__name__} fixes its own attention")
        model.set_attn_implementation(NAME)
        difference = _relative_difference(_packed_hidden(model, probe), padded)
        if difference <= PROBE_TOLERANCE:
            return PolicyForward(kind="packed", reason="")
        model.set_attn_implementation(before)
    return PolicyForward(kind="padded", reason=f"packed hidden states differ by {difference:.0e} from the model's own")


def on_device(record: Record, device: torch.device) -> Record:
    """The record with its tensors on `device`."""
    if device.type == "cpu":
        return record
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return replace(record, **{name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()})


def _packed_hidden(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    device = batch.input_ids.device
    output = model.base_model(
        input_ids=batch.input_ids[None],
        position_ids=batch.position_ids[None],
        attention_mask=NO_MASK.to(device),
        packed_attention=on_device(padded_attention(batch), device),
        use_cache=False,
    )
    return output.last_hidden_state[0][batch.sources]


def _padded_hidden(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    rows = on_device(padded_rows(batch), batch.input_ids.device)
    output = model.base_model(
        input_ids=batch.input_ids[rows.index],
        position_ids=batch.position_ids[rows.index],
        attention_mask=rows.real.long(),
        use_cache=False,
    )
    return output.last_hidden_state.flatten(0, 1)[rows.sources]


def _probe_batch(vocab_size: int, device: torch.device, dtype: torch.dtype) -> MicroBatch:
    """Two prompts and three completions of different lengths."""
    tokens = torch.randint(vocab_size, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    pieces = [(0, tokens[:7], tokens[7:12]), (0, tokens[:7], tokens[12:24]), (1, tokens[24:28], tokens[28:37])]
    samples = [
        Sample(
            group=group,
            prompt_ids=tuple(prompt),
            completion_ids=tuple(completion),
            rollout_logprobs=(0.0,) * len(completion),
            advantage=0.0,
        )
        for group, prompt, completion in pieces
    ]
    return on_device(pack(samples, [0.0] * len(samples), range(len(samples)), dtype=dtype), device)


def _check_head(model: PreTrainedModel, probe: MicroBatch, hidden: Tensor) -> None:
    rows = on_device(padded_rows(probe), model.device)
    logits = model(
        input_ids=probe.input_ids[rows.index],
        position_ids=probe.position_ids[rows.index],
        attention_mask=rows.real.long(),
        use_cache=False,
    ).logits.flatten(0, 1)[rows.sources]
    head = model.get_output_embeddings()
    if head is None or _relative_difference(head(hidden), logits) > PROBE_TOLERANCE:
        raise _changed_logits(model, "a scale, a bias of its own or a soft cap")


def _refuse_soft_cap(model: PreTrainedModel) -> None:
    """By its configuration: a cap far above the logits of a few random tokens changes none of them."""
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    if cap is not None:
        raise _changed_logits(model, f"final_logit_softcapping {cap}")


def _changed_logits(model: PreTrainedModel, how: str) -> ModelError:
    return ModelError(
        f"{type(model).__name__} changes its logits after the output embedding ({how}), which log-probabilities from "
        "hidden states would miss; use a model of another family"
    )


def _relative_difference(got: Tensor, wanted: Tensor) -> float:
    scale = wanted.float().abs().max().clamp_min(1e-6)
    return float((got.float() - wanted.float()).abs().max() / scale)
