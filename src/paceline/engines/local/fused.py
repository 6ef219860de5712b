"""Fused decoder: next-token logits of Llama-like models in few operations, each prompt computed and stored once.

S rows, P prompts, L prompt length, T tokens computed, H query heads, K key/value heads, D head width, W width of the
model, V vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from paceline.engines.local.attention import Context, Rotation, SharedAttention, heads_of, rotation_of
from paceline.engines.local.decoder import Decoder, rounded_up
from paceline.engines.local.grid import TILE, GridAttention, whole_tiles
from paceline.engines.local.operations import choose_kernels
from paceline.engines.local.tables import TableAttention
from paceline.engines.local.weights import PreparedLayer, prepared_weights
from paceline.kernels.cpu.decoding import CpuDecodingKernels
from paceline.models.routing import noted_routes

PREFILL_TOKENS = 8192
"""Prompt tokens computed at once, at most (one longer prompt is computed alone): memory only."""
KEPT_BYTES = 64 * 2**20
"""Memory for projections of tokens that prompts begin with, kept for prompts that are admitted later."""


class FusedDecoder(Decoder):
    """A `Decoder` that reads the model's weights at each `begin` and `reread`, so that it never sees stale ones."""

    refills = True

    def __init__(
        self, model: PreTrainedModel, dtype: torch.dtype, native: CpuDecodingKernels | None, *, float8: bool = False
    ) -> None:
        """`native`: this machine's compiled kernels; None: torch's operations. `float8`: layers are in eight bits."""
        self._model, self._heads = model, heads_of(model)
        self._kernels = choose_kernels(model.device, dtype, native, float8=float8)

    @override
    def begin(self, num_rows: int, max_length: int) -> None:
        self._weights = prepared_weights(self._model, self._kernels)
        self._forget()
        like = torch.empty(0, dtype=self._kernels.residual_dtype, device=self._model.device)
        self._attention = self._new_attention(num_rows, rotation_of(self._model, whole_tiles(max_length), like))

    def _new_attention(self, num_rows: int, rotation: Rotation) -> SharedAttention:
        kernels, sizes = self._kernels, (num_rows, len(self._weights.layers), self._heads, rotation)
        if kernels.native is None:
            return GridAttention(*sizes)
        return TableAttention(*sizes, dtype=kernels.dtype, kernels=kernels.native)

    @override
    def reread(self) -> None:
        del self._weights  # first: no two copies at a time
        self._weights = prepared_weights(self._model, self._kernels)
        self._forget()

    def _forget(self) -> None:
        self._latest: Sequence[int] = ()
        """First prompt of the last admission, with which the next one is compared."""
        self._kept = [torch.zeros(0) for _ in self._weights.layers]
        """Queries, keys and values by layer of that prompt's first tokens, as many as others began with."""

    @override
    def end(self) -> None:
        del self._weights, self._attention, self._kept

    @override
    @torch.inference_mode()
    def release(self, rows: Sequence[int]) -> None:
        self._attention.release(rows)

    @override
    @torch.inference_mode()
    def park(self, rows: Sequence[int]) -> list[Context]:
        return self._attention.park(rows)

    @override
    def resume(self, contexts: Sequence[Context], rows: Sequence[int]) -> None:
        self._attention.resume(contexts, rows)

    @override
    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        self._attention.compact(keep, alive)

    @override
    @torch.inference_mode()
    def admit(self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Float[Tensor, "P V"]:
        # Prompts of similar length should be neighbours: they are padded to one length.
        slots = self._attention.take_slots([len(prompt) for prompt in prompts], rows)
        longest = max(len(prompt) for prompt in prompts)
        at_once = max(1, PREFILL_TOKENS // longest)
        parts = [
            self._prefill(prompts[first : first + at_once], slots[first : first + at_once])
            for first in range(0, len(prompts), at_once)
        ]
        return self._kernels.linear(torch.cat(parts), self._weights.head)

    def _prefill(self, prompts: Sequence[Sequence[int]], slots: Int[Tensor, " P"]) -> Float[Tensor, "P W"]:
        # Sizes are rounded because oneDNN compiles a kernel for each new one, for about a millisecond.
        count, length = rounded_up(len(prompts)), whole_tiles(max(len(prompt) for prompt in prompts))
        ids = torch.zeros(count, length, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        # What all begin with, such as a system message, is computed once, and what earlier prompts have begun with is
        # known: attention is not asked for it again.
        shared = shared_tokens(prompts if len(prompts) > 1 else [*prompts, self._latest])
        known = min(shared, shared_tokens([prompts[0], self._latest]), len(self._kept[0]))
        self._latest = prompts[0]
        unshared = length - shared
        last = torch.tensor([row * unshared + len(prompt) - 1 for row, prompt in enumerate(prompts)]) - known
        residual, normed = self._embedded(once(ids[..., None], shared).squeeze(-1)[known:].to(slots.device))
        for index, layer in enumerate(self._weights.layers):
            qkv = self._with_known(index, self._kernels.linear(normed, layer.qkv), known, shared)
            mixed = self._attention.of_prompts(in_each(qkv, shared, count), index, layer.qk_norm, slots, known)
            mixed = once(mixed, shared - known)
            if index == len(self._weights.layers) - 1:
                residual, mixed = (part.index_select(0, last.to(slots.device)) for part in (residual, mixed))
            normed = self._after_attention(residual, mixed, layer)
        return normed

    def _with_known(
        self, layer: int, qkv: Float[Tensor, "T (H+2K)*D"], known: int, shared: int
    ) -> Float[Tensor, "T+known (H+2K)*D"]:
        """Prepend a layer's known first tokens to the computed ones, and keep those that are shared."""
        if known:
            qkv = torch.cat((self._kept[layer][:known], qkv))
        most = KEPT_BYTES // (len(self._kept) * qkv[0].nbytes) // TILE * TILE
        self._kept[layer] = qkv[: min(shared, most)].clone()
        return qkv

    @override
    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " S"]) -> Float[Tensor, "S V"]:
        self._attention.begin_step()
        residual, normed = self._embedded(tokens)
        for index, layer in enumerate(self._weights.layers):
            mixed = self._attention.of_step(self._kernels.linear(normed, layer.qkv), index, layer.qk_norm)
            normed = self._after_attention(residual, mixed, layer)
        self._attention.end_step()
        return self._kernels.linear(normed, self._weights.head)

    @override
    def step_routes(self) -> UInt8[Tensor, "S B"] | None:
        return noted_routes(self._model)

    def _embedded(self, tokens: Int[Tensor, " N"]) -> tuple[Float[Tensor, "N W"], Float[Tensor, "N W"]]:
        """Return the residual stream after the embedding, and its norm for the first layer."""
        residual = F.embedding(tokens, self._weights.embedding).to(self._kernels.residual_dtype)
        return residual, self._kernels.add_norm(residual, None, self._weights.first_norm, self._weights.norm_eps)

    def _after_attention(
        self, residual: Float[Tensor, "N W"], mixed: Float[Tensor, "N H*D"], layer: PreparedLayer
    ) -> Float[Tensor, "N W"]:
        """Compute the rest of a layer: update the residual stream, and return its norm for the next layer."""
        kernels, eps = self._kernels, self._weights.norm_eps
        normed = kernels.add_norm(residual, kernels.linear(mixed, layer.output), layer.mlp_norm, eps)
        update = kernels.linear(kernels.gated(normed, *layer.gate_up), layer.down)
        return kernels.add_norm(residual, update, layer.next_norm, eps)


def shared_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many first tokens to compute once: whole tiles that all prompts begin with, and never a whole prompt.

    >>> shared_tokens([list(range(20)), [*range(17), 30]]), shared_tokens([[1], [1]]), shared_tokens([[1], []])
    (16, 0, 0)
    """
    first, final = min(map(tuple, prompts)), max(map(tuple, prompts))  # of all pairs these two part first
    most = max(0, min(len(prompt) for prompt in prompts) - 1)
    alike = next((index for index in range(most) if first[index] != final[index]), most)
    return alike // TILE * TILE


def once(each: Shaped[Tensor, "P L X"], shared: int) -> Shaped[Tensor, "T X"]:
    """Return tokens of all prompts with the `shared` first ones once, in front."""
    if not shared:
        return each.flatten(0, 1)
    return torch.cat((each[0, :shared], each[:, shared:].flatten(0, 1)))


def in_each(tokens: Shaped[Tensor, "T X"], shared: int, count: int) -> Shaped[Tensor, "P L X"]:
    """Invert `once`; a view if nothing is shared."""
    rest = tokens[shared:].view(count, -1, tokens.shape[-1])
    return torch.cat((tokens[:shared].expand(count, -1, -1), rest), dim=1) if shared else rest
