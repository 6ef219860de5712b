"""A trial of windows on made-up numbers: rows that keep a window's keys in turn, against attention over all keys."""

import functools

import torch

from paceline.engines.local.attention import NO_WEIGHTS, AttentionLayer, Rotation
from paceline.engines.local.tables import TableAttention
from paceline.kernels.cpu.compiling import STORAGE
from paceline.kernels.cpu.decoding import Heads, decoding_kernels
from paceline.models.dense_attention import dense_attention

WINDOW, PROMPT, STEPS = 19, 13, 48
"""Tokens of the window that is tried, of the prompt, and behind it: more than two turns of the kept columns."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


@functools.cache
def rings_problem(heads: Heads, dtype: torch.dtype) -> str | None:
    """Return how far the compiled kernels' attention over a window is from exact attention; None: only by rounding.

    A model's own logits are compared over a few tokens, and its windows may be longer.
    """
    kernels = decoding_kernels()
    if kernels is None or dtype not in STORAGE:
        return None  # torch's operations mask what a window hides
    numbers = torch.randn(
        1, PROMPT + STEPS, heads.query + 2 * heads.kv, heads.width, generator=torch.Generator().manual_seed(0)
    ).to(dtype)
    query, key, value = numbers.double().transpose(1, 2).split((heads.query, heads.kv, heads.kv), dim=1)
    ages = torch.arange(PROMPT + STEPS)[:, None] - torch.arange(PROMPT + STEPS)
    mask = (ages >= 0) & (ages < WINDOW)
    wanted = dense_attention(query, key, value, mask[None, None], heads.width**-0.5, None, None)[0].transpose(0, 1)
    unturned = torch.zeros(PROMPT + STEPS, 0)
    layer = AttentionLayer(rotation=Rotation(cosine=unturned, sine=unturned, norm_eps=0.0), window=WINDOW)
    attention = TableAttention(1, [layer], heads, dtype=dtype, kernels=kernels)
    slots = attention.take_slots([PROMPT], [[0]])
    attention.of_prompts(numbers[:, :PROMPT].flatten(2).clone(), 0, NO_WEIGHTS, slots, 0)
    worst = 0.0
    for token in range(PROMPT, PROMPT + STEPS):
        attention.begin_step()
        mixed = attention.of_step(numbers[:, token].flatten(1).contiguous(), 0, NO_WEIGHTS)
        attention.end_step()
        worst = max(worst, float((mixed.double() - wanted[token].flatten()).abs().max()))
    if worst <= TOLERANCE[dtype]:
        return None
    return f"its attention over a window of {WINDOW} tokens differs by {worst:.2g} from exact attention"
