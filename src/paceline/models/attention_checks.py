"""Checks of packed attention that a pass over a few tokens cannot make: its windows may be longer than those tokens."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers.masking_utils import sliding_window_causal_mask_function

from paceline.errors import first_line
from paceline.models.attention import LayerCall, PackedLayout, attend
from paceline.models.dense_attention import dense_attention
from paceline.models.families.layer_plan import FULL, WINDOW, LayerPlan
from paceline.models.plain_forward import MISFITS
from paceline.models.rows import on_device
from paceline.models.states import STATEFUL
from paceline.objective.micro_batches import one_turn, pack

TRIED_WINDOW = 130
"""Longest window that is tried: the kernels take 24 queries and 64 keys at a time, whatever the window."""
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 1e-1}
"""Largest difference from exact attention that counts as rounding, relative to the largest number."""


def kinds_problem(plans: Iterable[LayerPlan]) -> str | None:
    """Return a kind of layers that sees other tokens than packed attention does; None: there is none."""
    served = (FULL, WINDOW, *STATEFUL)
    return next((f"some layers are of the kind {plan.kind}" for plan in plans if plan.kind not in served), None)


def calls_problem(
    calls: Sequence[LayerCall], plans: Sequence[LayerPlan], device: torch.device, dtype: torch.dtype
) -> str | None:
    """Return how the layers' calls of attention disagree with the configuration or with exact attention, or None.

    `calls`: those of a pass over packed tokens. A layer that runs through kernels of its own has none: it sees all
    earlier tokens.
    """
    problem = _windows_problem(calls, plans)
    if problem is not None:
        return problem
    for call in dict.fromkeys(calls):
        if call.window is not None or call.cap is not None or call.has_sinks:
            problem = _numbers_problem(replace(call, layer=None), device, dtype)
            if problem is not None:
                options = [_words(call.window)] if call.window else []
                options += [f"a cap of {call.cap:g}"] if call.cap else []
                options += ["sinks"] if call.has_sinks else []
                return f"attention with {' and '.join(options)} {problem}"
    return None


def _windows_problem(calls: Sequence[LayerCall], plans: Sequence[LayerPlan]) -> str | None:
    windows = dict[int, int | None]()
    for call in calls:
        if call.layer is None or not 0 <= call.layer < len(plans):
            if any(plan.window for plan in plans):
                return "attention does not say of which layer it is, and some layers attend to a sliding window"
            continue
        windows[call.layer] = call.window
    for number, plan in enumerate(plans):
        window = windows.get(number)
        if window != plan.window and (number in windows or plan.kind == WINDOW):
            return f"layer {number} gives attention {_words(window)}, and its configuration {_words(plan.window)}"
    for call in calls:
        if call.window is not None and not _is_as_transformers_masks(call.window):
            return f"transformers' mask of {_words(call.window)} shows other tokens than packed attention"
    return None


def _words(window: int | None) -> str:
    return "no window" if window is None else f"a window of {window} tokens"


def _is_as_transformers_masks(window: int) -> bool:
    """Return whether the token at p sees those at t with p - window < t <= p, around the first that sees not all."""
    places = torch.arange(max(0, window - 2), window + 2)[:, None]
    keys = torch.arange(window + 2)
    zero = torch.tensor(0)
    masked = torch.as_tensor(sliding_window_causal_mask_function(window)(zero, zero, places, keys))
    return torch.equal(masked, (keys > places - window) & (keys <= places))


@functools.cache
def _numbers_problem(call: LayerCall, device: torch.device, dtype: torch.dtype) -> str | None:
    """Compare outputs and gradients of random numbers, past the window, with exact attention over each row alone."""
    window = None if call.window is None else min(call.window, TRIED_WINDOW)
    scaling, cap, (queries, keys), (width, value_width) = call.scaling, call.cap, call.heads, call.widths
    long = (window or 0) + 3
    rows = [(0, long, 7), (0, long, 2), (1, 2, long), (2, 1, 5)]
    samples = [
        one_turn(group=group, prompt_ids=(0,) * prompt, completion_ids=(0,) * (inputs + 1), advantage=0.0)
        for group, prompt, inputs in rows
    ]
    batch = on_device(pack(samples, [0.0] * len(rows), range(len(rows)), dtype=dtype), device)
    generator = torch.Generator().manual_seed(0)
    tokens = len(batch.input_ids)
    shapes = [(tokens, queries, width), (tokens, keys, width), (tokens, keys, value_width), (queries,)]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    drawn[0] *= (2 if cap is None else 4) / (scaling * width**0.5)  # scores of some units, which a cap of 50 changes
    given = [numbers.to(device, dtype).requires_grad_() for numbers in drawn]
    outside = torch.randn(tokens, queries, value_width, generator=generator, dtype=torch.float64).to(device, dtype)

    def results(function: Callable[..., Tensor], states: list[Tensor], outside: Tensor) -> list[Tensor]:
        out = function(*states[:3], states[3] if call.has_sinks else None)
        grads = torch.autograd.grad(out, states if call.has_sinks else states[:3], outside)
        return [numbers.detach().double() for numbers in (out, *grads)]

    def packed(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        return attend(query, key, value, PackedLayout(batch=batch).within(window), scaling, cap=cap, sinks=sinks)

    def exact(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        outputs, ends = list[Tensor](), torch.tensor([*batch.prompt_lengths, *batch.input_lengths]).cumsum(0).tolist()
        spans = [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        before = [range(0)] * len(batch.prompt_lengths) + [spans[prompt] for prompt in batch.prompt_of_sample]
        for earlier, own in zip(before, spans, strict=True):
            seen = torch.tensor([*earlier, *own], device=device)
            places = torch.arange(len(seen), device=device)
            behind = places[len(earlier) :, None] - places
            mask = (behind >= 0) & (behind < (window or tokens))
            parts = [part.transpose(0, 1)[None] for part in (query[own.start : own.stop], key[seen], value[seen])]
            output = dense_attention(parts[0], parts[1], parts[2], mask, scaling, cap, sinks)
            outputs.append(output[0].transpose(0, 1))
        return torch.cat(outputs)

    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            got = results(packed, given, outside)
            wanted = results(exact, [states.detach().double().requires_grad_() for states in given], outside.double())
    except torch.OutOfMemoryError:
        raise
    except MISFITS as error:
        return f"fails with {type(error).__name__}: {first_line(error)}"
    pairs = zip(got, wanted, strict=True)
    differences = [float((ours - right).abs().max() / right.abs().max()) for ours, right in pairs]
    worst = [difference for difference in differences if not difference <= TOLERANCE[dtype]]
    return f"differs from exact attention by {max(worst):.1g} in {dtype}" if worst else None
