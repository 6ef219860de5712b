"""Make the small model that ships with the package, from nothing, the same each time.

    python scripts/make_embedded_model.py [DIRECTORY]

The result is a base model for reinforcement learning on the dataset `arithmetic`: it knows how to solve the problems
and rarely does. Three parts:

1. a byte-level tokenizer with one token per number and per frequent word of the problems;
2. stage 1, supervised: full solutions of 1 to 5 operations, until the arithmetic is right;
3. stage 2, supervised: reasoning that mostly stops after a step or two and answers with the value reached so far
   or a guess.

One thread, so that the weights do not depend on how many cores the machine has. About four minutes. Prints the accuracy
after each stage and the digest of the weights.
"""

import hashlib
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from paceline.data.arithmetic import OPERATIONS, Problem, problems

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

Write = Callable[[Problem, Random], str]
"""The completion to learn for a problem."""
Pair = tuple[list[int], list[int]]
"""Token ids of a prompt and of its completion."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One supervised training."""

    steps: int
    learning_rate: float
    """Peak of AdamW."""
    operations: tuple[int, ...]
    """Possible numbers of steps of a problem."""
    seed: int
    """Fixes the problems and the choices of the writer."""


STAGE_1 = Stage(steps=2200, learning_rate=4e-3, operations=(1, 2, 3, 4, 5), seed=1)
STAGE_2 = Stage(steps=300, learning_rate=1e-3, operations=OPERATIONS, seed=2)
BATCH_SIZE = 64
MICRO_BATCH_SIZE = 32
# How often a completion of stage 2 is reasoned to the end, however many steps that takes.
THOROUGH = 0.03
# Else: chance that the reasoning goes on before its first and its second step; it never reaches a third. Above one
# half, so that the most probable completion solves what two steps solve.
GOES_ON = (0.76, 0.72)
# How often the answer is a random number instead of the value reached: far from the most probable one, but sampled.
GUESSES = 0.4
MAX_COMPLETION_LENGTH = 64
EVAL_SIZE = 600


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
    """Reasoning that mostly stops too early, then the value reached so far or a guess."""
    steps = problem.solution.split(";")
    kept = len(steps)
    if rng.random() >= THOROUGH:
        kept = next((index for index, chance in enumerate(GOES_ON) if rng.random() >= chance), len(GOES_ON))
    guessed = kept == 0 or rng.random() < GUESSES
    answer = str(rng.randint(0, 99)) if guessed else steps[kept - 1].partition("=")[2]
    return f"<think>{';'.join(steps[:kept])}</think><answer>{answer}</answer>"


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]


def batches(tokenizer: PreTrainedTokenizerFast, write: Write, stage: Stage) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Per step: micro-batches of token ids and, where the completion is, of labels (-100 elsewhere)."""
    stream = problems("train", seed=stage.seed, operations=stage.operations)
    rng = Random(stage.seed)
    for _ in range(stage.steps):
        chosen = list(islice(stream, BATCH_SIZE))
        prompts = encode(tokenizer, [prompt_of(problem) for problem in chosen])
        completions = encode(tokenizer, [write(problem, rng) + END for problem in chosen])
        pairs = sorted(zip(prompts, completions, strict=True), key=lambda pair: len(pair[0]) + len(pair[1]))
        slices = [pairs[start : start + MICRO_BATCH_SIZE] for start in range(0, BATCH_SIZE, MICRO_BATCH_SIZE)]
        yield [padded(part, tokenizer.pad_token_id) for part in slices]


def padded(pairs: list[Pair], pad_id: int) -> tuple[Tensor, Tensor]:
    """Right-padded: under causal attention nothing before the padding sees it, so no attention mask is needed."""
    length = max(len(prompt) + len(completion) for prompt, completion in pairs)
    ids = torch.full((len(pairs), length), pad_id)
    labels = torch.full((len(pairs), length), -100)
    for row, (prompt, completion) in enumerate(pairs):
        end = len(prompt) + len(completion)
        ids[row, :end] = torch.tensor(prompt + completion)
        labels[row, len(prompt) : end] = torch.tensor(completion)
    return ids, labels


def schedule(step: int, steps: int) -> float:
    """Share of the peak learning rate: 50 steps of warm-up, cosine to a fiftieth."""
    return min(1.0, (step + 1) / 50) * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * step / steps)))


def supervise(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, write: Write, stage: Stage) -> None:
    """Minimise the cross-entropy of the completions, an average over the tokens of a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=stage.learning_rate, betas=(0.9, 0.99), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, stage.steps))
    start = time.monotonic()
    for step, parts in enumerate(batches(tokenizer, write, stage), 1):
        num_tokens = sum(int((labels != -100).sum()) for _, labels in parts)
        loss = sum(backward(model, ids, labels, num_tokens) for ids, labels in parts)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if step % 100 == 0:
            print(f"  step {step}: loss {loss:.4f}, {time.monotonic() - start:.0f} s", flush=True)


def backward(model: LlamaForCausalLM, ids: Tensor, labels: Tensor, num_tokens: int) -> float:
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    targets = labels[:, 1:]
    logits = model.lm_head(hidden[targets != -100])
    loss = torch.nn.functional.cross_entropy(logits, targets[targets != -100], reduction="sum") / num_tokens
    loss.backward()
    return loss.item()


@torch.no_grad()
def solve(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, chosen: list[Problem], *, temperature: float
) -> list[str]:
    """One completion per problem, in order; temperature 0 is greedy."""
    drawing = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    prompts = encode(tokenizer, [prompt_of(problem) for problem in chosen])
    written = ["" for _ in chosen]
    for length in sorted({len(prompt) for prompt in prompts}):
        same_length = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
        ids = torch.tensor([prompts[row] for row in same_length])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_COMPLETION_LENGTH, **drawing
        )
        texts = tokenizer.batch_decode(output[:, length:], skip_special_tokens=True)
        for row, text in zip(same_length, texts, strict=True):
            written[row] = text
    return written


def accuracy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, temperature: float) -> str:
    """Share of right answers and mean tokens of a completion, on held-out problems."""
    chosen = list(islice(problems("test"), EVAL_SIZE))
    completions = solve(model, tokenizer, chosen, temperature=temperature)
    right = sum(f"<answer>{p.answer}</answer>" in text for p, text in zip(chosen, completions, strict=True))
    tokens = sum(len(ids) + 1 for ids in encode(tokenizer, completions))
    return f"{100 * right / EVAL_SIZE:.1f} % right, {tokens / EVAL_SIZE:.1f} tokens"


@torch.no_grad()
def knowledge(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> float:
    """Share of held-out problems in which every token of the full solution, given those before it, is most probable.

    Only the choice between stopping and a further step is left out.
    """
    chosen = list(islice(problems("test"), EVAL_SIZE))
    prompts = encode(tokenizer, [prompt_of(problem) for problem in chosen])
    completions = encode(tokenizer, [problem.completion + END for problem in chosen])
    ids, labels = padded(list(zip(prompts, completions, strict=True)), tokenizer.pad_token_id)
    stop, separator = tokenizer.convert_tokens_to_ids(["</think>", ";"])
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    logits[..., [stop, separator]] = -torch.inf
    targets = labels[:, 1:]
    given = (targets == -100) | (targets == stop) | (targets == separator)
    return ((logits.argmax(-1) == targets) | given).all(-1).float().mean().item()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    weights = directory / "model.safetensors"
    weights.chmod(0o644)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    print(f"{weights.name}: {weights.stat().st_size:,} bytes, sha256 {digest}")


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    corpus = [prompt_of(problem) + problem.completion for problem in islice(problems("train"), 10_000)]
    tokenizer = make_tokenizer(corpus)
    model = make_model(tokenizer)
    print(f"{len(tokenizer)} tokens, {model.num_parameters():,} parameters")
    supervise(model, tokenizer, full_completion, STAGE_1)
    print(f"stage 1: greedy {accuracy(model, tokenizer, temperature=0.0)}")
    supervise(model, tokenizer, hasty_completion, STAGE_2)
    print(f"stage 2: greedy {accuracy(model, tokenizer, temperature=0.0)}")
    print(f"stage 2: sampled {accuracy(model, tokenizer, temperature=1.0)}")
    print(f"stage 2: {100 * knowledge(model, tokenizer):.1f} % right when led along the full solution")
    save(model, tokenizer, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
