"""Hidden states that predict a micro-batch's targets: packed where the model allows it, padded rows elsewhere."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from paceline.batching import MicroBatch, Sample, pack, padded_rows
from paceline.errors import ModelError
from paceline.models.activations import in_main_memory
from paceline.models.attention import NAME, NO_MASK, PackedLayout
from paceline.models.fused_layers import fuse_layers, is_fused, restore_layers
from paceline.models.records import on_device
from paceline.models.rows import take_rows
from paceline.parallel import AllTokens, Tokens
from paceline.windows import slides

PROBE_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 1e-1}
"""Largest relative difference between two right forward passes: rounding, below any mistake."""
_HEAD_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyForward:
    """How this model's hidden states are computed, and why."""

    kind: Literal["packed", "padded"]
    reason: str
    """Empty for `packed`; for `padded`, what keeps the model from the packed path."""
    offload: bool = False
    """What is kept for the backward pass waits in main memory."""

    def __call__(self, model: PreTrainedModel, batch: MicroBatch) -> Float[Tensor, "N H"]:
        """Hidden state, after the final norm, that predicts each target. `batch` lies on the model's device."""
        return self.of(model, AllTokens(batch=batch))

    def of(self, model: PreTrainedModel, tokens: Tokens) -> Float[Tensor, "N H"]:
        """The same for the tokens that this rank computes.

        Raises:
            ModelError: this model takes padded rows only, whose tokens ranks cannot share.
        """
        with self._keeping(model):
            if self.kind == "packed":
                return take_rows(_packed_states(model.base_model, tokens, None), tokens.batch.sources)
            if tokens.exchange is not None:
                raise ModelError(
                    f"ranks share the tokens of packed micro-batches, and this model computes padded rows "
                    f"({self.reason}); train it with --context-parallel 1"
                )
            return _padded_hidden(model, tokens.batch)

    def through(
        self, model: PreTrainedModel, stage: PreTrainedModel, tokens: Tokens, states: Float[Tensor, "M H"] | None
    ) -> Float[Tensor, "M H"]:
        """The residual stream after a pipeline's stage of `model`, or after the final norm where the stage has it.

        `states`: the stream before it; None: the stage begins with the tokens.

        Raises:
            ModelError: this model takes padded rows only.
        """
        if self.kind == "padded":
            raise ModelError(
                f"a pipeline's stages hand on packed tokens, and this model computes padded rows ({self.reason}); "
                "train it without a pipeline"
            )
        with self._keeping(model):
            return _packed_states(stage, tokens, states)

    def _keeping(self, model: PreTrainedModel) -> contextlib.AbstractContextManager[object]:
        return in_main_memory(model) if self.offload else contextlib.nullcontext()


def choose_forward(model: PreTrainedModel, compute_dtype: torch.dtype | None = None) -> PolicyForward:
    """Try the packed path on a few random tokens and keep it where it agrees with the model's own forward.

    First with the model's layers on kernels, where they can be, then with the layers as they are; in the weights' own
    precision, and in `compute_dtype` too where that is another one.

    Raises:
        ModelError: the model's logits are not its output embedding applied to its last hidden state, so that
            log-probabilities computed from hidden states would be wrong.
    """
    _refuse_soft_cap(model)
    restore_layers(model)  # of a model that was tried before
    config = model.config.get_text_config()
    probe = _probe_batch(config.vocab_size, model.device, model.dtype)
    before = model.config._attn_implementation
    with torch.no_grad():
        precisions = dict.fromkeys((model.dtype, compute_dtype or model.dtype))
        wanted = {dtype: _in_precision(dtype, _padded_hidden, model, probe) for dtype in precisions}
        _check_head(model, probe, wanted[model.dtype])
        if not type(model)._supports_attention_backend:
            return PolicyForward(kind="padded", reason=f"{type(model).__name__} fixes its own attention")
        if slides(config):  # the probe is shorter than any window
            return PolicyForward(kind="padded", reason="some layers attend to a sliding window")
        model.set_attn_implementation(NAME)
        if fuse_layers(model):
            if _disagreement(model, probe, wanted) is None:
                return PolicyForward(kind="packed", reason="")
            restore_layers(model)
        reason = _disagreement(model, probe, wanted)
        if reason is None:
            return PolicyForward(kind="packed", reason="")
        model.set_attn_implementation(before)
    return PolicyForward(kind="padded", reason=reason)


def compute_alike(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    """Set a model up as `choose_forward` has set up another one of its classes and widths."""
    if twin.config._attn_implementation == NAME:
        model.set_attn_implementation(NAME)
    if is_fused(twin):
        fuse_layers(model)


def _disagreement(model: PreTrainedModel, probe: MicroBatch, wanted: Mapping[torch.dtype, Tensor]) -> str | None:
    """How the packed pass differs from the model's own hidden states in each precision; None: by rounding only."""
    for dtype, own in wanted.items():
        difference = _relative_difference(_in_precision(dtype, _packed_hidden, model, probe), own)
        if not difference <= PROBE_TOLERANCE[dtype]:  # nor is one that is no number
            return f"packed hidden states differ by {difference:.0e} from the model's own in {dtype}"
    return None


def _in_precision(
    dtype: torch.dtype,
    hidden: Callable[[PreTrainedModel, MicroBatch], Tensor],
    model: PreTrainedModel,
    batch: MicroBatch,
) -> Tensor:
    with torch.autocast(model.device.type, dtype=dtype, enabled=dtype != model.dtype):
        return hidden(model, batch)


def _packed_hidden(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    return take_rows(_packed_states(model.base_model, AllTokens(batch=batch), None), batch.sources)


def _packed_states(base: PreTrainedModel, tokens: Tokens, states: Tensor | None) -> Tensor:
    batch, device = tokens.batch, tokens.batch.input_ids.device
    entering = {"input_ids": batch.input_ids[None]} if states is None else {"inputs_embeds": states[None]}
    output = base(
        **entering,
        position_ids=batch.position_ids[None],
        attention_mask=NO_MASK.to(device),
        packed_attention=PackedLayout(batch=batch, exchange=tokens.exchange),
        use_cache=False,
    )
    states = output.last_hidden_state[0]
    return states


def _padded_hidden(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    rows = on_device(padded_rows(batch), batch.input_ids.device)
    output = model.base_model(
        input_ids=batch.input_ids[rows.index],
        position_ids=batch.position_ids[rows.index],
        attention_mask=rows.real.long(),
        use_cache=False,
    )
    return take_rows(output.last_hidden_state.flatten(0, 1), rows.sources)


def _probe_batch(vocab_size: int, device: torch.device, dtype: torch.dtype) -> MicroBatch:
    """Two prompts and three completions of different lengths."""
    tokens = torch.randint(vocab_size, (64,), generator=torch.Generator().manual_seed(0), device="cpu").tolist()
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
    if head is None or _relative_difference(head(hidden), logits) > _HEAD_TOLERANCE:
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
