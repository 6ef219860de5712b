"""Drawing tokens from logits in two kernels, which read the logits once and copy none.

torch's operations make float32 tensors of the logits' size, and start a dozen kernels and more in every decoding step.

S rows, V vocabulary.
"""

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paceline.kernels.cuda.triton_check import next_power, trial_problem, triton_problem

BLOCK = 2048
"""Tokens of a block. The first kernel has a program for each: 75 of a row with a vocabulary of 152,000, enough for
most of a GPU. The second kernel reads the one block that holds the token again. Other blocks round sums otherwise, so
it must not depend on the number of rows."""
PROBE_TOLERANCE = 1e-5
"""Largest difference of logprobs from torch's operations, in nats, that counts as rounding."""


def draw_tokens(
    logits: Float[Tensor, "S V"], uniform: Float[Tensor, " S"], temperature: float
) -> tuple[Int[Tensor, " S"], Float[Tensor, " S"]]:
    """Draw one token per row from softmax(logits / temperature); at 0 the most probable one, with logprobs at
    temperature 1.

    `uniform` (float64 in (0, 1)) is the place in the cumulative distribution. A token of probability 0 is never drawn.
    Logprobs are float32, in nats, and not finite where the logits are not. Nothing waits for the device, so a CUDA
    graph can record it.
    """
    from paceline.kernels.cuda import triton_drawing

    rows, vocabulary = logits.shape
    logits = logits.contiguous()
    if logits.data_ptr() % 16:
        # Triton compiles anew for what is less aligned, and may then add in another order.
        logits = logits.clone()
    blocks, scale = -(-vocabulary // BLOCK), 1 / temperature if temperature else 1.0
    highest, masses = (logits.new_empty(rows, blocks, dtype=torch.float32) for _ in range(2))
    tokens, logprobs = (logits.new_empty(rows, dtype=dtype) for dtype in (torch.int64, torch.float32))
    if rows:
        triton_drawing.block_masses[(rows, blocks)](logits, highest, masses, vocabulary, scale, BLOCK=BLOCK)
        triton_drawing.draw_from_blocks[(rows,)](
            logits,
            uniform.contiguous(),
            highest,
            masses,
            tokens,
            logprobs,
            vocabulary,
            scale,
            GREEDY=temperature == 0,
            BLOCK=BLOCK,
            NUM_BLOCKS=next_power(blocks),
        )
    return tokens, logprobs


@functools.cache
def drawing_problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernels do not serve here; if nothing speaks against them, they are tried on made-up numbers."""
    return triton_problem(device, dtype) or _tried(device, dtype)


def _tried(device: torch.device, dtype: torch.dtype) -> str | None:
    made_up = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0), device="cpu")
    logits = made_up.to(device, dtype)
    uniform = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64, device=device)

    def difference(got: tuple[Tensor, Tensor]) -> float:
        wanted = (logits.double() / 0.8).log_softmax(-1)
        tokens = torch.searchsorted(wanted.exp().cumsum(-1), uniform[:, None], right=True)
        if not torch.equal(got[0], tokens.squeeze(1)):
            return float("inf")
        return float((got[1] - wanted.gather(1, tokens).squeeze(1)).abs().max())

    return trial_problem(lambda: draw_tokens(logits, uniform, 0.8), difference, PROBE_TOLERANCE)
