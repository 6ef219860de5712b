"""Kernels of `cuda.drawing`. Triton is imported here, so this module is imported only where needed.

A row of logits [V] is cut into blocks of BLOCK tokens. NUM_BLOCKS is the next power of two of a row's number of blocks.
Neither depends on the number of rows, so a row's sums are the same wherever it lies and whatever lies beside it.
"""

import triton
import triton.language as tl


@triton.jit
def finite_base(top):  # type: ignore[no-untyped-def]
    """Return what to subtract before an exponential: the largest logit, or 0 where all are -inf, for -inf - (-inf) is
    no number."""
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit
def first_passing(  # type: ignore[no-untyped-def]
    passes, possible, places, LENGTH: tl.constexpr
):
    """Return the first place that passes and is possible; where none does, the last possible one; else 0.

    A cumulative sum is rounded. So it may end short of its target, or pass it at a token of probability 0.
    """
    first = tl.min(tl.where(passes & possible, places, LENGTH), 0)
    last = tl.max(tl.where(possible, places, 0), 0)
    return tl.minimum(first, last)


@triton.jit
def block_masses(  # type: ignore[no-untyped-def]
    logits, highest, masses, vocabulary, scale, BLOCK: tl.constexpr
):
    """Write the largest logit of a block, and its mass, the sum of exp((x - largest) * scale). A program has a block
    of a row.

    A logit that is no number, or +inf, makes the mass no number.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * vocabulary + columns, mask=columns < vocabulary, other=-float("inf")).to(tl.float32)
    top = tl.max(x, 0)
    # subtracted before it is scaled: large logits then lose no digits of their differences
    mass = tl.sum(tl.exp((x - finite_base(top)) * scale), 0)
    at = row * tl.cdiv(vocabulary, BLOCK) + block
    tl.store(highest + at, top)
    tl.store(masses + at, mass)


@triton.jit(do_not_specialize_on_alignment=["uniform"])  # else a recording may need a kernel that no call before it did
def draw_from_blocks(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    logits,
    uniform,
    highest,
    masses,
    tokens,
    logprobs,
    vocabulary,
    scale,
    GREEDY: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    """Write a row's token and its logprob from what `block_masses` wrote: the block whose cumulative mass passes the
    row's uniform number times the total, then the token in it. A program has a row.

    GREEDY takes the first of the largest logits. Cumulative sums are float64, as the uniform numbers are.
    """
    row = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(vocabulary, BLOCK)
    numbers = tl.arange(0, NUM_BLOCKS)
    there = numbers < blocks
    tops = tl.load(highest + row * blocks + numbers, mask=there, other=-float("inf"))
    top = tl.max(tops, 0)
    base = finite_base(top)
    factors = tl.exp((tops - base) * scale)
    mass = tl.load(masses + row * blocks + numbers, mask=there, other=0.0).to(tl.float64) * factors.to(tl.float64)
    total = tl.sum(mass, 0)
    places = tl.arange(0, BLOCK)
    if GREEDY:
        largest = there & (tops == top)
        block = first_passing(largest, largest, numbers, NUM_BLOCKS)
    else:
        target = tl.load(uniform + row) * total
        ends = tl.cumsum(mass, 0)
        block = first_passing(ends > target, mass > 0, numbers, NUM_BLOCKS)
    columns = block * BLOCK + places
    here = columns < vocabulary
    x = tl.load(logits + row * vocabulary + columns, mask=here, other=-float("inf")).to(tl.float32)
    if GREEDY:
        # what lies past the end is -inf, as the largest of logits that are no numbers may be
        equal = here & (x == top)
        index = first_passing(equal, equal, places, BLOCK)
    else:
        taken = numbers == block
        rest = target - tl.sum(tl.where(taken, ends - mass, 0.0), 0)
        factor = tl.sum(tl.where(taken, factors, 0.0), 0)
        # relative to the block's largest logit, as its mass is: relative to the row's, small ones would vanish
        shares = tl.exp((x - finite_base(tl.max(x, 0))) * scale)
        inner = tl.cumsum(shares.to(tl.float64), 0) * factor.to(tl.float64)
        index = first_passing(inner > rest, shares > 0, places, BLOCK)
    chosen = tl.sum(tl.where(places == index, x, 0.0), 0)
    # of logits that are not finite the total is 0 or no number, and so is the logprob no finite number
    logprob = (chosen.to(tl.float64) - base.to(tl.float64)) * scale - tl.log(total)
    tl.store(tokens + row, (block * BLOCK + index).to(tl.int64))
    tl.store(logprobs + row, logprob.to(tl.float32))
