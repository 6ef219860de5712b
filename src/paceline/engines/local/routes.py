"""Routes of a call's tokens, collected step by step, and given out by completion."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from paceline.engines.local.decoder import Decoder
from paceline.engines.local.rows import FREE
from paceline.runtime.devices import on_its_way
from paceline.types import UNKNOWN_ROUTE


class RouteLog:
    """Routes of the tokens that a decoder reads, B bytes for each, as `paceline.types.Span.routes` has them."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._prompts = dict[int, bytes]()
        """Routes of prompts that were computed whole, by completion."""
        self._on_the_way = deque[tuple[np.ndarray, np.ndarray, Callable[[], np.ndarray]] | None]()
        """Completions, places and routes of the tokens of each step that is not read from the device yet."""
        self._log = list[tuple[np.ndarray, np.ndarray, np.ndarray]]()
        """The same of the others, free rows included. Places count from the first token of the completion."""

    def admitted(self, sequences: Iterable[Sequence[int]]) -> None:
        """Note the prompts that the decoder has admitted, each by the completions that continue it."""
        for members, routes in zip(sequences, self._decoder.prompt_routes(), strict=False):
            if routes is not None:
                self._prompts |= dict.fromkeys(members, routes.cpu().numpy().tobytes())

    def appended(self, sequences: np.ndarray, num_sampled: np.ndarray) -> None:
        """Note the tokens of the decoder's latest step, by each row's completion and its tokens drawn before the step;
        below 1 for a row that reads its prompt."""
        routes = self._decoder.step_routes()
        self._on_the_way.append(None if routes is None else (sequences, num_sampled - 1, on_its_way(routes)))

    def read(self, sequences: np.ndarray) -> None:
        """Read the oldest step that is on the way, of those rows that still hold the same completion."""
        if (step := self._on_the_way.popleft()) is not None:
            before, places, routes = step
            self._log.append((np.where(before == sequences, sequences, FREE), places, routes()))

    def by_completion(self, lengths: Sequence[tuple[int, int]]) -> list[tuple[bytes, bytes]]:
        """Return the routes of each completion's prompt and of its own tokens; `lengths` are the tokens of both.

        Bytes of unknown ones are `UNKNOWN_ROUTE`, or none where no route is known. Completions of one prompt share its
        bytes.
        """
        if not self._log and not self._prompts:
            return [(b"", b"")] * len(lengths)
        nothing = np.zeros(0, dtype=np.int64)
        width = next((len(routes) // lengths[number][0] for number, routes in self._prompts.items()), 0)
        log = self._log or [(nothing, nothing, np.zeros((0, width), dtype=np.uint8))]
        sequences, places, routes = (np.concatenate(column) for column in zip(*log, strict=True))
        order = np.argsort(sequences, kind="stable")
        bounds = np.searchsorted(sequences[order], np.arange(len(lengths) + 1))
        result = list[tuple[bytes, bytes]]()
        for number, ((prompt, length), (first, end)) in enumerate(zip(lengths, pairwise(bounds), strict=True)):
            mine = order[first:end]
            mine = mine[places[mine] < length]
            whole = np.full((prompt + length, routes.shape[1]), UNKNOWN_ROUTE[0], dtype=np.uint8)
            whole[prompt + places[mine]] = routes[mine]
            result.append((self._prompts.get(number) or whole[:prompt].tobytes(), whole[prompt:].tobytes()))
        return result
