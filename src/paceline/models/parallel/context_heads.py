"""Over how many ranks of a context group a model's heads can be dealt out."""

from transformers import PreTrainedConfig

from paceline.errors import ModelError


def context_sizes(config: PreTrainedConfig, *, tensor: int = 1) -> list[int]:
    """What divides the attention heads of a tensor rank, and divides its key/value heads or is a multiple of them."""
    query, key_value = _heads(config, tensor)
    return [
        size for size in range(1, query + 1) if query % size == 0 and (key_value % size == 0 or size % key_value == 0)
    ]


def check_context_size(config: PreTrainedConfig, size: int, *, tensor: int = 1) -> None:
    """Refuse a number of ranks that attention cannot be dealt out to.

    Raises:
        ModelError: the sentence names the numbers that it has to divide, and the nearest that do.
    """
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
