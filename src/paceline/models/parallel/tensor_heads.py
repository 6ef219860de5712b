"""Key/value heads that several ranks of the tensor axis share, where there are more ranks than such heads.

    8 queries   0 1 | 2 3 | 4 5 | 6 7      4 ranks
    2 keys        0 |   0 |   1 |   1      each computes the key and the value that its queries look at

Every rank then has the whole projections to keys and values, which are small, and computes the rows of one head. What
that gives of their gradients is a part, which is added up over the axis.
"""

from dataclasses import dataclass

from transformers import PreTrainedConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedHeads:
    """Attention where several ranks have queries of one key/value head, and each has queries of that one alone."""

    ranks: int
    """Of the tensor axis: a multiple of the key/value heads."""
    query: int
    """Attention heads of the model."""
    key_value: int
    """Key/value heads of the model."""
    width: int
    """Of a head."""

    @property
    def groups(self) -> int:
        """Attention heads that a rank has for its key/value head."""
        return self.query // self.ranks

    @property
    def out_features(self) -> int:
        """Outputs of the whole projection to keys, or to values."""
        return self.key_value * self.width

    def rows(self, place: int) -> slice:
        """Which rows of a projection to keys or values the rank at this place computes.

        >>> heads = SharedHeads(ranks=4, query=8, key_value=2, width=16)
        >>> [heads.rows(place) for place in (1, 2)]
        [slice(0, 16, None), slice(16, 32, None)]
        """
        head = place * self.key_value // self.ranks
        return slice(head * self.width, (head + 1) * self.width)


def shared_heads(config: PreTrainedConfig, size: int) -> SharedHeads | None:
    """How so many ranks, over which the model can be split, share key/value heads; None: each has some of its own."""
    text = config.get_text_config()
    query = text.num_attention_heads
    key_value = getattr(text, "num_key_value_heads", query)  # a family without the number has one for each query
    if key_value >= size:
        return None
    width = getattr(text, "head_dim", None) or text.hidden_size // query
    return SharedHeads(ranks=size, query=query, key_value=key_value, width=width)
