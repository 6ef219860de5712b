"""When a completion ends: end tokens by a table, stop strings by decoding a tail where one can have ended."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from paceline.types import FinishReason


class Stopping:
    """Looks at what was sampled. Built once per call of an engine."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, end_tokens: frozenset[int], stop: tuple[str, ...], vocab_size: int
    ) -> None:
        """`vocab_size` is the number of the model's logits, which may exceed the tokenizer's vocabulary."""
        self.watches_text = bool(stop)
        self._tokenizer, self._stop = tokenizer, stop
        self._ends = np.zeros(vocab_size, dtype=bool)
        self._ends[[token for token in end_tokens if token < vocab_size]] = True
        # True for tokens whose own text holds the last character of some stop string; for all where that text cannot
        # tell, since a space may be stripped and a character may be spread over byte tokens
        last = {text[-1] for text in stop}
        unclear = any(character.isspace() or not character.isascii() for character in last)
        self._may_finish_a_string = np.full(vocab_size, unclear)
        if last and not unclear:
            texts = tokenizer.batch_decode([[token] for token in range(vocab_size)])
            self._may_finish_a_string[:] = [any(character in text for character in last) for text in texts]
        # One character takes up to four byte tokens; a margin for tokens that decode to nothing.
        self._tail = 4 * max((len(text) for text in stop), default=0) + 16

    def ended(self, tokens: np.ndarray) -> np.ndarray:
        """True where the token is an end token."""
        ends: np.ndarray = self._ends[tokens]
        return ends

    def candidates(self, tokens: np.ndarray) -> np.ndarray:
        """Indices of tokens whose text may complete a stop string: their completions need `completes_string`."""
        return np.flatnonzero(self._may_finish_a_string[tokens])

    def completes_string(self, completion: Sequence[int]) -> bool:
        """Return whether the last token completes a stop string, which may be the name of a special token."""
        if not self._may_finish_a_string[completion[-1]]:
            return False
        text = self._tokenizer.decode(list(completion[-self._tail :]), skip_special_tokens=False)
        return any(stop in text for stop in self._stop)

    def finish_reason(self, completion: Sequence[int], limit: int) -> FinishReason:
        """`stop` where an end token or a stop string ended it, `length` where only its limit in tokens did."""
        if len(completion) < limit or self._ends[completion[-1]] or self.completes_string(completion):
            return "stop"
        return "length"
