"""The interface between scheduling (which rows are in use, what was sampled) and decoding (tokens in, logits out).

Two decoders here run any causal language model of transformers by its own forward pass: with its cache, or without one.
They are slower than the fused decoder and make no assumptions. They do not run in inference mode: some rotary modules
keep tensors that they make on the way, and training must be able to use these. P prompts, S rows, V vocabulary.
"""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from typing_extensions import override

from paceline.engines import Sampling
from paceline.engines.local.attention import Context
from paceline.engines.sampling import draw
from paceline.kernels.logprobs import PLAIN
from paceline.models.head import decoder_of, measured_head
from paceline.models.plain_forward import computing_in
from paceline.models.routing import noted_routes
from paceline.types import Media

if TYPE_CHECKING:
    from paceline.models.vision.tower import Vision

PromptMedia = tuple[Media, ...]
"""Images of a prompt."""
TOKENS_AT_ONCE = 8192
"""Tokens of contexts that `RecomputingDecoder` computes together, at most (a longer context is computed alone)."""


class Decoder(Protocol):
    """Computes next-token logits for rows that share prompts. Knows nothing of sampling, keys or stopping.

    A row is the batch index of one completion. Free rows are computed too, and never read.
    """

    refills: bool
    """True: prompts may be admitted while other rows are in use, and rows parked and resumed. False: prompts enter only
    when all rows are free, and no row is parked."""
    runs_ahead: bool = False
    """True: a step runs on the device, and the next one may start before the host has read what it drew. A row may then
    take one token more than its completion has."""
    least_rows: int = 1
    """Smallest batch; fewer rows would be no faster."""

    def begin(self, num_rows: int, max_length: int) -> None:
        """Make room for `num_rows` rows whose prompt and completion have at most `max_length` tokens together."""

    def admit(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], media: Sequence[PromptMedia] = ()
    ) -> Float[Tensor, "P V"]:
        """Compute prompts, which `rows[i]` continue; return the logits after each prompt.

        `media` are the images of each prompt; (): none has any.
        """

    def step(self, tokens: Int[Tensor, " S"]) -> Float[Tensor, "S V"]:
        """Append one token to every row; return the logits after it."""

    def draw_next(
        self, tokens: Int[Tensor, " S"], uniform: Float[Tensor, " S"], sampling: Sampling
    ) -> tuple[Int[Tensor, " S"], Float[Tensor, " S"]]:
        """Append one token to every row, and draw the next ones from the logits after it."""
        return draw(self.step(tokens), uniform, sampling)

    def step_routes(self) -> UInt8[Tensor, "S B"] | None:
        """Return the routes of the tokens that the latest step appended; None: they are not known."""
        return None

    def prompt_routes(self) -> Sequence[UInt8[Tensor, "L B"] | None]:
        """Return the routes of each prompt of the latest admission; empty: they are not known."""
        return ()

    def reread(self) -> None:
        """Use the model's changed weights from now on. The cache stays as it is."""
        return

    def park(self, rows: Sequence[int]) -> list[Context]:
        """Copy the cache of these rows' prompts and own tokens, so that other completions can take the rows."""
        raise TypeError(f"{type(self).__name__} parks no rows")

    def resume(self, contexts: Sequence[Context], rows: Sequence[int]) -> None:
        """Let each of these free rows continue a parked context."""
        raise TypeError(f"{type(self).__name__} parks no rows")

    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        """Keep these rows, in this order; the first `alive` of them are in use.

        Behind those, `keep` may repeat rows, which makes more free ones.
        """

    def release(self, rows: Sequence[int]) -> None:
        """Free rows whose completions have ended."""
        return

    def end(self) -> None:
        """Free the caches."""


def rounded_up(count: int) -> int:
    """Return the least of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... (2^n and 3 * 2^n) that is at least `count`.

    Batches are rounded so that kernels meet few different shapes.

    >>> [rounded_up(count) for count in (1, 5, 13, 100, 129)]
    [1, 6, 16, 128, 192]
    """
    power = 1 << max(0, count - 1).bit_length()
    three_quarters = power // 4 * 3
    return three_quarters if three_quarters >= count else power


class _ModelDecoder(Decoder):
    """Base of decoders that run the model itself."""

    refills = False

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, vision: "Vision | None" = None) -> None:
        """`vision` reads the images of prompts; None: they are text."""
        self._model, self._dtype, self._vision = model, dtype, vision
        takes_number = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._options = {"logits_to_keep": 1} if takes_number else {}
        self._head = PLAIN if vision is None else measured_head(model)

    def _last_logits(self, **inputs: Any) -> Float[Tensor, "N V"]:
        with computing_in(self._model, self._dtype):
            if self._vision is None:
                logits: Tensor = self._model(**inputs, **self._options).logits[:, -1]
                return logits
            # the language model alone: a model that reads images keeps positions from one call to the next
            states = decoder_of(self._model)(**inputs).last_hidden_state[:, -1]
            scaled = self._model.get_output_embeddings()(states) * self._head.scale
            return scaled if self._head.cap is None else torch.tanh(scaled / self._head.cap) * self._head.cap

    def _seen(
        self, prompts: Sequence[Sequence[int]], media: Sequence[PromptMedia]
    ) -> tuple[dict[str, Any], list[int]] | None:
        """Return what the language model is given of left-padded prompts, and the position behind each of them.

        None: none has images.
        """
        if self._vision is None or not any(media):
            return None
        return self._vision.prompt_batch(self._model, list(zip(prompts, media, strict=True)))


class PlainDecoder(_ModelDecoder):
    """A `Decoder` that computes each prompt once, left-padded, and copies its cache for each of its rows."""

    @override
    def begin(self, num_rows: int, max_length: int) -> None:
        self._cache = DynamicCache(config=self._model.config)

    @override
    def end(self) -> None:
        del self._cache, self._mask, self._next

    @override
    @torch.no_grad()
    def admit(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], media: Sequence[PromptMedia] = ()
    ) -> Float[Tensor, "P V"]:
        # Rows must be numbered in the order of the prompts, as they are after `begin`.
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        self._lengths = [len(prompt) for prompt in prompts]
        self._mask = mask.to(self._model.device)
        positions = (self._mask.cumsum(-1) - 1).clamp_(min=0)
        text = {"input_ids": ids.to(self._model.device), "attention_mask": self._mask, "position_ids": positions}
        inputs, following = self._seen(prompts, media) or (text, self._lengths)
        self._next = torch.tensor(following, device=self._model.device)
        logits = self._last_logits(**inputs, past_key_values=self._cache, use_cache=True)
        counts = torch.tensor([len(members) for members in rows], device=self._model.device)
        self._select(torch.repeat_interleave(counts))
        return logits

    @override
    @torch.no_grad()
    def step(self, tokens: Int[Tensor, " S"]) -> Float[Tensor, "S V"]:
        self._mask = torch.cat((self._mask, self._mask.new_ones(len(tokens), 1)), dim=-1)
        inputs = {"input_ids": tokens[:, None], "attention_mask": self._mask, "position_ids": self._next[:, None]}
        self._next = self._next + 1
        return self._last_logits(**inputs, past_key_values=self._cache, use_cache=True)

    @override
    def step_routes(self) -> UInt8[Tensor, "S B"] | None:
        return noted_routes(self._model)

    @override
    def prompt_routes(self) -> Sequence[UInt8[Tensor, "L B"] | None]:
        routes = noted_routes(self._model)
        if routes is None:
            return ()
        padded = routes.unflatten(0, (len(self._lengths), -1))
        return [row[-length:] for row, length in zip(padded, self._lengths, strict=True)]

    @override
    @torch.no_grad()
    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        self._select(keep)

    def _select(self, rows: Int[Tensor, " R"]) -> None:
        # what beams are reordered by: caches of every kind have it, also those that keep states and no keys
        self._cache.reorder_cache(rows)  # type: ignore[arg-type]  # LongTensor is a Tensor of int64
        self._mask, self._next = self._mask.index_select(0, rows), self._next.index_select(0, rows)


class RecomputingDecoder(_ModelDecoder):
    """A `Decoder` without a cache: each token costs a pass over its context, together with others of one length."""

    @override
    def begin(self, num_rows: int, max_length: int) -> None:
        self._contexts, self._media, self._routes = list[list[int]](), list[PromptMedia](), list[Tensor]()

    @override
    def end(self) -> None:
        del self._contexts, self._media, self._routes

    @override
    def admit(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], media: Sequence[PromptMedia] = ()
    ) -> Float[Tensor, "P V"]:
        # Rows must be numbered in the order of the prompts, as they are after `begin`.
        media = media or [()] * len(prompts)
        self._contexts = [list(prompt) for prompt, members in zip(prompts, rows, strict=True) for _ in members]
        self._media = [images for images, members in zip(media, rows, strict=True) for _ in members]
        return self._after(prompts, media)

    @override
    def step(self, tokens: Int[Tensor, " S"]) -> Float[Tensor, "S V"]:
        for context, token in zip(self._contexts, tokens.tolist(), strict=True):
            context.append(token)
        return self._after(self._contexts, self._media)

    @override
    def step_routes(self) -> UInt8[Tensor, "S B"] | None:
        return torch.stack([routes[-1] for routes in self._routes]) if self._routes else None

    @override
    def prompt_routes(self) -> Sequence[UInt8[Tensor, "L B"] | None]:
        return self._routes

    @override
    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        self._contexts = [self._contexts[row] for row in keep.tolist()]
        self._media = [self._media[row] for row in keep.tolist()]

    @torch.no_grad()
    def _after(self, contexts: Sequence[Sequence[int]], media: Sequence[PromptMedia]) -> Float[Tensor, "N V"]:
        """Return the logits after the last token of each context."""
        members = dict[int, list[int]]()
        for index, context in enumerate(contexts):
            members.setdefault(len(context), []).append(index)
        parts, noted = list[Tensor](), list[Tensor]()
        for length, indices in members.items():
            at_once = max(1, TOKENS_AT_ONCE // length)
            for some in (indices[first : first + at_once] for first in range(0, len(indices), at_once)):
                ids, images = [contexts[index] for index in some], [media[index] for index in some]
                seen = self._seen(ids, images)
                inputs = {"input_ids": torch.tensor(ids, device=self._model.device)} if seen is None else seen[0]
                parts.append(self._last_logits(**inputs, use_cache=False))
                if (routes := noted_routes(self._model)) is not None:
                    noted += routes.unflatten(0, (len(some), length))
        order = torch.tensor([index for indices in members.values() for index in indices]).argsort()
        self._routes = [noted[index] for index in order.tolist()] if noted else []
        return torch.cat(parts).index_select(0, order.to(self._model.device))
