"""What the scripts that make embedded models share: tokenizer, model, supervised training, sampling, saving.

A script brings the problems, the pieces that become tokens, and the completions to learn in each stage. One thread, so
that the weights do not depend on how many cores the machine has.
"""

import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

SEED = 0

END, PAD = "<|end|>", "<|pad|>"
SPECIAL_TOKENS = (PAD, END, "<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MICRO_BATCH_SIZE = 32

Lesson = Sequence[tuple[str, bool]]
"""Texts of a conversation in their order, each with True if the model is to learn to write it."""

Example = tuple[list[int], list[int]]
"""Token ids of a lesson, and its labels: the same where the text is learnt, -100 elsewhere."""

MicroBatch = tuple[dict[str, Tensor], Tensor]
"""What the model reads, by the names of its arguments, and labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One supervised training."""

    steps: int
    learning_rate: float
    """Peak of AdamW."""
    operations: tuple[int, ...] = ()
    """Possible numbers of steps of a problem, where problems have steps."""
    seed: int
    """Fixes the problems and the choices of the writer."""


def make_tokenizer(
    corpus: list[str], *, pre_token: str, tags: Sequence[str], pieces: Sequence[str], special: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Byte-level: every frequent piece of the corpus is one token, any other text falls back to bytes.

    `pre_token` cuts a text into pieces, `tags` are tokens wherever they stand, `pieces` are tokens even if infrequent,
    `special` are further special tokens.
    """
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pre_token), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts = Counter(piece for text in corpus for piece, _ in splitter.pre_tokenize_str(text))
    frequent = sorted(piece for piece, count in counts.items() if count >= len(corpus) // 1000)
    listed = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *pieces, *frequent]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(listed))}
    # Whole pieces are looked up before any merge, so no merges, and no tokens for half words, are needed.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    marks = (*SPECIAL_TOKENS, *special)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in marks])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast, *, num_layers: int) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(LlamaConfig(**text_config(tokenizer, num_layers=num_layers)))
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


def text_config(tokenizer: PreTrainedTokenizerFast, *, num_layers: int) -> dict[str, Any]:
    return {
        "vocab_size": math.ceil(len(tokenizer) / 16) * 16,
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "initializer_range": 0.05,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "dtype": "float32",
    }


def prompt_of(question: str, pictures: str = "") -> str:
    """`pictures` is the text that stands for them before the question."""
    return f"<|user|>{pictures}{question}{END}<|assistant|>"


def lesson_of(question: str, completion: str, pictures: str = "") -> Lesson:
    """A prompt and the completion to learn for it."""
    return (prompt_of(question, pictures), False), (completion + END, True)


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]


def examples(tokenizer: PreTrainedTokenizerFast, lessons: Sequence[Lesson]) -> list[Example]:
    """Texts are encoded one by one: a conversation's tokens are those of its messages."""
    encoded = iter(encode(tokenizer, [text for lesson in lessons for text, _ in lesson]))
    found = []
    for lesson in lessons:
        ids, labels = list[int](), list[int]()
        for _, is_learnt in lesson:
            piece = next(encoded)
            ids += piece
            labels += piece if is_learnt else [-100] * len(piece)
        found.append((ids, labels))
    return found


def batches(
    tokenizer: PreTrainedTokenizerFast,
    lessons: Iterator[Lesson],
    pictures: Iterator[Tensor] | None = None,
    *,
    batch_size: int = 2 * MICRO_BATCH_SIZE,
) -> Iterator[list[MicroBatch]]:
    """Per step: micro-batches of token ids, of one picture per lesson if there are any, and of labels."""
    while True:
        chosen = examples(tokenizer, list(islice(lessons, batch_size)))
        shown = {} if pictures is None else {"pixel_values": torch.stack(list(islice(pictures, batch_size)))}
        order = sorted(range(batch_size), key=lambda index: len(chosen[index][0]))
        parts = []
        for start in range(0, batch_size, MICRO_BATCH_SIZE):
            part = order[start : start + MICRO_BATCH_SIZE]
            ids, labels = padded([chosen[index] for index in part], tokenizer.pad_token_id)
            parts.append(({"input_ids": ids, **{name: rows[part] for name, rows in shown.items()}}, labels))
        yield parts


def padded(chosen: Sequence[Example], pad_id: int) -> tuple[Tensor, Tensor]:
    """Right-padded: under causal attention nothing before the padding sees it, so no attention mask is needed."""
    length = max(len(ids) for ids, _ in chosen)
    ids = torch.full((len(chosen), length), pad_id)
    labels = torch.full((len(chosen), length), -100)
    for row, (own, learnt) in enumerate(chosen):
        ids[row, : len(own)] = torch.tensor(own)
        labels[row, : len(own)] = torch.tensor(learnt)
    return ids, labels


def schedule(step: int, steps: int) -> float:
    """Share of the peak learning rate: 50 steps of warm-up, cosine to a fiftieth."""
    return min(1.0, (step + 1) / 50) * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * step / steps)))


def supervise(model: PreTrainedModel, steps: Iterator[list[MicroBatch]], stage: Stage) -> None:
    """Minimise the cross-entropy of the completions, an average over the tokens of a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=stage.learning_rate, betas=(0.9, 0.99), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, stage.steps))
    start = time.monotonic()
    for step, parts in enumerate(islice(steps, stage.steps), 1):
        num_tokens = sum(int((labels != -100).sum()) for _, labels in parts)
        loss = sum(backward(model, inputs, labels, num_tokens) for inputs, labels in parts)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if step % 100 == 0:
            print(f"  step {step}: loss {loss:.4f}, {time.monotonic() - start:.0f} s", flush=True)


def backward(model: PreTrainedModel, inputs: dict[str, Tensor], labels: Tensor, num_tokens: int) -> float:
    read = {**inputs, "input_ids": inputs["input_ids"][:, :-1]}
    hidden = model.model(**read, use_cache=False).last_hidden_state
    targets = labels[:, 1:]
    logits = model.lm_head(hidden[targets != -100])
    loss = torch.nn.functional.cross_entropy(logits, targets[targets != -100], reduction="sum") / num_tokens
    loss.backward()
    return loss.item()


@torch.no_grad()
def solve(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    *,
    temperature: float,
    max_length: int,
    pictures: Tensor | None = None,
) -> list[str]:
    """One completion per prompt, in order; temperature 0 is greedy. `pictures` has one row per prompt."""
    drawing = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    prompts = encode(tokenizer, list(texts))
    written = ["" for _ in prompts]
    for length in sorted({len(prompt) for prompt in prompts}):
        same_length = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
        ids = torch.tensor([prompts[row] for row in same_length])
        shown = {} if pictures is None else {"pixel_values": pictures[same_length]}
        mask = torch.ones_like(ids)
        output = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=max_length, **shown, **drawing)
        found = tokenizer.batch_decode(output[:, length:], skip_special_tokens=True)
        for row, text in zip(same_length, found, strict=True):
            written[row] = text
    return written


@torch.no_grad()
def knowledge(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    lessons: Sequence[Lesson],
    *,
    left_out: Sequence[str],
    pictures: Tensor | None = None,
) -> float:
    """Share of lessons in which every token to learn, given those before it, is most probable.

    The tokens `left_out` are neither asked for nor allowed.
    """
    ids, labels = padded(examples(tokenizer, lessons), tokenizer.pad_token_id)
    ignored = tokenizer.convert_tokens_to_ids(list(left_out))
    shown = {} if pictures is None else {"pixel_values": pictures}
    logits = model(input_ids=ids[:, :-1], use_cache=False, **shown).logits
    logits[..., ignored] = -torch.inf
    targets = labels[:, 1:]
    given = (targets == -100) | torch.isin(targets, torch.tensor(ignored, dtype=torch.long))
    return ((logits.argmax(-1) == targets) | given).all(-1).float().mean().item()


def report(tokenizer: PreTrainedTokenizerFast, completions: list[str], *, right: int) -> str:
    """Share of right completions and their mean tokens."""
    tokens = sum(len(ids) + 1 for ids in encode(tokenizer, completions))
    return f"{100 * right / len(completions):.1f} % right, {tokens / len(completions):.1f} tokens"


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    weights = directory / "model.safetensors"
    weights.chmod(0o644)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    print(f"{weights.name}: {weights.stat().st_size:,} bytes, sha256 {digest}")
