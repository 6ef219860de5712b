"""Choose a model's decoder: the fastest whose logits equal the model's own on a short made-up batch."""

from collections.abc import Callable
from typing import Literal, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.engines.local.attention import heads_of
from paceline.engines.local.decoder import Decoder
from paceline.engines.local.fused import FusedDecoder
from paceline.engines.local.graphs import GraphedDecoder, free_cuda_bytes, record_cuda_graph
from paceline.engines.local.operations import kernels_reason
from paceline.engines.local.plain import PlainDecoder, RecomputingDecoder
from paceline.engines.local.weights import unsupported_reason
from paceline.errors import ModelError, first_line
from paceline.kernels.cpu.decoding import decoding_kernels
from paceline.kernels.cuda.decoding import decoding_kernels as cuda_kernels
from paceline.kernels.flash_attention import FlashKernel, flash_problem
from paceline.models.plain_forward import MISFITS, evaluating, plain_logits

Path = Literal["fused", "plain", "recomputing"]

PROBE_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 1e-1}
"""Largest difference of logits taken for rounding, as a share of the largest logit (or of 1, where it is smaller)."""
_PROMPTS, _STEPS = (11, 3), 5
"""Tokens of the probe's prompts, and after them: some more than a convolution of a state space model looks back, some
fewer."""


def choose_decoder(model: PreTrainedModel, dtype: torch.dtype) -> tuple[Decoder, Path, str]:
    """Try the decoders from the fastest on; returns the one taken, and why not a faster one.

    The fused one is tried as it will compute, in `dtype`. The others run the model itself: they are tried in the
    weights' own precision, as rounding may send a token to another expert.

    Raises:
        ModelError: none of them gives the model's own logits.
    """
    problem = unsupported_reason(model) or _problem("fused", model, lambda: fused_decoder(model, dtype), dtype)
    if problem is None:
        kernels = kernels_reason(model.device, dtype, decoding_kernels())
        return fused_decoder(model, dtype), "fused", f"its logits agree with the model's own forward pass; {kernels}"
    cached = _problem("plain", model, lambda: PlainDecoder(model, model.dtype), model.dtype)
    if cached is None:
        return PlainDecoder(model, dtype), "plain", problem
    recomputed = _problem("recomputing", model, lambda: RecomputingDecoder(model, model.dtype), model.dtype)
    if recomputed is None:
        return RecomputingDecoder(model, dtype), "recomputing", cached
    raise ModelError(
        f"{type(model).__name__} cannot be sampled from token by token ({recomputed}); "
        "use a causal language model of another family"
    )


def fused_decoder(model: PreTrainedModel, dtype: torch.dtype) -> Decoder:
    """On CUDA, where the kernel serves, with steps that are recorded once and replayed."""
    heads, device = heads_of(model), model.device
    if flash_problem(device, dtype, (heads.query, heads.kv), heads.width) is not None:
        return FusedDecoder(model, dtype, decoding_kernels())
    return GraphedDecoder(
        lambda make_attention: FusedDecoder(model, dtype, None, make_attention),
        attention=FlashKernel(),
        record=record_cuda_graph,
        free_bytes=lambda: free_cuda_bytes(device),
        between=cuda_kernels(device, dtype),
    )


def _problem(path: Path, model: PreTrainedModel, make: Callable[[], Decoder], dtype: torch.dtype) -> str | None:
    """How the logits of a path's decoder differ from the model's own; None: by rounding only."""
    vocab_size = cast(Tensor, model.get_input_embeddings().weight).shape[0]
    made_up = (torch.arange(1, 100) * 7919 % vocab_size).tolist()
    first, second = made_up[: _PROMPTS[0]], made_up[_PROMPTS[0] : sum(_PROMPTS)]
    fed = torch.tensor(made_up[-3 * _STEPS :]).view(_STEPS, 3)
    try:
        # logits after both prompts, then after each token of the first one's two rows and of the second's one
        decoder = make()
        with torch.inference_mode(decoder.refills), evaluating(model):
            decoder.begin(3, max(_PROMPTS) + _STEPS)
            logits = [decoder.admit((first, second), ((0, 1), (2,)))]
            logits += [decoder.step(tokens) for tokens in fed.to(model.device)]
            decoder.end()
        got = torch.cat(logits).double()
        rows = [(prompt, [*prompt, *fed[:, row].tolist()]) for row, prompt in enumerate((first, first, second))]
        own = [plain_logits(model, torch.tensor(row), dtype)[len(prompt) - 1 :].double() for prompt, row in rows]
    except torch.OutOfMemoryError:
        raise
    except MISFITS as error:
        return f"the {path} decoder fails with {type(error).__name__}: {first_line(error)}"
    wanted = torch.cat([own[0][:1], own[2][:1], torch.stack(own, dim=1)[1:].flatten(0, 1)])
    difference = float((got - wanted).abs().max())
    allowed = PROBE_TOLERANCE[dtype] * max(1.0, float(wanted.abs().max()))
    if difference <= allowed:
        return None
    return f"the {path} decoder's logits differ by {difference:.2g} from the model's own, more than {allowed:.2g}"
