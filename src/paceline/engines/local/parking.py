"""Contexts of conversations that wait for their next turn, and when their caches are worth going on from."""

from paceline.engines.local.attention import Context

PARKED_SHARE = 0.25
"""Share of free memory for parked contexts. The rest is for the rows in use, whose contexts grow meanwhile, and for
what answers them: environments, tools and reward functions."""
ASSUMED_FREE = 4 << 30
"""Bytes of memory taken for free where the system does not tell."""
READ_COST = 4
"""Tokens of a prompt that are computed in the time in which a row of a decoding step reads one. On two CPU cores in
float32: 9 of 32 rows, 5 of 64 and 2 of 256 with the embedded model, 5 of 8 rows, 2 of 32 and 1 of 64 with layers of a
model of half a billion parameters."""


def reading_pays(observed: int, prompt: int) -> bool:
    """Return whether reading the last `observed` tokens one by one takes less than computing the whole prompt anew.

    A matter of lengths alone, so that a run can be repeated.

    >>> reading_pays(250, 1000), reading_pays(251, 1000)
    (True, False)
    """
    return observed * READ_COST <= prompt


class Parked:
    """Contexts by the number of the completion that they belong to; the oldest are forgotten where memory ends."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        self._contexts = dict[int, Context]()

    def __contains__(self, number: object) -> bool:
        return number in self._contexts

    def park(self, number: int, context: Context) -> None:
        """Keep a context, at the cost of older ones."""
        self._contexts[number] = context
        self._bytes += context.nbytes
        while self._bytes > self._most:
            self.take(next(iter(self._contexts)))

    def length(self, number: int) -> int:
        """Return the tokens of a context."""
        return self._contexts[number].shape[-2]

    def take(self, number: int) -> Context:
        """Give up a context, which is there no longer."""
        context = self._contexts.pop(number)
        self._bytes -= context.nbytes
        return context
