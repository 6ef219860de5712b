"""Plain decoder: any causal language model of transformers, through its own forward and its own cache.

Slower than the fused decoder and free of its assumptions. P prompts, S rows, V vocabulary. Not in inference mode:
some rotary modules keep tensors that they make on the way, and training must be able to use these.
"""

import inspect
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from typing_extensions import override

from paceline.engines import Sampling
from paceline.engines.local.decoder import Decoder
from paceline.engines.sampling import draw
from paceline.models.plain_forward import computing_in


class PlainDecoder(Decoder):
    """A `Decoder` that computes each prompt once, left-padded, and copies its cache for each of its rows."""

    refills = False

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        self._last_logits_only = "logits_to_keep" in inspect.signature(model.forward).parameters

    @override
    def begin(self, num_rows: int, max_length: int) -> None:
        self._cache = DynamicCache(config=self._model.config)

    @override
    def end(self) -> None:
        del self._cache, self._mask

    @override
    def reread(self) -> None:
        # the model itself computes every token.
        pass

    @override
    def release(self, rows: Sequence[int]) -> None:
        # nothing is shared here, `compact` is enough.
        pass

    @override
    @torch.no_grad()
    def admit(self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Float[Tensor, "P V"]:
        # Rows must be numbered in the order of the prompts, as they are after `begin`.
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        self._mask = mask.to(self._model.device)
        logits = self._forward(ids.to(self._model.device), (self._mask.cumsum(-1) - 1).clamp_(min=0))
        counts = torch.tensor([len(members) for members in rows], device=self._model.device)
        self._select(torch.repeat_interleave(counts))
        return logits

    @override
    def draw_next(
        self, tokens: Int[Tensor, " S"], uniform: Float[Tensor, " S"], sampling: Sampling
    ) -> tuple[Int[Tensor, " S"], Float[Tensor, " S"]]:
        return draw(self.step(tokens), uniform, sampling)

    @override
    @torch.no_grad()
    def step(self, tokens: Int[Tensor, " S"]) -> Float[Tensor, "S V"]:
        self._mask = torch.cat((self._mask, self._mask.new_ones(len(tokens), 1)), dim=-1)
        return self._forward(tokens[:, None], self._mask.sum(-1, keepdim=True) - 1)

    @override
    @torch.no_grad()
    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        self._select(keep)

    def _select(self, rows: Int[Tensor, " R"]) -> None:
        # what beams are reordered by: caches of every kind have it, also those that keep states and no keys
        self._cache.reorder_cache(rows)  # type: ignore[arg-type]  # LongTensor is a Tensor of int64
        self._mask = self._mask.index_select(0, rows)

    def _forward(self, ids: Int[Tensor, "N L"], positions: Int[Tensor, "N L"]) -> Float[Tensor, "N V"]:
        options = {"logits_to_keep": 1} if self._last_logits_only else {}
        with computing_in(self._model, self._dtype):
            output = self._model(
                input_ids=ids,
                attention_mask=self._mask,
                position_ids=positions,
                past_key_values=self._cache,
                use_cache=True,
                **options,
            )
        logits: Tensor = output.logits[:, -1]
        return logits
