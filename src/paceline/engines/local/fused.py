"""Fused decoder: next-token logits of models whose layers have a plan, in few operations, each prompt computed once.

Keys and values of a prompt are stored once for all its rows. A mixer that keeps a state instead computes the prompt
once, too, and each row begins with a copy of the state behind it.

S rows, P prompts, L prompt length, T tokens computed, H query heads, K key/value heads, D head width, W width of the
model, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from paceline.engines.local.attention import (
    AttentionLayer,
    Context,
    SharedAttention,
    Turns,
    attention_layers,
    heads_of,
    rotary_of,
    rotary_tables,
)
from paceline.engines.local.decoder import Decoder, PromptMedia, rounded_up
from paceline.engines.local.grid import TILE, GridAttention, whole_tiles
from paceline.engines.local.mixers import MixerStates, StateMixer
from paceline.engines.local.operations import choose_kernels
from paceline.engines.local.prefill import (
    EnteringFeatures,
    Prefill,
    PromptImages,
    in_each,
    once,
    read_images,
    shared_tokens,
)
from paceline.engines.local.tables import TableAttention
from paceline.engines.local.weights import PreparedAttention, PreparedBlock, prepared_weights
from paceline.kernels.cpu.decoding import CpuDecodingKernels
from paceline.kernels.logprobs import PLAIN, HeadRule
from paceline.models.head import decoder_of
from paceline.models.routing import noted_routes
from paceline.types import UNKNOWN_ROUTE

if TYPE_CHECKING:
    from paceline.models.vision.tower import Vision

PREFILL_TOKENS = 8192
"""Prompt tokens computed at once, at most (one longer prompt is computed alone): memory only."""
KEPT_BYTES = 64 * 2**20
"""Memory for projections of tokens that prompts begin with, kept for prompts that are admitted later."""


class FusedDecoder(Decoder):
    """A `Decoder` that reads the model's weights at each `begin` and `reread`, so that it never sees stale ones."""

    refills = True

    def __init__(
        self,
        model: PreTrainedModel,
        dtype: torch.dtype,
        native: CpuDecodingKernels | None,
        *,
        head: HeadRule = PLAIN,
        float8: bool = False,
        vision: "Vision | None" = None,
    ) -> None:
        """`native`: this machine's compiled kernels; None: torch's operations. `float8`: layers are in eight bits.

        `head` is what the model makes logits by, of its output embedding's; `vision` reads the images of prompts.
        """
        self._model, self._heads, self._head, self._vision = model, heads_of(model), head, vision
        self._kernels = choose_kernels(model.device, dtype, native, float8=float8)

    @override
    def begin(self, num_rows: int, max_length: int) -> None:
        self._weights = prepared_weights(self._model, self._kernels, self._head)
        self._forget()
        like = torch.empty(0, dtype=self._kernels.residual_dtype, device=self._model.device)
        self._attention = self._new_attention(num_rows, attention_layers(self._model, whole_tiles(max_length), like))
        self._states = [mixer.new_states(num_rows) for mixer in self._weights.state_mixers]
        """States of the rows, by mixer."""

    def _new_attention(self, num_rows: int, layers: Sequence[AttentionLayer]) -> SharedAttention:
        kernels, sizes = self._kernels, (num_rows, layers, self._heads)
        if kernels.native is None:
            return GridAttention(*sizes)
        return TableAttention(*sizes, dtype=kernels.dtype, kernels=kernels.native)

    @override
    def reread(self) -> None:
        del self._weights  # first: no two copies at a time
        self._weights = prepared_weights(self._model, self._kernels, self._head)
        self._forget()

    def _forget(self) -> None:
        self._latest: Sequence[int] = ()
        """First prompt of the last admission, with which the next one is compared."""
        self._num_kept = 0
        """How many of that prompt's first tokens are known: as many as others began with."""
        self._kept = [torch.zeros(0) for _ in self._weights.attention]
        """Their queries, keys and values, by layer with attention."""
        self._kept_states: list[MixerStates] = [() for _ in self._weights.state_mixers]
        """States behind them, by mixer."""

    @override
    def end(self) -> None:
        del self._weights, self._attention, self._kept, self._states, self._kept_states

    @override
    @torch.inference_mode()
    def release(self, rows: Sequence[int]) -> None:
        self._attention.release(rows)

    @override
    @torch.inference_mode()
    def park(self, rows: Sequence[int]) -> list[Context]:
        return [
            replace(context, layers=(*context.layers, *self._states_of(row)))
            for row, context in zip(rows, self._attention.park(rows), strict=True)
        ]

    def _states_of(self, row: int) -> tuple[MixerStates, ...]:
        return tuple(tuple(state[row].clone() for state in states) for states in self._states)

    @override
    def resume(self, contexts: Sequence[Context], rows: Sequence[int]) -> None:
        self._attention.resume(contexts, rows)
        for row, context in zip(rows, contexts, strict=True):
            for states, kept in zip(self._states, context.layers[len(self._kept) :], strict=True):
                for state, values in zip(states, kept, strict=True):
                    state[row] = values

    @override
    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        self._attention.compact(keep, alive)
        self._states = [tuple(state.index_select(0, keep) for state in states) for states in self._states]

    @override
    @torch.inference_mode()
    def admit(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], media: Sequence[PromptMedia] = ()
    ) -> Float[Tensor, "P V"]:
        # Prompts of similar length should be neighbours: they are padded to one length.
        read = self._read_images(prompts, media)
        shifts = None if read is None else read.shifts
        slots = self._attention.take_slots([len(prompt) for prompt in prompts], rows, shifts)
        self._prompt_routes = list[Tensor]()
        longest = max(len(prompt) for prompt in prompts)
        at_once = max(1, PREFILL_TOKENS // longest)
        spans = [slice(first, first + at_once) for first in range(0, len(prompts), at_once)]
        return self._logits(
            torch.cat(
                [
                    self._prefill(prompts[span], slots[span], rows[span], None if read is None else read.part(span))
                    for span in spans
                ]
            )
        )

    def _read_images(self, prompts: Sequence[Sequence[int]], media: Sequence[PromptMedia]) -> PromptImages | None:
        """Find out what images mean for the places of tokens; None: no prompt has any."""
        if self._vision is None or not any(media):
            return None
        return read_images(self._vision, prompts, media)

    def _prefill(
        self,
        prompts: Sequence[Sequence[int]],
        slots: Int[Tensor, " P"],
        rows: Sequence[Sequence[int]],
        images: PromptImages | None,
    ) -> Float[Tensor, "P W"]:
        # Sizes are rounded because oneDNN compiles a kernel for each new one, for about a millisecond.
        count, length = rounded_up(len(prompts)), whole_tiles(max(len(prompt) for prompt in prompts))
        ids = torch.zeros(count, length, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        # What all begin with, such as a system message, is computed once, and what earlier prompts have begun with is
        # known: attention is not asked for it again.
        alike = prompts if images is None else images.compared
        shared = shared_tokens(alike if len(alike) > 1 else [*alike, self._latest])
        known = min(shared, shared_tokens([alike[0], self._latest]), self._num_kept)
        if known < self._num_kept and self._states:
            known = 0  # states are known at one place only
        self._latest = alike[0]
        unshared = length - shared
        prefill = Prefill(
            prompts=prompts,
            rows=rows,
            slots=slots,
            count=count,
            shared=shared,
            known=known,
            turns=None if images is None else self._turns(images, count, length),
        )
        entering = None if images is None else images.entering(unshared=unshared, shared=shared, known=known)
        ends = [row * unshared + len(prompt) - 1 - known for row, prompt in enumerate(prompts)]
        last = torch.tensor(ends, device=slots.device)
        residual, normed = self._embedded(once(ids[..., None], shared).squeeze(-1)[known:].to(slots.device), entering)
        self._num_kept = self._shared_to_keep(shared)
        blocks = self._weights.blocks
        last_mixer = max(number for number, block in enumerate(blocks) if block.mixer is not None)
        states, layer = iter(range(len(self._states))), 0
        for number, block in enumerate(blocks):
            wanted = last if number == last_mixer else None
            update = None
            if isinstance(block.mixer, PreparedAttention):
                update = self._attended(normed, block.mixer, prefill, wanted)
            elif block.mixer is not None:
                update = self._mixed(normed, block.mixer, next(states), prefill, wanted)
            if wanted is not None:
                residual, normed = residual.index_select(0, wanted), normed.index_select(0, wanted)
                entering = None if entering is None else entering.among(wanted)
            level = None
            if entering is not None and block.feed_forwards and layer < len(entering.levels):
                level, layer = (entering.rows, entering.levels[layer]), layer + 1
            normed = self._added(residual, normed, update, block, level)
        routes = noted_routes(self._model, last)
        if routes is not None:  # of known tokens, which were not computed, they are unknown
            each = F.pad(in_each(routes, shared - known, count), (0, 0, known, 0), value=UNKNOWN_ROUTE[0])
            self._prompt_routes += [row[: len(prompt)] for row, prompt in zip(each, prompts, strict=False)]
        return normed

    def _shared_to_keep(self, shared: int) -> int:
        """Return of how many shared first tokens projections and states are kept."""
        token = (self._heads.query + 2 * self._heads.kv) * self._heads.width * self._kernels.dtype.itemsize
        most = KEPT_BYTES // (len(self._kept) * token) // TILE * TILE
        return 0 if self._states and shared > most else min(shared, most)

    def _attended(
        self, normed: Float[Tensor, "T W"], mixer: PreparedAttention, prefill: "Prefill", wanted: Tensor | None
    ) -> Float[Tensor, "N W"]:
        """Compute attention of prompts, of all computed tokens or of the wanted ones."""
        number, known, shared = mixer.number, prefill.known, prefill.shared
        qkv, gates = self._projected(normed, mixer)
        if known:
            qkv = torch.cat((self._kept[number][:known], qkv))
        self._kept[number] = qkv[: self._num_kept].clone()
        each = in_each(qkv, shared, prefill.count)
        of_prompts = self._attention.of_prompts
        mixed = once(of_prompts(each, number, mixer.weights, prefill.slots, known, prefill.turns), shared - known)
        if gates is not None:
            mixed = mixed * gates.sigmoid()
        return self._kernels.linear(mixed if wanted is None else mixed.index_select(0, wanted), mixer.output)

    def _projected(
        self, normed: Float[Tensor, "N W"], mixer: PreparedAttention
    ) -> tuple[Float[Tensor, "N (H+2K)*D"], Float[Tensor, "N H*D"] | None]:
        """Return queries, keys and values, and the output's gates if there are any."""
        qkv = self._kernels.linear(normed, mixer.qkv)
        if not mixer.gated:
            return qkv, None
        gates = self._heads.query * self._heads.width
        return qkv[:, :-gates].contiguous(), qkv[:, -gates:]

    def _mixed(
        self, normed: Float[Tensor, "T W"], mixer: StateMixer, number: int, prefill: "Prefill", wanted: Tensor | None
    ) -> Float[Tensor, "N W"]:
        """Mix tokens of prompts by states, and give each row a copy of the state behind its prompt."""
        shared, known = prefill.shared, prefill.known
        states = self._kept_states[number] if known else mixer.new_states(1)
        parts = []
        if shared > known:
            first, states = mixer.of_prompts(normed[None, : shared - known], torch.tensor([shared - known]), states)
            parts.append(first[0])
        if self._num_kept:
            self._kept_states[number] = states
        forked = tuple(state.expand(prefill.count, *state.shape[1:]) for state in states)
        rest = normed[shared - known :].view(prefill.count, -1, normed.shape[-1])
        mixed, ends = mixer.of_prompts(rest, prefill.unshared_lengths, forked)
        for state, end in zip(self._states[number], ends, strict=True):
            state.index_copy_(0, prefill.each_row, end.index_select(0, prefill.prompt_of_row).to(state.dtype))
        mixed = torch.cat([*parts, mixed.flatten(0, 1)])
        return mixed if wanted is None else mixed.index_select(0, wanted)

    @override
    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " S"]) -> Float[Tensor, "S V"]:
        self._attention.begin_step()
        residual, normed = self._embedded(tokens)
        states = iter(self._states)
        for block in self._weights.blocks:
            mixer, update = block.mixer, None
            if isinstance(mixer, PreparedAttention):
                qkv, gates = self._projected(normed, mixer)
                mixed = self._attention.of_step(qkv, mixer.number, mixer.weights)
                update = self._kernels.linear(mixed if gates is None else mixed * gates.sigmoid(), mixer.output)
            elif mixer is not None:
                update = mixer.of_step(normed, next(states))
            normed = self._added(residual, normed, update, block)
        self._attention.end_step()
        return self._logits(normed)

    def _logits(self, normed: Float[Tensor, "N W"]) -> Float[Tensor, "N V"]:
        logits, cap = self._kernels.linear(normed, self._weights.head), self._head.cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    @override
    def prompt_routes(self) -> Sequence[UInt8[Tensor, "L B"] | None]:
        return self._prompt_routes

    @override
    def step_routes(self) -> UInt8[Tensor, "S B"] | None:
        return noted_routes(self._model)

    def _turns(self, images: PromptImages, count: int, length: int) -> Turns | None:
        """Return what rotates each token of prompts where its position is not its number; None: it is."""
        positions = images.padded_positions(count, length)
        if positions is None:
            return None
        like = torch.empty(0, dtype=self._kernels.residual_dtype, device=self._model.device)
        cosine, sine = rotary_tables(rotary_of(decoder_of(self._model)), positions, like)
        return cosine[:, :, None], sine[:, :, None]

    def _embedded(
        self, tokens: Int[Tensor, " N"], entering: EnteringFeatures | None = None
    ) -> tuple[Float[Tensor, "N W"], Float[Tensor, "N W"]]:
        """Return the residual stream after the embedding, and its norm for the first block."""
        if entering is not None:  # some image tokens have no embedding of their own
            tokens = tokens.index_fill(0, entering.rows, 0)
        residual = F.embedding(tokens, self._weights.embedding).to(self._kernels.residual_dtype)
        if self._weights.multiplier != 1:
            residual.mul_(self._weights.multiplier)
        if entering is not None:
            residual.index_copy_(0, entering.rows, entering.features.to(residual.dtype))
        if self._weights.centred:
            residual.sub_(residual.mean(-1, keepdim=True))
        return residual, self._add_norm(residual, None, self._weights.first_norm)

    def _added(
        self,
        residual: Float[Tensor, "N W"],
        normed: Float[Tensor, "N W"],
        update: Tensor | None,
        block: PreparedBlock,
        level: tuple[Int[Tensor, " M"], Float[Tensor, "M W"]] | None = None,
    ) -> Float[Tensor, "N W"]:
        """Add to the residual stream what a block's mixer gives, and its feed-forward layers of `normed`.

        `level`: rows, and what is added to them too. Returns the norm for the next block.
        """
        for feed_forward in block.feed_forwards:
            update = feed_forward(normed) if update is None else update + feed_forward(normed)
        assert update is not None
        if block.post_norm is not None:
            update = self._kernels.normed(update, block.post_norm, self._weights.norm_eps)
        if block.multiplier != 1:
            update = update * block.multiplier
        if level is not None:
            update = update.index_add(0, level[0], level[1].to(update.dtype))
        if self._weights.centred:
            update = update - update.mean(-1, keepdim=True)
        return self._add_norm(residual, update, block.next_norm)

    def _add_norm(
        self, residual: Float[Tensor, "N W"], update: Tensor | None, scale: Tensor | None
    ) -> Float[Tensor, "N W"]:
        """Add to the residual stream in place; return its norm, or itself where the next block has none."""
        if scale is not None:
            return self._kernels.add_norm(residual, update, scale, self._weights.norm_eps)
        if update is not None:
            residual.add_(update)
        return residual.to(self._kernels.dtype)
