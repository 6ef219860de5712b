"""Micro-batches of a step's rollouts, with the step's averages as token weights.

A micro-batch is packed: prompts first, each once however many completions it has, then completions, with no padding. A
model that cannot take it so is given padded rows of it, and then the budget holds every place of every row.

    tokens      p0 p0 p0 p1 p1 | a a a b b c c c c      two prompts, completions a, b of p0 and c of p1
    positions    0  1  2  0  1 | 3 4 5 3 4 2 3 4 5

The last token of a completion predicts nothing that is trained, so it is a target but not an input. In an episode the
tokens that its environment wrote (o) are inputs and no targets:

    inputs      p0 p0 p0 | a a o o a      the model sampled a a, read o o, and sampled a a
    targets           a  | a     a a      each predicted by the input above it

An episode whose history was rewritten has several rows, which share its weight. What such a history adds to the prompt
is inputs and no targets too.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from paceline.objective.streams import LossStream, stream_of
from paceline.types import Media, Span, routes_of, tokens_of

Average = Literal["token", "sequence", "constant", "prompt", "sequence_sum"]
Layout = Literal["packed", "padded"]
"""Form of a micro-batch: `packed` lays tokens end to end, each prompt once; `padded` has a row per sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One row to train on: a completion, or the part of an episode between two rewritings of its history."""

    group: int
    """Number of the group."""
    prompt: int = 0
    """Number of the prompt within the group: rows of one number have the same one, which is computed once for them."""
    prompt_ids: tuple[int, ...]
    spans: tuple[Span, ...]
    """Spans behind the prompt, up to the last one that is trained on."""
    advantages: tuple[float, ...]
    """Advantage of each span that is trained on."""
    masked: bool = False
    """True for a completion that counts in averages as one without tokens and is never computed."""
    completion: int | None = None
    """Number of the episode that the row is a part of; None: the row is a whole completion. Rows of one number stand
    together, and are one completion to averages."""
    turns: tuple[int, ...] | None = None
    """Number of the turn, from 0, of each span that is trained on; None: the first turn alone."""
    prompt_routes: bytes = b""
    """Routes of the prompt's tokens as `Span.routes`, the same in all rows of one prompt."""
    prompt_media: tuple[Media, ...] = ()
    """Images of the prompt, the same in all rows of one prompt."""

    @property
    def length(self) -> int:
        """Number of tokens behind the prompt."""
        return sum(len(span.tokens) for span in self.spans)

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """Tokens behind the prompt."""
        return tokens_of(self.spans)

    @property
    def trained(self) -> tuple[Span, ...]:
        """Spans that are trained on."""
        return tuple(span for span in self.spans if stream_of(span) is not None)

    @property
    def num_targets(self) -> int:
        """Number of tokens that are trained on."""
        return sum(len(span.tokens) for span in self.trained)

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Start and end, behind the prompt, of each span that is trained on."""
        ends = itertools.accumulate(len(span.tokens) for span in self.spans)
        pairs = zip(self.spans, ends, strict=True)
        return tuple((end - len(span.tokens), end) for span, end in pairs if stream_of(span) is not None)

    @property
    def has_signal(self) -> bool:
        """True if an advantage is not 0."""
        return any(self.advantages)

    def length_in(self, stream: LossStream) -> int | None:
        """Return the number of tokens that a stream trains, 0 where the row is masked; None: the stream has no span."""
        if self.masked:
            return 0
        lengths = [len(span.tokens) for span in self.spans if stream_of(span) == stream]
        return sum(lengths) if lengths else None


def one_turn(*, group: int, prompt_ids: tuple[int, ...], completion_ids: tuple[int, ...], advantage: float) -> Sample:
    """Return the row of a completion whose tokens all count and had probability 1 when they were sampled."""
    policy = Span(by="policy", tokens=completion_ids, logprobs=(0.0,) * len(completion_ids))
    return Sample(group=group, prompt_ids=prompt_ids, spans=(policy,), advantages=(advantage,))


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """S samples of Q prompts and C completions: M input tokens, prompts first, and N target tokens."""

    samples: tuple[int, ...]
    """Positions of the samples in the step, in the order of the tokens below."""
    input_ids: Int[Tensor, " M"]
    position_ids: Int[Tensor, " M"]
    prompt_lengths: tuple[int, ...]
    """Tokens of each of the Q prompts."""
    prompt_of_sample: tuple[int, ...]
    """Index of the prompt that each sample continues."""
    input_lengths: tuple[int, ...]
    """Completion tokens that are inputs, per sample, observed ones among them: all but the last."""
    runs: tuple[tuple[tuple[int, int], ...], ...]
    """Start and end of each run of targets among the tokens behind the prompt, per sample."""
    sources: Int[Tensor, " N"]
    """Index of the input token whose hidden state predicts each target."""
    lengths: Int[Tensor, " C"]
    """Targets of each completion; they sum to N. Rows of an episode that stand together are one completion."""
    targets: Int[Tensor, " N"]
    weights: Float[Tensor, " N"]
    """Share of each target in the step's average; the shares sum to 1 over the step."""
    advantages: Float[Tensor, " N"]
    rollout_logprobs: Float[Tensor, " N"]
    turns: Int[Tensor, " N"] | None
    """Number of the turn of each target, from 0; None: the step has first turns alone."""
    old_logprobs: Float[Tensor, " N"] | None = None
    """Logprobs of the policy at the start of the step, by the trainer's own forward pass; None before its first pass,
    and where another rank has the head. The engine's differ by rounding or more: they serve the mismatch metric,
    `rollout_correction` and `off_policy_threshold`."""
    ref_logprobs: Float[Tensor, " N"] | None = None
    """Logprobs of the reference; None: there is none, or another rank has the head."""
    media: tuple[Media, ...] = ()
    """Images of the prompts, each once per prompt: `start` counts input tokens."""
    routes: UInt8[Tensor, "M B"] | None = None
    """Experts that the engine chose for each input token, as `Span.routes`; None: they are not known."""
    is_idle: bool = False
    """True for a batch that is computed for the other ranks' sake, who make one pass more than this one has samples
    for; it adds nothing."""

    @property
    def num_targets(self) -> int:
        """Number of sampled tokens, N: those with a gradient."""
        return len(self.targets)

    @property
    def row_lengths(self) -> list[int]:
        """Targets of each sample, from the host; they sum to N."""
        return [sum(end - start for start, end in runs) for runs in self.runs]

    def num_forwarded(self, layout: Layout) -> int:
        """Return the tokens that pass through the model, padding included."""
        if layout == "packed":
            return len(self.input_ids)
        prompts = (self.prompt_lengths[prompt] for prompt in self.prompt_of_sample)
        return len(self.samples) * max(map(sum, zip(prompts, self.input_lengths, strict=True)))


def token_weights(
    samples: Sequence[Sample], *, average: Average, max_completion_length: int, stream: LossStream = "policy"
) -> list[float]:
    """Return one weight per sample for each of its tokens in a stream, so that the stream's loss is a plain sum.

    With T_i the tokens of the stream in completion i, in all rows of an episode together, over all B completions of all
    ranks and micro-batches of the optimiser step that have any:

        token     1 / sum_i T_i                                 DAPO, arXiv:2503.14476, Eq. 8
        sequence  1 / (B * T_i)                                 GRPO, arXiv:2402.03300, Eq. 3
        constant  1 / (B * max_completion_length)               Dr. GRPO, arXiv:2503.20783, section 3.2
        prompt    1 / (P * sum of T over the prompt's group)    ScaleRL, arXiv:2510.13786, section 3.2
        sequence_sum  1 / B                                     LUSPO, arXiv:2602.05261

    `samples` must hold every sample that counts, also those whose advantage is zero. A masked one is among the B
    completions and the P prompts with T_i = 0; its own weight is 0. Tokens of no stream or another one count nowhere.
    """
    owners = [-1 - row if sample.completion is None else sample.completion for row, sample in enumerate(samples)]
    lengths = [sample.length_in(stream) for sample in samples]
    tokens_of_completion, tokens_of_group = dict[int, int](), dict[int, int]()
    for owner, sample, length in zip(owners, samples, lengths, strict=True):
        if length is not None:
            tokens_of_completion[owner] = tokens_of_completion.get(owner, 0) + length
            tokens_of_group[sample.group] = tokens_of_group.get(sample.group, 0) + length
    count, total = len(tokens_of_completion), sum(tokens_of_completion.values())

    def denominator(owner: int, group: int) -> int:
        if average == "token":
            return total
        if average == "sequence":
            return count * tokens_of_completion[owner]
        if average == "constant":
            return count * max_completion_length
        return count if average == "sequence_sum" else len(tokens_of_group) * tokens_of_group[group]

    return [
        1 / denominator(owner, sample.group) if length else 0.0
        for owner, sample, length in zip(owners, samples, lengths, strict=True)
    ]


def pack(
    samples: Sequence[Sample], weights: Sequence[float], indices: Sequence[int], *, dtype: torch.dtype
) -> MicroBatch:
    """Pack the samples at `indices` into one micro-batch; `weights` has one number per sample of the step."""
    chosen = [samples[index] for index in indices]
    numbers: dict[tuple[int, int], int] = {}
    prompts: list[tuple[int, ...]] = []
    read, media, start = list[Span](), list[Media](), 0
    for sample in chosen:
        if (sample.group, sample.prompt) not in numbers:
            numbers[sample.group, sample.prompt] = len(prompts)
            prompts.append(sample.prompt_ids)
            media += [replace(image, start=start + image.start) for image in sample.prompt_media]
            start += len(sample.prompt_ids)
            read.append(Span(by="prompt", tokens=sample.prompt_ids, routes=sample.prompt_routes))
    inputs = [token for prompt in prompts for token in prompt]
    positions = [position for prompt in prompts for position in range(len(prompt))]
    lengths = list[int]()
    for row, sample in enumerate(chosen):
        input_ids, prompt_length = sample.completion_ids[:-1], len(sample.prompt_ids)
        inputs.extend(input_ids)
        read.append(Span(by="policy", tokens=input_ids, routes=routes_of(sample.spans, len(input_ids))))
        positions.extend(range(prompt_length, prompt_length + len(input_ids)))
        if sample.completion is not None and row and sample.completion == chosen[row - 1].completion:
            lengths[-1] += sample.num_targets
        else:
            lengths.append(sample.num_targets)
    trained = [span for sample in chosen for span in sample.trained]
    span_lengths = torch.tensor([len(span.tokens) for span in trained])
    turns = None
    if any(sample.turns is not None for sample in samples):
        numbered = [turn for sample in chosen for turn in sample.turns or (0,)]
        turns = torch.tensor(numbered).repeat_interleave(span_lengths)
    prompt_lengths = tuple(len(prompt) for prompt in prompts)
    prompt_of_sample = tuple(numbers[sample.group, sample.prompt] for sample in chosen)
    input_lengths, runs = tuple(sample.length - 1 for sample in chosen), tuple(sample.runs for sample in chosen)
    counts = torch.tensor([sample.num_targets for sample in chosen])
    advantages = torch.tensor([value for sample in chosen for value in sample.advantages], dtype=dtype)
    return MicroBatch(
        samples=tuple(indices),
        input_ids=torch.tensor(inputs),
        position_ids=torch.tensor(positions),
        prompt_lengths=prompt_lengths,
        prompt_of_sample=prompt_of_sample,
        input_lengths=input_lengths,
        runs=runs,
        sources=torch.tensor(sources_of(prompt_lengths, prompt_of_sample, input_lengths, runs)),
        lengths=torch.tensor(lengths),
        targets=torch.tensor(tokens_of(trained)),
        weights=torch.tensor([weights[index] for index in indices], dtype=dtype).repeat_interleave(counts),
        advantages=advantages.repeat_interleave(span_lengths),
        rollout_logprobs=torch.tensor([value for span in trained for value in span.logprobs], dtype=dtype),
        turns=turns,
        media=tuple(media),
        routes=_routes_tensor(read),
    )


def _routes_tensor(spans: Sequence[Span]) -> UInt8[Tensor, "M B"] | None:
    """Return the routes of spans end to end; None where none is known."""
    routes, tokens = routes_of(spans), sum(len(span.tokens) for span in spans)
    return torch.frombuffer(bytearray(routes), dtype=torch.uint8).view(tokens, -1) if routes else None


def sources_of(
    prompt_lengths: Sequence[int],
    prompt_of_sample: Sequence[int],
    input_lengths: Sequence[int],
    runs: Sequence[Sequence[tuple[int, int]]],
) -> list[int]:
    """Return `MicroBatch.sources` of these lengths: of each target the token before it, in its prompt for the first."""
    ends = list(itertools.accumulate(prompt_lengths))
    starts = itertools.accumulate(input_lengths, initial=ends[-1])
    sources = list[int]()
    for prompt, first, of_sample in zip(prompt_of_sample, starts, runs, strict=False):  # behind the last none starts
        for start, end in of_sample:
            if start == 0:
                sources.append(ends[prompt] - 1)
            sources.extend(range(first + max(start - 1, 0), first + end - 1))
    return sources


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
    """Mask that shows each completion token its own prompt and the completion up to itself, as far as it looks back."""
    prompt_mask: Bool[Tensor, "1 1 L L"] | None
    """Mask of the prompt block; None: every token sees all of its prompt up to itself."""
    unpad: Int[Tensor, " M"]
    """Place of each packed token in the flattened blocks: prompts, then completions."""


def padded_attention(batch: MicroBatch, window: int | None = None) -> PaddedAttention:
    """Build the index tables of a micro-batch, once for all layers of one window.

    `window`: a token at position p sees those at t with p - window < t <= p; None: all up to its own.
    """
    prompt_lengths, input_lengths = torch.tensor(batch.prompt_lengths), torch.tensor(batch.input_lengths)
    prompt_of_sample = torch.tensor(batch.prompt_of_sample)
    prompt_index, prompt_real = _ragged_index(prompt_lengths, start=0)
    completion_index, completion_real = _ragged_index(input_lengths, start=int(prompt_lengths.sum()))
    length = completion_index.shape[1]
    sees_prompt = prompt_real[prompt_of_sample][:, None, :].expand(-1, length, -1)
    causal, prompt_mask = _looking_back(length, window).expand(len(input_lengths), -1, -1), None
    if window is not None:
        positions = prompt_lengths[prompt_of_sample][:, None, None] + torch.arange(length)[:, None]
        sees_prompt = sees_prompt & (torch.arange(prompt_index.shape[1]) > positions - window)
        prompt_mask = _looking_back(prompt_index.shape[1], window)[None, None]
    real = torch.cat([prompt_real.flatten(), completion_real.flatten()])
    return PaddedAttention(
        prompt_index=prompt_index,
        completion_index=completion_index,
        prompt_of_sample=prompt_of_sample,
        mask=torch.cat([sees_prompt, causal], dim=-1)[:, None],
        prompt_mask=prompt_mask,
        unpad=real.nonzero()[:, 0],
    )


def _looking_back(length: int, window: int | None) -> Bool[Tensor, "T T"]:
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return causal if window is None else causal.triu(1 - window)


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
    input_starts = (int(prompt_lengths.sum()) + input_lengths.cumsum(0) - input_lengths)[:, None]
    prompt_length = prompt_lengths[prompt_of_sample, None]
    row_length = prompt_length + input_lengths[:, None]
    columns = torch.arange(int(row_length.max()))
    real = columns < row_length
    index = torch.where(columns < prompt_length, prompt_starts + columns, input_starts + columns - prompt_length)
    predicts = real & (columns >= prompt_length - 1)
    for row, (runs, length) in enumerate(zip(batch.runs, prompt_length[:, 0].tolist(), strict=True)):
        for (_, end), (start, _) in itertools.pairwise(((0, 0), *runs)):
            if start > end:  # observed tokens, which nothing is to predict
                predicts[row, length + end - 1 : length + start - 1] = False
    return PaddedRows(index=torch.where(real, index, 0), real=real, sources=predicts.flatten().nonzero()[:, 0])
