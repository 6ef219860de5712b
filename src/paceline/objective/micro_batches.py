"""Micro-batches of a step's rollouts under a token budget, with the step's averages as token weights.

A micro-batch is packed: prompts first, each once however many completions it has, then completions, with no padding. A
model that cannot take it so is given padded rows of it, and then the budget holds every place of every row.

    tokens      p0 p0 p0 p1 p1 | a a a b b c c c c      two prompts, completions a, b of p0 and c of p1
    positions    0  1  2  0  1 | 3 4 5 3 4 2 3 4 5

The last token of a completion predicts nothing that is trained, so it is a target but not an input.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Average = Literal["token", "sequence", "constant", "prompt", "sequence_sum"]
Layout = Literal["packed", "padded"]
"""Form of a micro-batch: `packed` lays tokens end to end, each prompt once; `padded` has a row per sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One completion to train on, with the prompt it shares with others of its group."""

    group: int
    """Number of the group; samples of one group share a prompt."""
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    rollout_logprobs: tuple[float, ...]
    advantage: float
    masked: bool = False
    """True for a completion that counts in averages as one without tokens and is never computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """S samples of Q prompts: M input tokens, prompts first, and N target tokens."""

    samples: tuple[int, ...]
    """Positions of the samples in the step, in the order of the tokens below."""
    input_ids: Int[Tensor, " M"]
    position_ids: Int[Tensor, " M"]
    prompt_lengths: tuple[int, ...]
    """Tokens of each of the Q prompts."""
    prompt_of_sample: tuple[int, ...]
    """Index of the prompt that each sample continues."""
    input_lengths: tuple[int, ...]
    """Completion tokens that are inputs, per sample: its length - 1."""
    sources: Int[Tensor, " N"]
    """Index of the input token whose hidden state predicts each target."""
    lengths: Int[Tensor, " S"]
    """Completion tokens per sample; they sum to N."""
    targets: Int[Tensor, " N"]
    weights: Float[Tensor, " N"]
    """Share of each target in the step's average; the shares sum to 1 over the step."""
    advantages: Float[Tensor, " N"]
    rollout_logprobs: Float[Tensor, " N"]

    @property
    def num_targets(self) -> int:
        """Number of completion tokens with a gradient, N."""
        return len(self.targets)

    def num_forwarded(self, layout: Layout) -> int:
        """Return the tokens that pass through the model, padding included."""
        if layout == "packed":
            return len(self.input_ids)
        prompts = (self.prompt_lengths[prompt] for prompt in self.prompt_of_sample)
        return len(self.samples) * max(map(sum, zip(prompts, self.input_lengths, strict=True)))


def token_weights(samples: Sequence[Sample], *, average: Average, max_completion_length: int) -> list[float]:
    """Return one weight per sample for each of its tokens, so that the step's loss is a plain sum.

    With T_i the tokens of sample i, over all B samples of all ranks and micro-batches of the optimiser step:

        token     1 / sum_i T_i                                 DAPO, arXiv:2503.14476, Eq. 8
        sequence  1 / (B * T_i)                                 GRPO, arXiv:2402.03300, Eq. 3
        constant  1 / (B * max_completion_length)               Dr. GRPO, arXiv:2503.20783, section 3.2
        prompt    1 / (P * sum of T over the prompt's samples)  ScaleRL, arXiv:2510.13786, section 3.2
        sequence_sum  1 / B                                     LUSPO, arXiv:2602.05261

    `samples` must hold every sample that counts, also those whose advantage is zero. A masked one is among the B
    samples and the P prompts with T_i = 0; its own weight is 0.
    """
    lengths = [0 if sample.masked else len(sample.completion_ids) for sample in samples]
    tokens_of_group: dict[int, int] = {}
    for sample, length in zip(samples, lengths, strict=True):
        tokens_of_group[sample.group] = tokens_of_group.get(sample.group, 0) + length
    denominators = {
        "token": [sum(lengths)] * len(samples),
        "sequence": [len(samples) * length for length in lengths],
        "constant": [len(samples) * max_completion_length] * len(samples),
        "sequence_sum": [len(samples)] * len(samples),
        "prompt": [len(tokens_of_group) * tokens_of_group[sample.group] for sample in samples],
    }
    pairs = zip(samples, denominators[average], strict=True)
    return [0.0 if sample.masked else 1 / denominator for sample, denominator in pairs]


def cut(
    samples: Sequence[Sample], *, trained: Sequence[int], micro_batch_tokens: int, layout: Layout = "packed"
) -> list[list[int]]:
    """Cut the samples at positions `trained` into micro-batches whose passes forward at most `micro_batch_tokens`.

    Packed, groups stay whole, so that shared prompts are computed once, unless one alone is above the budget. Long ones
    stay with long ones, so that attention sees little padding. There are as few micro-batches as that allows, filled
    evenly: a full one and a small rest would need the memory of the full one. A sample above the budget is a
    micro-batch of its own. Attention's own cost is left out: 4 % of a forward pass of 0.5 billion parameters at 900
    tokens.

    Padded rows share no prompt, so that a group is nothing to keep whole: they stand by length, the longest first.
    """
    if layout == "padded":
        rows = sorted(trained, key=lambda index: (-_tokens(samples, [index]), index))
        alike = even_runs([_tokens(samples, [row]) for row in rows], limit=micro_batch_tokens, padded=True)
        return [rows[run.start : run.stop] for run in alike]

    def longest(members: Sequence[int]) -> int:
        return max(len(samples[index].prompt_ids) + len(samples[index].completion_ids) for index in members)

    groups = _by_group(samples, trained)
    in_order = sorted(groups, key=lambda members: (longest(members), samples[members[0]].group))
    pieces = [piece for members in in_order for piece in _whole_or_cut(samples, members, micro_batch_tokens)]
    runs = even_runs([_tokens(samples, piece) for piece in pieces], limit=micro_batch_tokens)
    return [[index for piece in pieces[run.start : run.stop] for index in piece] for run in runs]


def share_out(
    samples: Sequence[Sample], *, trained: Sequence[int], ranks: int, layout: Layout = "packed"
) -> list[list[int]]:
    """Divide the samples at positions `trained` into one share per rank, of similar numbers of input tokens.

    Packed, groups stay whole unless one alone is more than an even share. The costliest piece goes first, each to
    the rank with least so far; a rank gets nothing if there are fewer samples than ranks.
    """
    if ranks == 1:
        return [list(trained)]
    groups = _by_group(samples, trained) if layout == "packed" else [[row] for row in trained]
    even = math.ceil(sum(_tokens(samples, members) for members in groups) / ranks)
    pieces = [piece for members in groups for piece in _whole_or_cut(samples, members, even)]
    shares, loads = [list[int]() for _ in range(ranks)], [0] * ranks
    for piece in sorted(pieces, key=lambda piece: (-_tokens(samples, piece), piece[0])):
        least = loads.index(min(loads))
        shares[least] += piece
        loads[least] += _tokens(samples, piece)
    return [sorted(share) for share in shares]


def shortest(samples: Sequence[Sample]) -> int:
    """Return the position of the sample with the fewest input tokens."""
    return min(range(len(samples)), key=lambda index: _tokens(samples, [index]))


def input_tokens(samples: Sequence[Sample], members: Sequence[int], layout: Layout = "packed") -> int:
    """Count the tokens that a pass over samples of any groups forwards; packed, each prompt counts once."""
    if layout == "padded":
        return len(members) * max(_tokens(samples, [index]) for index in members)
    return sum(_tokens(samples, group) for group in _by_group(samples, members))


def _by_group(samples: Sequence[Sample], positions: Iterable[int]) -> list[list[int]]:
    """Return the positions of each group's samples in order, groups by their first sample."""
    groups: dict[int, list[int]] = {}
    for index in sorted(positions):
        groups.setdefault(samples[index].group, []).append(index)
    return list(groups.values())


def _tokens(samples: Sequence[Sample], members: Sequence[int]) -> int:
    """Count the input tokens of one group: its prompt once, and all but the last token of each completion."""
    return len(samples[members[0]].prompt_ids) + sum(len(samples[index].completion_ids) - 1 for index in members)


def _whole_or_cut(samples: Sequence[Sample], members: list[int], limit: int) -> list[list[int]]:
    """Return a group whole, or in even pieces of at most `limit` tokens, each with the prompt."""
    inputs = [len(samples[index].completion_ids) - 1 for index in members]
    runs = even_runs(inputs, limit=limit, fixed=len(samples[members[0]].prompt_ids))
    return [members[run.start : run.stop] for run in runs]


def even_runs(costs: Sequence[int], *, limit: int, fixed: int = 0, padded: bool = False) -> list[range]:
    """Split neighbours into the fewest runs within `limit`, with the costliest run as cheap as possible.

    A cost above the limit is a run of its own. `padded`: each of a run costs as much as its costliest.

    >>> even_runs([3, 3, 3, 1, 1, 1], limit=10)
    [range(0, 2), range(2, 6)]
    """
    fewest = len(_filled(costs, limit=limit, fixed=fixed, padded=padded))
    low, high = 0, limit  # `high` needs no more runs than `limit`; `low` is no limit at all
    while high - low > 1:
        middle = (low + high) // 2
        if len(_filled(costs, limit=middle, fixed=fixed, padded=padded)) > fewest:
            low = middle
        else:
            high = middle
    return _filled(costs, limit=high, fixed=fixed, padded=padded)


def _filled(costs: Sequence[int], *, limit: int, fixed: int, padded: bool) -> list[range]:
    """Fill runs of neighbours up to `limit`, never leaving one empty: no fewer runs are possible."""
    ends, start = [], 0
    total = most = 0
    for place, cost in enumerate(costs):
        total, most = total + cost, max(most, cost)
        if place > start and fixed + ((place - start + 1) * most if padded else total) > limit:
            ends.append(place)
            start, total, most = place, cost, cost
    bounds = [0, *ends, len(costs)]
    return [range(start, end) for start, end in itertools.pairwise(bounds) if end > start]


def pack(
    samples: Sequence[Sample], weights: Sequence[float], indices: Sequence[int], *, dtype: torch.dtype
) -> MicroBatch:
    """Pack the samples at `indices` into one micro-batch; `weights` has one number per sample of the step."""
    chosen = [samples[index] for index in indices]
    prompt_of_group: dict[int, int] = {}
    prompts: list[tuple[int, ...]] = []
    for sample in chosen:
        if sample.group not in prompt_of_group:
            prompt_of_group[sample.group] = len(prompts)
            prompts.append(sample.prompt_ids)
    prompt_ends = torch.tensor([len(prompt) for prompt in prompts]).cumsum(0).tolist()
    inputs = [token for prompt in prompts for token in prompt]
    positions = [position for prompt in prompts for position in range(len(prompt))]
    sources: list[int] = []
    for sample in chosen:
        start, prompt_length = len(inputs), len(sample.prompt_ids)
        read = sample.completion_ids[:-1]
        sources.append(prompt_ends[prompt_of_group[sample.group]] - 1)
        sources.extend(range(start, start + len(read)))
        inputs.extend(read)
        positions.extend(range(prompt_length, prompt_length + len(read)))
    lengths = torch.tensor([len(sample.completion_ids) for sample in chosen])
    return MicroBatch(
        samples=tuple(indices),
        input_ids=torch.tensor(inputs),
        position_ids=torch.tensor(positions),
        prompt_lengths=tuple(len(prompt) for prompt in prompts),
        prompt_of_sample=tuple(prompt_of_group[sample.group] for sample in chosen),
        input_lengths=tuple(len(sample.completion_ids) - 1 for sample in chosen),
        sources=torch.tensor(sources),
        lengths=lengths,
        targets=torch.tensor([token for sample in chosen for token in sample.completion_ids]),
        weights=torch.tensor([weights[index] for index in indices], dtype=dtype).repeat_interleave(lengths),
        advantages=torch.tensor([s.advantage for s in chosen], dtype=dtype).repeat_interleave(lengths),
        rollout_logprobs=torch.tensor([value for s in chosen for value in s.rollout_logprobs], dtype=dtype),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddedAttention:
    """Index tables between packed tokens and padded blocks, for attention; everything else stays packed.

    Q prompts of at most L tokens, S samples of at most T completion inputs. Padding repeats token 0; it is masked
    or, in the causal prompt block, stands after every token that could see it.
    """

    prompt_index: Int[Tensor, "Q L"]
    completion_index: Int[Tensor, "S T"]
    prompt_of_sample: Int[Tensor, " S"]
    mask: Bool[Tensor, "S 1 T L_plus_T"]
    """Mask that shows each completion token its own prompt and the completion up to itself."""
    unpad: Int[Tensor, " M"]
    """Place of each packed token in the flattened blocks: prompts, then completions."""


def padded_attention(batch: MicroBatch) -> PaddedAttention:
    """Build the index tables of a micro-batch, once for all layers."""
    prompt_lengths, input_lengths = torch.tensor(batch.prompt_lengths), torch.tensor(batch.input_lengths)
    prompt_of_sample = torch.tensor(batch.prompt_of_sample)
    prompt_index, prompt_real = _ragged_index(prompt_lengths, start=0)
    completion_index, completion_real = _ragged_index(input_lengths, start=int(prompt_lengths.sum()))
    length = completion_index.shape[1]
    sees_prompt = prompt_real[prompt_of_sample][:, None, :].expand(-1, length, -1)
    causal = torch.ones(length, length, dtype=torch.bool).tril().expand(len(input_lengths), -1, -1)
    real = torch.cat([prompt_real.flatten(), completion_real.flatten()])
    return PaddedAttention(
        prompt_index=prompt_index,
        completion_index=completion_index,
        prompt_of_sample=prompt_of_sample,
        mask=torch.cat([sees_prompt, causal], dim=-1)[:, None],
        unpad=real.nonzero()[:, 0],
    )


def _ragged_index(lengths: Int[Tensor, " R"], *, start: int) -> tuple[Int[Tensor, "R W"], Bool[Tensor, "R W"]]:
    """Return the token index of each row laid end to end from `start`, and its mask; 0 behind a shorter row."""
    columns = torch.arange(int(lengths.max()))
    real = columns < lengths[:, None]
    starts = start + lengths.cumsum(0) - lengths
    return torch.where(real, starts[:, None] + columns, 0), real


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddedRows:
    """A micro-batch as padded rows, prompt then completion, for models that take nothing else."""

    index: Int[Tensor, "S L"]
    """Input token at each place of each sample's row; 0 in the padding on the right."""
    real: Bool[Tensor, "S L"]
    sources: Int[Tensor, " N"]
    """Place in the flattened rows whose hidden state predicts each target."""


def padded_rows(batch: MicroBatch) -> PaddedRows:
    """Build the rows of a micro-batch; the prompt is repeated for each of its samples."""
    prompt_lengths, input_lengths = torch.tensor(batch.prompt_lengths), torch.tensor(batch.input_lengths)
    prompt_of_sample = torch.tensor(batch.prompt_of_sample)
    prompt_starts = (prompt_lengths.cumsum(0) - prompt_lengths)[prompt_of_sample, None]
    own_starts = (int(prompt_lengths.sum()) + input_lengths.cumsum(0) - input_lengths)[:, None]
    prompt_length = prompt_lengths[prompt_of_sample, None]
    row_length = prompt_length + input_lengths[:, None]
    columns = torch.arange(int(row_length.max()))
    real = columns < row_length
    index = torch.where(columns < prompt_length, prompt_starts + columns, own_starts + columns - prompt_length)
    predicts = real & (columns >= prompt_length - 1)
    return PaddedRows(index=torch.where(real, index, 0), real=real, sources=predicts.flatten().nonzero()[:, 0])
