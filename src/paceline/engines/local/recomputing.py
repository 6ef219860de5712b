"""Recomputing decoder: any causal language model of transformers, whatever cache it has, by no cache at all.

The slowest decoder: each token costs a forward pass over the whole context of its row. P prompts, S rows, V vocabulary.
"""

import inspect
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from paceline.engines import Sampling
from paceline.engines.local.decoder import Decoder
from paceline.engines.sampling import draw
from paceline.models.plain_forward import computing_in

TOKENS_AT_ONCE = 8192
"""Limit on the tokens of contexts computed together (a longer context is computed alone); affects memory only."""


class RecomputingDecoder(Decoder):
    """A `Decoder` that computes contexts of one length together, so that nothing is padded."""

    refills = False

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        self._last_logits_only = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._contexts: list[list[int]] = []

    @override
    def begin(self, num_rows: int, max_length: int) -> None:
        pass

    @override
    def end(self) -> None:
        self._contexts = []

    @override
    def reread(self) -> None:
        # the model itself computes every token.
        pass

    @override
    def release(self, rows: Sequence[int]) -> None:
        # nothing is shared here, `compact` is enough.
        pass

    @override
    def admit(self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Float[Tensor, "P V"]:
        # Rows must be numbered in the order of the prompts, as they are after `begin`.
        self._contexts = [list(prompt) for prompt, members in zip(prompts, rows, strict=True) for _ in members]
        return self._last_logits(prompts)

    @override
    def draw_next(
        self, tokens: Int[Tensor, " S"], uniform: Float[Tensor, " S"], sampling: Sampling
    ) -> tuple[Int[Tensor, " S"], Float[Tensor, " S"]]:
        return draw(self.step(tokens), uniform, sampling)

    @override
    def step(self, tokens: Int[Tensor, " S"]) -> Float[Tensor, "S V"]:
        for context, token in zip(self._contexts, tokens.tolist(), strict=True):
            context.append(token)
        return self._last_logits(self._contexts)

    @override
    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        self._contexts = [self._contexts[row] for row in keep.tolist()]

    @torch.no_grad()
    def _last_logits(self, contexts: Sequence[Sequence[int]]) -> Float[Tensor, "N V"]:
        """After the last token of each context."""
        members = dict[int, list[int]]()
        for place, context in enumerate(contexts):
            members.setdefault(len(context), []).append(place)
        parts = list[Tensor]()
        for length, places in members.items():
            ids = torch.tensor([contexts[place] for place in places], device=self._model.device)
            parts += [self._forward(some) for some in ids.split(max(1, TOKENS_AT_ONCE // length))]
        order = torch.tensor([place for places in members.values() for place in places])
        return torch.cat(parts).index_select(0, order.argsort().to(self._model.device))

    def _forward(self, ids: Int[Tensor, "N L"]) -> Float[Tensor, "N V"]:
        options = {"logits_to_keep": 1} if self._last_logits_only else {}
        with computing_in(self._model, self._dtype):
            logits: Tensor = self._model(input_ids=ids, use_cache=False, **options).logits[:, -1]
        return logits
