"""The least work of each phase of a step: operations of matrix products, bytes to and from memory. Pure functions;
results/performance.md says it in words.

P prompts with p tokens each, completions with T tokens each. The first token of a completion comes out of its prompt's
last position, the last one is never read: T - 1 of them are inputs. Everything that lies between two products (norms,
activations, sampling, losses) counts as nothing: it can be computed while the numbers pass by.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from floors import Work

ACCUMULATOR = 4
"""Bytes of a float32: master weights, gradients, moments, logits."""
BACKWARD_PRODUCTS = 2
"""A product's backward pass is two products of its size: the gradient by the input and the one by the weight."""
BACKWARD_ATTENTION = 2.5
"""Five products against two: gradients of four factors, and the scores again, which nobody keeps (tokens x tokens)."""
ADAMW_BYTES = 8 * ACCUMULATOR
"""Per parameter: gradient read for its norm; weight, gradient and two moments read; weight and two moments written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The numbers of a decoder like Llama or Qwen2. Norms and biases are left out: less than a thousandth."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    vocabulary: int
    tied: bool
    """Whether embedding and head are one matrix."""

    @classmethod
    def of(cls, config: Any) -> "Shape":
        """From the configuration of a transformers model."""
        return cls(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            mlp=config.intermediate_size,
            vocabulary=config.vocab_size,
            tied=config.tie_word_embeddings,
        )

    @property
    def kv_projection(self) -> int:
        """Weights of a layer that make keys and values."""
        return 2 * self.width * self.kv_heads * self.head_size

    @property
    def rest_of_layer(self) -> int:
        """Weights of a layer that make queries, the attention's output and the MLP."""
        return 2 * self.width * self.heads * self.head_size + 3 * self.width * self.mlp

    @property
    def head(self) -> int:
        """Weights of the output embedding."""
        return self.vocabulary * self.width

    @property
    def multiplied(self) -> int:
        """Weights of all products: what a decoding step reads."""
        return self.layers * (self.kv_projection + self.rest_of_layer) + self.head

    @property
    def parameters(self) -> int:
        """All that the optimiser moves."""
        return self.multiplied + (0 if self.tied else self.head)

    @property
    def cache_per_token(self) -> int:
        """Numbers that a token leaves in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_size

    @property
    def saved_per_token(self) -> int:
        """Numbers per token and layer that the backward pass reads: the inputs of norms, attention, products, MLP."""
        return 2 * self.width + 2 * (self.heads + self.kv_heads) * self.head_size + 2 * self.mlp


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One prompt and the completions that were sampled from it, in tokens."""

    prompt: int
    completions: tuple[int, ...]


def attention(shape: Shape, pairs: float) -> float:
    """Operations of one layer's attention: scores and their average of the values, for each query and key it sees."""
    return 4 * shape.heads * shape.head_size * pairs


def prompt_pairs(prompt: int) -> int:
    """Queries and keys of a prompt: each token sees itself and those before."""
    return prompt * (prompt + 1) // 2


def completion_pairs(prompt: int, completion: int) -> int:
    """Queries and keys of a completion's T - 1 inputs over prompt and completion."""
    inputs = completion - 1
    return inputs * prompt + inputs * (inputs + 1) // 2


def trunk(shape: Shape, *, tokens: int, pairs: int, read: int, pairs_read: int) -> tuple[float, float]:
    """Operations of the layers: of the products, and of attention.

    Args:
        shape: of the model.
        tokens: that enter; all of them need keys and values in every layer.
        pairs: queries and keys of all of them.
        read: tokens whose output something is made of; the last layer needs no other's query, output or MLP.
        pairs_read: queries and keys of those.
    """
    whole = (shape.layers - 1) * (shape.kv_projection + shape.rest_of_layer) + shape.kv_projection
    products = 2 * (whole * tokens + shape.rest_of_layer * read)
    return products, attention(shape, pairs) * (shape.layers - 1) + attention(shape, pairs_read)


def prefill(shape: Shape, groups: Sequence[Group], *, size: int) -> Work:
    """Each prompt once: the layers, the cache written, the logits after its last token. `size`: bytes of a number."""
    tokens, prompts = sum(group.prompt for group in groups), len(groups)
    products, mixing = trunk(
        shape,
        tokens=tokens,
        pairs=sum(prompt_pairs(group.prompt) for group in groups),
        read=prompts,
        pairs_read=tokens,
    )
    weights = shape.multiplied * size
    moved = weights + tokens * shape.cache_per_token * size + prompts * shape.vocabulary * ACCUMULATOR
    return Work(operations=products + mixing + 2 * shape.head * prompts, bytes=moved, touched=moved)


def decode(shape: Shape, groups: Sequence[Group], *, size: int) -> list[Work]:
    """One work per step, all completions starting together: those that live read every weight once between them.

    Step t (from 1) appends the t-th token to every completion longer than t. It reads the weights, the prompts of
    groups that have a living completion, and each one's own tokens; logits are written and read once.
    """
    return [_decode_step(shape, groups, step, size) for step in range(1, max(max(g.completions) for g in groups))]


def _decode_step(shape: Shape, groups: Sequence[Group], step: int, size: int) -> Work:
    living = [sum(length > step for length in group.completions) for group in groups]
    rows = sum(living)
    seen = sum(count * (group.prompt + step) for count, group in zip(living, groups, strict=True))
    cached = rows * step + sum(group.prompt for count, group in zip(living, groups, strict=True) if count)
    weights, cache = shape.multiplied * size, cached * shape.cache_per_token * size
    logits = rows * shape.vocabulary * ACCUMULATOR
    return Work(
        operations=2 * shape.multiplied * rows + shape.layers * attention(shape, seen),
        bytes=weights + cache + 2 * logits,
        touched=weights + cache + logits,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Operations and tokens of one pass over completions to train on, each group's prompt once."""

    products: float
    attention: float
    head: float
    tokens: int
    targets: int

    @classmethod
    def of(cls, shape: Shape, groups: Sequence[Group]) -> "Training":
        """Completions without signal must be left out by the caller: they are not computed."""
        kept = [group for group in groups if group.completions]
        own = sum(length - 1 for group in kept for length in group.completions)
        prompts = sum(group.prompt for group in kept)
        own_pairs = sum(completion_pairs(group.prompt, length) for group in kept for length in group.completions)
        products, mixing = trunk(
            shape,
            tokens=prompts + own,
            pairs=sum(prompt_pairs(group.prompt) for group in kept) + own_pairs,
            read=len(kept) + own,
            pairs_read=prompts + own_pairs,
        )
        # the logits after a prompt are the same for all its completions
        head = 2 * shape.head * (len(kept) + own)
        targets = sum(sum(group.completions) for group in kept)
        return cls(products=products, attention=mixing, head=head, tokens=prompts + own, targets=targets)


def forward(shape: Shape, training: Training, *, size: int, micro_batches: int) -> Work:
    """Log-probabilities of every target, and what the backward pass needs written: also a pass that only scores."""
    saved = training.tokens * shape.layers * shape.saved_per_token * size
    weights = shape.multiplied * size
    return Work(
        operations=training.products + training.attention + training.head,
        bytes=micro_batches * weights + saved,
        touched=weights + saved / micro_batches,
    )


def score(shape: Shape, training: Training, *, size: int, micro_batches: int) -> Work:
    """A forward pass without gradient: a reference's, or one for old log-probabilities."""
    weights = shape.multiplied * size
    states = training.tokens * shape.width * size / micro_batches
    operations = training.products + training.attention + training.head
    return Work(operations=operations, bytes=micro_batches * weights, touched=weights + states)


def backward(shape: Shape, training: Training, *, size: int, micro_batches: int) -> Work:
    """Gradients of all weights in float32, added up over the micro-batches; the weights and what was saved are read."""
    saved = training.tokens * shape.layers * shape.saved_per_token * size
    weights, gradients = shape.multiplied * size, shape.parameters * ACCUMULATOR
    # written by the first micro-batch, read and written by each one after it
    moved = micro_batches * weights + saved + (2 * micro_batches - 1) * gradients
    products = training.products + training.head
    return Work(
        operations=BACKWARD_PRODUCTS * products + BACKWARD_ATTENTION * training.attention,
        bytes=moved,
        touched=weights + saved / micro_batches + gradients,
    )


def update_operations(training: Training, *, adapter: bool) -> float:
    """Operations of a forward and a backward pass, what the MFU counts.

    An adapter's base has no gradient of its weights; the adapter's own products count as nothing.
    """
    passes = BACKWARD_PRODUCTS - adapter
    products = (training.products + training.head) * (1 + passes)
    return products + training.attention * (1 + BACKWARD_ATTENTION)


def optimiser(shape: Shape) -> Work:
    """AdamW in float32 with a limit on the gradient's norm."""
    moved = shape.parameters * ADAMW_BYTES
    return Work(bytes=moved, touched=shape.parameters * 4 * ACCUMULATOR)


def conversion(shape: Shape, *, size: int) -> Work:
    """Float32 weights to those that products read, once per update; nothing where they are the same."""
    moved = 0 if size == ACCUMULATOR else shape.multiplied * (ACCUMULATOR + size)
    return Work(bytes=moved, touched=moved)


def tokens_that_exist(groups: Sequence[Group]) -> int:
    """Inputs of a training pass without waste: each trained group's prompt once, T - 1 of each completion."""
    return sum(group.prompt + sum(group.completions) - len(group.completions) for group in groups if group.completions)
