"""The choice of a decoder: the fastest whose logits equal the model's own on a short made-up batch."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.engines.local.attention import heads_of, plans_of, rotary_of
from paceline.engines.local.decoder import Decoder, PlainDecoder, RecomputingDecoder
from paceline.engines.local.eight_bits import rounded_layers, unaligned_reason
from paceline.engines.local.fused import FusedDecoder
from paceline.engines.local.graphs import GraphedDecoder, free_cuda_bytes, record_cuda_graph
from paceline.engines.local.operations import kernels_reason
from paceline.engines.local.rings import rings_problem
from paceline.engines.local.weights import unsupported_reason
from paceline.errors import ModelError, first_line
from paceline.kernels.cpu.decoding import decoding_kernels
from paceline.kernels.cuda.decoding import decoding_kernels as cuda_kernels
from paceline.kernels.flash_attention import FlashKernel, flash_problem
from paceline.kernels.float8 import FLOAT8, float8_problem
from paceline.kernels.logprobs import PLAIN, HeadRule
from paceline.models.head import decoder_of, measured_head
from paceline.models.plain_forward import MISFITS, computing_in, evaluating, plain_logits

if TYPE_CHECKING:
    from paceline.models.vision.tower import Vision

Path = Literal["fused", "float8", "plain", "recomputing"]

PROBE_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 1e-1, FLOAT8: 0.5}
"""Largest difference of logits taken for rounding, as a share of the largest logit (or of 1, where it is smaller).

In eight bits a different rounding in bfloat16 can give the next number: eight random layers differed by up to 0.37, and
mixed-up scales by at least 0.9.
"""
_PROMPTS, _STEPS = (11, 3), 5
"""Tokens of the probe's prompts, one longer than a state space model's convolution and one shorter, and after them."""
_LONGEST_WINDOW = 128
"""Tokens of the longest window that the first prompt passes; longer ones are tried on made-up numbers alone."""


def choose_decoder(
    model: PreTrainedModel,
    dtype: torch.dtype,
    *,
    float8: bool = False,
    records: bool = True,
    vision: "Vision | None" = None,
) -> tuple[Decoder, Path, str]:
    """Try the decoders from the fastest on; returns the one taken, and why not a faster one.

    The fused one is tried as it will compute, in `dtype`. The others run the model itself: they are tried in the
    weights' own precision, as rounding may send a token to another expert. `vision` reads the images of prompts.

    Raises:
        ModelError: none of them gives the model's own logits, or `float8` is asked for and cannot be had.
    """
    problem, head = unsupported_reason(model), PLAIN
    if problem is None:
        try:
            head = measured_head(model)
        except ModelError as error:
            problem = str(error)
        if any(plan.window for plan in plans_of(model)):
            problem = problem or rings_problem(heads_of(model), dtype)
    problem = problem or (None if vision is None else images_problem(model, vision))
    problem = problem or _problem("fused", model, partial(_fused_seeing, model, dtype, head), dtype, vision)
    if float8:
        return (
            _float8_decoder(model, dtype, head, problem, vision),
            "float8",
            "the fused decoder, with layers in eight bits",
        )
    if problem is None:
        reason = "its logits agree with the model's own forward pass"
        kernels = kernels_reason(model.device, dtype, decoding_kernels())
        decoder = fused_decoder(model, dtype, head, records=records, vision=vision)
        return decoder, "fused", f"{reason}; {kernels}"
    cached = _problem("plain", model, partial(PlainDecoder, model, model.dtype), model.dtype, vision)
    if cached is None:
        return PlainDecoder(model, dtype, vision), "plain", problem
    recomputed = _problem("recomputing", model, partial(RecomputingDecoder, model, model.dtype), model.dtype, vision)
    if recomputed is None:
        return RecomputingDecoder(model, dtype, vision), "recomputing", cached
    raise ModelError(
        f"{type(model).__name__} cannot be sampled from token by token ({recomputed}); use a model of another family"
    )


def images_problem(model: PreTrainedModel, vision: "Vision") -> str | None:
    """Return why the fused decoder cannot compute prompts with images; None if it can."""
    if not vision.is_causal:
        return "tokens of an image see each other both ways, and its attention looks back alone"
    if vision.family.axes > 1 and isinstance(getattr(rotary_of(decoder_of(model)), "rope_type", ""), dict):
        return "tokens of images have positions on several axes, and its layers are rotated in several ways"
    return None


def _float8_decoder(
    model: PreTrainedModel, dtype: torch.dtype, head: HeadRule, problem: str | None, vision: "Vision | None"
) -> Decoder:
    """Return the fused decoder in eight bits; `problem` says why it cannot be used in `dtype`."""
    problem = problem or float8_problem(model.device, dtype)
    if problem is None and model.device.type == "cuda":
        problem = unaligned_reason(model)
    if problem is None:
        with rounded_layers(model):
            problem = _problem_of_text("float8", model, lambda: fused_decoder(model, dtype, head, float8=True), dtype)
    if problem is not None:
        raise ModelError(f"--engine-quantization must be none for this model on this device, got fp8: {problem}")
    return fused_decoder(model, dtype, head, float8=True, vision=vision)


def fused_decoder(
    model: PreTrainedModel,
    dtype: torch.dtype,
    head: HeadRule | None = None,
    *,
    float8: bool = False,
    records: bool = True,
    vision: "Vision | None" = None,
) -> Decoder:
    """Make the fused decoder; on CUDA, if the kernel supports it and with `records`, its steps are recorded graphs.

    Windows, caps, sinks and parts of a rotation are computed by torch's operations there. `head` None: it is measured.
    """
    heads, device, rule = heads_of(model), model.device, measured_head(model) if head is None else head
    plans = plans_of(model)
    is_plain = all(plan.attends_plainly for plan in plans)
    if not is_plain or flash_problem(device, dtype, (heads.query, heads.kv), heads.width) is not None:
        return FusedDecoder(model, dtype, decoding_kernels(), head=rule, float8=float8, vision=vision)
    return GraphedDecoder(
        model,
        dtype,
        attention=FlashKernel(),
        record=record_cuda_graph if records else None,
        free_bytes=lambda: free_cuda_bytes(device),
        between=cuda_kernels(device, dtype),
        head=rule,
        float8=float8,
        vision=vision,
    )


MakeDecoder = Callable[["Vision | None"], Decoder]


def _fused_seeing(model: PreTrainedModel, dtype: torch.dtype, head: HeadRule, vision: "Vision | None") -> Decoder:
    return fused_decoder(model, dtype, head, vision=vision)


def _problem(
    path: Path, model: PreTrainedModel, make: MakeDecoder, dtype: torch.dtype, vision: "Vision | None"
) -> str | None:
    """Return how a path's logits differ from the model's own in `dtype`, behind text or images; None: by rounding."""
    problem = _problem_of_text(path, model, partial(make, None), dtype)
    if problem is None and vision is not None:
        problem = _problem_of_images(path, model, make, dtype, vision)
    return problem


def _problem_of_images(
    path: Path,
    model: PreTrainedModel,
    make: MakeDecoder,
    dtype: torch.dtype,
    vision: "Vision",
) -> str | None:
    """Return how logits behind equal tokens with other images differ from the model's own; None: by rounding only."""
    from paceline.models.vision.probe import drawn_passes  # reads Pillow, which text alone does not need

    try:
        drawn, samples, states = drawn_passes(model, vision, dtype)
        rule, count = measured_head(model), max(sample.length for sample in samples)
        fed = torch.zeros(count - 1, len(samples), dtype=torch.int64, device=model.device)
        for row, sample in enumerate(samples):
            completion = torch.tensor(sample.completion_ids, device=model.device)
            fed[: len(completion) - 1, row] = completion[:-1]
        groups = dict[int, list[int]]()
        for row, sample in enumerate(samples):
            groups.setdefault(sample.group, []).append(row)
        prompts = [samples[rows[0]] for rows in groups.values()]
        with evaluating(model):
            decoder = make(drawn)
            with torch.inference_mode(decoder.refills):
                decoder.begin(len(samples), len(samples[0].prompt_ids) + count)
                media = [sample.prompt_media for sample in prompts]
                after = decoder.admit([sample.prompt_ids for sample in prompts], list(groups.values()), media)
                first = torch.stack([after[number] for number, rows in enumerate(groups.values()) for _ in rows])
                logits = torch.stack([first, *(decoder.step(tokens) for tokens in fed)], dim=1)
                decoder.end()
            with torch.no_grad(), computing_in(model, dtype):
                wanted = model.get_output_embeddings()(states).double() * rule.scale
                wanted = wanted if rule.cap is None else torch.tanh(wanted / rule.cap) * rule.cap
    except torch.OutOfMemoryError:
        raise
    except (ModelError, *MISFITS) as error:
        return f"the {path} decoder fails at images with {type(error).__name__}: {first_line(error)}"
    got = torch.cat([row[: sample.length] for row, sample in zip(logits, samples, strict=True)]).double()
    difference = float((got - wanted).abs().max())
    allowed = PROBE_TOLERANCE[dtype] * max(1.0, float(wanted.abs().max()))
    if difference <= allowed:
        return None
    return f"the {path} decoder's logits behind images differ by {difference:.2g} from the model's own"


def _problem_of_text(path: Path, model: PreTrainedModel, make: Callable[[], Decoder], dtype: torch.dtype) -> str | None:
    """Return how the logits of a path's decoder differ from the model's own in `dtype`; None: by rounding only."""
    vocab_size = cast(Tensor, model.get_input_embeddings().weight).shape[0]
    windows = [plan.window for plan in plans_of(model) if plan.window is not None]
    longest = max([_PROMPTS[0], *(window + 1 for window in windows if window <= _LONGEST_WINDOW)])
    made_up = (torch.arange(1, 100 + longest) * 7919 % vocab_size).tolist()
    first, second = made_up[:longest], made_up[longest : longest + _PROMPTS[1]]
    fed = torch.tensor(made_up[-3 * _STEPS :]).view(_STEPS, 3)
    try:
        # logits after both prompts, then after each token of the first one's two rows and of the second's one
        decoder = make()
        with torch.inference_mode(decoder.refills), evaluating(model):
            decoder.begin(3, longest + _STEPS)
            logits = [decoder.admit((first, second), ((0, 1), (2,)))]
            logits += [decoder.step(tokens) for tokens in fed.to(model.device)]
            decoder.end()
        got = torch.cat(logits).double()
        rows = [(prompt, [*prompt, *fed[:, row].tolist()]) for row, prompt in enumerate((first, first, second))]
        expected = [plain_logits(model, torch.tensor(row), dtype)[len(prompt) - 1 :].double() for prompt, row in rows]
    except torch.OutOfMemoryError:
        raise
    except MISFITS as error:
        return f"the {path} decoder fails with {type(error).__name__}: {first_line(error)}"
    wanted = torch.cat([expected[0][:1], expected[2][:1], torch.stack(expected, dim=1)[1:].flatten(0, 1)])
    difference = float((got - wanted).abs().max())
    allowed = PROBE_TOLERANCE[FLOAT8 if path == "float8" else dtype] * max(1.0, float(wanted.abs().max()))
    if difference <= allowed:
        return None
    own_logits = "the model's own with rounded layers" if path == "float8" else "the model's own"
    return f"the {path} decoder's logits differ by {difference:.2g} from {own_logits}, more than {allowed:.2g}"
