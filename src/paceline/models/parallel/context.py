"""Context parallelism: a rank has every n-th token of a micro-batch, and in attention all of them for 1/n of the heads.

                          rank 0                       rank 1
    between attentions    tokens 0 2 4, all heads      tokens 1 3 -, all heads
    in attention          tokens 0 to 4, heads 0 1     tokens 0 to 4, heads 2 3

Source: DeepSpeed-Ulysses, arXiv:2309.14509, section 3.1. It gives ranks runs of tokens; in turn, each has as many
of the prompts' tokens, which need no logits, and of the completions', which do.

M tokens, n ranks, m = M / n rounded up: a rank with a token less has token 0 in its place, which nobody reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedConfig
from typing_extensions import override

from paceline.errors import ModelError
from paceline.models.parallel.exchange import Exchange
from paceline.models.parallel.process_group import lost
from paceline.models.parallel.ranks import Tokens
from paceline.models.rows import to_device
from paceline.objective.micro_batches import MicroBatch, sources_of


@dataclass(frozen=True, kw_only=True)
class SomeTokens(Tokens):
    """`Tokens` of a rank that has every n-th one between attentions."""

    exchange: Exchange
    """With the ranks that have the other tokens."""
    mine: Int[Tensor, " N_here"]
    """Indices of this rank's targets among all N."""
    places: Int[Tensor, " N"]
    """Where each target stands in the ranks' targets, laid end to end and as long as the longest."""
    longest: int
    """Targets of the rank with the most."""

    @override
    def join(self, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor]:
        return cast(tuple[Tensor, Tensor], _Joined.apply(logprobs, entropy, self))  # type: ignore[no-untyped-call]


class _Joined(torch.autograd.Function):
    """Every rank has the gradient of the same loss of all targets, and takes what is its own."""

    @staticmethod
    def forward(ctx: Any, logprobs: Tensor, entropy: Tensor, tokens: SomeTokens) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # an entropy that nothing is asked of must cost nothing
        ctx.mine = tokens.mine
        own = pad(torch.stack([logprobs, entropy]), (0, tokens.longest - len(logprobs)))
        parts = [torch.empty_like(own) for _ in range(tokens.exchange.ranks)]
        with lost(f"rank {dist.get_rank()} was exchanging logprobs"):
            dist.all_gather(parts, own, group=tokens.exchange.group)
        joined = torch.cat(parts, dim=1)[:, tokens.places]
        return joined[0], joined[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        logprobs, entropy = (None if one is None else one[ctx.mine] for one in gradients)
        return logprobs, entropy, None


def some_tokens(batch: MicroBatch, group: dist.ProcessGroup) -> SomeTokens:
    """What of a micro-batch is this rank's; lengths are read from the host, never from the device."""
    ranks, place, device = dist.get_world_size(group), dist.get_rank(group), batch.input_ids.device
    sources = sources_of(batch.prompt_lengths, batch.prompt_of_sample, batch.input_lengths, batch.runs)

    def every(tokens: Int[Tensor, " M"]) -> Int[Tensor, " m"]:
        return pad(tokens, (0, -len(tokens) % ranks))[place::ranks]

    mine, places, longest = deal(sources, ranks, place)
    own = to_device(torch.tensor([sources[target] // ranks for target in mine], dtype=torch.int64), device)
    targets = to_device(torch.tensor(mine, dtype=torch.int64), device)
    return SomeTokens(
        batch=replace(
            batch,
            input_ids=every(batch.input_ids),
            position_ids=every(batch.position_ids),
            sources=own,
            targets=batch.targets[targets],
        ),
        exchange=Exchange(group=group, tokens=len(batch.input_ids)),
        mine=targets,
        places=to_device(torch.tensor(places), device),
        longest=longest,
    )


def deal(sources: Sequence[int], ranks: int, place: int) -> tuple[list[int], list[int], int]:
    """Targets of the rank at this place; where each target stands among those of all ranks, each padded to the longest;
    how many the longest are.

    >>> deal([1, 2, 3, 1], ranks=2, place=1)
    ([0, 2, 3], [3, 0, 4, 5], 3)
    """
    dealt, numbers = [list[int]() for _ in range(ranks)], list[int]()
    for target, source in enumerate(sources):
        numbers.append(len(dealt[source % ranks]))
        dealt[source % ranks].append(target)
    longest = max(map(len, dealt))
    places = [source % ranks * longest + number for source, number in zip(sources, numbers, strict=True)]
    return dealt[place], places, longest


def context_sizes(config: PreTrainedConfig, *, tensor: int = 1) -> list[int]:
    """What divides the attention heads of a tensor rank, and divides its key/value heads or is a multiple of them."""
    query, key_value = _heads(config, tensor)
    return [
        size for size in range(1, query + 1) if query % size == 0 and (key_value % size == 0 or size % key_value == 0)
    ]


def check_context_size(config: PreTrainedConfig, size: int, *, tensor: int = 1) -> None:
    """Refuse a number of ranks that heads cannot be dealt out to, with a ModelError that names the nearest that do."""
    sizes = context_sizes(config, tensor=tensor)
    if size in sizes:
        return
    query, key_value = _heads(config, tensor)
    near = [one for one in sizes if one < size][-1:] + [one for one in sizes if one > size][:1]
    where = f" on each of {tensor} tensor ranks" if tensor > 1 else ""
    raise ModelError(
        f"a context size of {size} must divide what the model has{where}: {query} attention heads, and divide or be a "
        f"multiple of its {key_value} key/value heads; the nearest that does is {' or '.join(map(str, near))}"
    )


def _heads(config: PreTrainedConfig, tensor: int) -> tuple[int, int]:
    """Attention and key/value heads of one of so many tensor ranks, which may share a key/value head."""
    text = config.get_text_config()
    query = text.num_attention_heads
    key_value = getattr(text, "num_key_value_heads", None) or query
    if not isinstance(query, int) or not isinstance(key_value, int):
        raise ModelError(
            f"a {text.model_type} model cannot be dealt out over a context axis, because its layers differ in their "
            "heads; use a context size of 1"
        )
    return query // tensor, max(1, key_value // tensor)
