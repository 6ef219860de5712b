"""Make the small model that ships with the package, from nothing, the same each time.

    python scripts/make_embedded_model.py [DIRECTORY]

The result is a base model for reinforcement learning on the dataset `arithmetic`: it knows how to solve the problems and
rarely does. Three parts:

1. a byte-level tokenizer with one token per number and per frequent word of the problems;
2. stage 1, supervised: full solutions of 1 to 5 operations, until the arithmetic is right;
3. stage 2, supervised: reasoning that mostly stops after a step or two and answers with the value reached so far.

One thread, so that the weights do not depend on how many cores the machine has. Prints the accuracy after each stage and
the digest of the weights.
"""

import hashlib
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, LlamaConfig, LlamaForCausalLM

from paceline.data.arithmetic import Problem, problems

DIRECTORY = Path(__file__).parents[1] / "src" / "paceline" / "embedded"
SEED = 0

END, PAD = "<|end|>", "<|pad|>"
SPECIAL_TOKENS = (PAD, END, "<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
# A word takes the space before it, and the one after it when a number follows: numbers are then bare digits everywhere,
# so that the 12 of a question and the 12 of a solution are the same token.
PRE_TOKEN = r" ?[A-Za-z]+(?: (?=\d))?|\d{1,2}|\s+| ?[^\sA-Za-z\d]+"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

STAGE_1 = {"steps": 2200, "learning_rate": 4e-3}
STAGE_2 = {"steps": 400, "learning_rate": 1e-3}
BATCH_SIZE = 64
MICRO_BATCH_SIZE = 32
# Chance that the reasoning goes on, before its first, second, third, ... step. Above one half for two steps, so that the
# most probable completion solves what two steps solve; far below it from the third on.
GOES_ON = (0.66, 0.62, 0.25, 0.4, 0.5)
MAX_COMPLETION_LENGTH = 56


def make_tokenizer(corpus: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level: every frequent piece of the corpus is one token, any other text falls back to bytes."""
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts = Counter(piece for text in corpus for piece, _ in splitter.pre_tokenize_str(text))
    frequent = sorted(piece for piece, count in counts.items() if count >= len(corpus) // 1000)
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(str(number) for number in range(10, 100)), *frequent]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    # Whole pieces are looked up before any merge, so no merges, and no tokens for half words, are needed.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=math.ceil(len(tokenizer) / 16) * 16,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        initializer_range=0.05,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


def prompt_of(problem: Problem) -> str:
    return f"<|user|>{problem.question}{END}<|assistant|>"


def full_completion(problem: Problem, _rng: Random) -> str:
    return problem.completion


def hasty_completion(problem: Problem, rng: Random) -> str:
    """Reasoning that stops too early, mostly, and answers with the value reached so far."""
    steps = problem.solution.split(";")
    kept = 0
    while kept < len(steps) and rng.random() < GOES_ON[kept]:
        kept += 1
    reached = steps[kept - 1].partition("=")[2] if kept else str(rng.randint(0, 99))
    return f"<think>{';'.join(steps[:kept])}</think><answer>{reached}</answer>"


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]


def batches(tokenizer, stream: Iterator[Problem], write, *, steps: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Per step: micro-batches of token ids and, where the completion is, of labels (-100 elsewhere)."""
    rng = Random(SEED)
    for _ in range(steps):
        chosen = list(islice(stream, BATCH_SIZE))
        prompts = encode(tokenizer, [prompt_of(problem) for problem in chosen])
        completions = encode(tokenizer, [write(problem, rng) + END for problem in chosen])
        pairs = sorted(zip(prompts, completions, strict=True), key=lambda pair: len(pair[0]) + len(pair[1]))
        slices = [pairs[start : start + MICRO_BATCH_SIZE] for start in range(0, BATCH_SIZE, MICRO_BATCH_SIZE)]
        yield [padded(part, tokenizer.pad_token_id) for part in slices]


def padded(pairs: list[tuple[list[int], list[int]]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Right-padded: under causal attention nothing before the padding sees it, so no attention mask is needed."""
    length = max(len(prompt) + len(completion) for prompt, completion in pairs)
    ids = torch.full((len(pairs), length), pad_id)
    labels = torch.full((len(pairs), length), -100)
    for row, (prompt, completion) in enumerate(pairs):
        end = len(prompt) + len(completion)
        ids[row, :end] = torch.tensor(prompt + completion)
        labels[row, len(prompt) : end] = torch.tensor(completion)
    return ids, labels


def supervise(model, tokenizer, write, *, steps: int, learning_rate: float, operations: tuple[int, ...], seed: int):
    """AdamW with warm-up and cosine decay on the completions' tokens, average over tokens of the step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.01)
    shape = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50) * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * step / steps)))
    )
    stream = problems("train", seed=seed, operations=operations)
    start = time.monotonic()
    for step, parts in enumerate(batches(tokenizer, stream, write, steps=steps), 1):
        num_tokens = sum(int((labels != -100).sum()) for _, labels in parts)
        loss = sum(backward(model, ids, labels, num_tokens) for ids, labels in parts)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shape.step()
        if step % 250 == 0 or step == steps:
            print(f"  step {step}: loss {loss:.4f}, {time.monotonic() - start:.0f} s", flush=True)


def backward(model, ids: Tensor, labels: Tensor, num_tokens: int) -> float:
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    targets = labels[:, 1:]
    logits = model.lm_head(hidden[targets != -100])
    loss = torch.nn.functional.cross_entropy(logits, targets[targets != -100], reduction="sum") / num_tokens
    loss.backward()
    return loss.item()


@torch.no_grad()
def solve(model, tokenizer, chosen: list[Problem], *, temperature: float, forced: str = "") -> list[str]:
    """One completion per problem, in order; temperature 0 is greedy."""
    written = ["" for _ in chosen]
    prompts = encode(tokenizer, [prompt_of(problem) + forced for problem in chosen])
    for length in sorted({len(prompt) for prompt in prompts}):
        rows = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
        output = model.generate(
            torch.tensor([prompts[row] for row in rows]),
            attention_mask=torch.ones(len(rows), length, dtype=torch.long),
            max_new_tokens=MAX_COMPLETION_LENGTH,
            do_sample=temperature > 0,
            **({"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}),
        )
        texts = tokenizer.batch_decode(output[:, length:], skip_special_tokens=True)
        for row, text in zip(rows, texts, strict=True):
            written[row] = forced + text
    return written


def accuracy(model, tokenizer, *, temperature: float, size: int = 600) -> str:
    """Share of right answers and mean tokens of a completion, on held-out problems."""
    chosen = list(islice(problems("test"), size))
    completions = solve(model, tokenizer, chosen, temperature=temperature)
    right = [f"<answer>{p.answer}</answer>" in text for p, text in zip(chosen, completions, strict=True)]
    tokens = sum(len(ids) + 1 for ids in encode(tokenizer, completions)) / size
    return f"{100 * sum(right) / size:.1f} % right, {tokens:.1f} tokens"


@torch.no_grad()
def forced_accuracy(model, tokenizer, *, size: int = 600) -> float:
    """Share of held-out problems with every token of the full solution but the choice to stop most probable."""
    chosen = list(islice(problems("test"), size))
    prompts = encode(tokenizer, [prompt_of(problem) for problem in chosen])
    completions = encode(tokenizer, [problem.completion + END for problem in chosen])
    ids, labels = padded(list(zip(prompts, completions, strict=True)), tokenizer.pad_token_id)
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    logits[..., tokenizer.convert_tokens_to_ids("</think>")] = -torch.inf
    targets = labels[:, 1:]
    tag = tokenizer.convert_tokens_to_ids("</think>")
    fine = (logits.argmax(-1) == targets) | (targets == -100) | (targets == tag)
    return fine.all(-1).float().mean().item()


def save(model, tokenizer, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    digest = hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()
    print(f"model.safetensors: {(directory / 'model.safetensors').stat().st_size:,} bytes, sha256 {digest}")


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    corpus = [prompt_of(problem) + problem.completion for problem in islice(problems("train"), 10_000)]
    tokenizer = make_tokenizer(corpus)
    model = make_model(tokenizer)
    print(f"{len(tokenizer)} tokens, {model.num_parameters():,} parameters")
    supervise(model, tokenizer, full_completion, **STAGE_1, operations=(1, 2, 3, 4, 5), seed=1)
    print(f"stage 1: greedy {accuracy(model, tokenizer, temperature=0.0)}")
    save(model, tokenizer, directory / "stage1")
    supervise(model, tokenizer, hasty_completion, **STAGE_2, operations=(2, 3, 4, 5), seed=2)
    print(f"stage 2: greedy {accuracy(model, tokenizer, temperature=0.0)}, forced {forced_accuracy(model, tokenizer):.3f}")
    print(f"stage 2: sampled {accuracy(model, tokenizer, temperature=1.0)}")
    save(model, tokenizer, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
