"""Model, tokenizer and prompts of a workload: the same for every contender, made from nothing but seeds."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from workloads import Workload

from paceline.config import DataConfig
from paceline.data import build_tasks, load_rows
from paceline.extraction import last_answer_tag
from paceline.models import model_directory
from paceline.types import Task

VOCABULARY = 8192
END_TOKENS = range(1, 129)
"""Of the random model: 128 of 8,192, so that nearly uniform sampling ends after 64 tokens on average."""
PROMPT_LENGTHS = (60, 120)
"""Of the random model, tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Materials:
    """What a contender works with."""

    model: PreTrainedModel
    """Float32."""
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: frozenset[int]
    """Empty where lengths are fixed."""
    tasks: tuple[tuple[Task, ...], ...]
    """Of each repetition, the warm-up first."""


def make_materials(workload: Workload, *, threads: int) -> Materials:
    """Everything in memory, `threads` set."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, tokenizer = shipped() if workload.size == "shipped" else random_model()
    ends = model.generation_config.eos_token_id
    natural = workload.lengths == "natural"
    if not natural:
        # TRL takes the tokenizer's end token for one of the model's and would not sample it: give it the padding's
        tokenizer.eos_token = tokenizer.pad_token
    return Materials(
        model=model,
        tokenizer=tokenizer,
        eos_token_ids=frozenset(ends if isinstance(ends, list) else [ends]) if natural else frozenset(),
        tasks=_tasks(workload, tokenizer),
    )


def shipped() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of the package."""
    place = model_directory("embedded")
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, attn_implementation="sdpa")
    return model, AutoTokenizer.from_pretrained(place)


def random_model() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The random model with one word per token."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=END_TOKENS[0],
        bos_token_id=None,
        dtype="float32",
        attn_implementation="sdpa",
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=list(END_TOKENS), pad_token_id=0)
    words = {"<pad>": 0, "<end>": 1} | {f"w{index}": index for index in range(2, VOCABULARY)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return model, PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<end>")


def digest(prompts: Iterable[str]) -> str:
    """The same for the same set of prompts."""
    return blake2b(repr(sorted(set(prompts))).encode(), digest_size=8).hexdigest()


def _tasks(workload: Workload, tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[Task, ...], ...]:
    count = workload.prompts * (workload.repetitions + 1)
    tasks = _arithmetic(count, tokenizer) if workload.size == "shipped" else _random_tasks(count)
    for task in tasks:
        if tuple(tokenizer(task.prompt)["input_ids"]) != task.prompt_ids:
            raise ValueError(
                f"{task.task_id}: its text and its tokens differ, contenders would not see the same prompt"
            )
    return tuple(tasks[start : start + workload.prompts] for start in range(0, count, workload.prompts))


def _arithmetic(count: int, tokenizer: PreTrainedTokenizerBase) -> tuple[Task, ...]:
    rows = load_rows("arithmetic", split="train", size=count)
    return build_tasks(rows, tokenizer, DataConfig(dataset="arithmetic"), system=None).tasks


def _random_tasks(count: int) -> tuple[Task, ...]:
    rng = Random(0)
    prompts = [
        tuple(rng.randrange(END_TOKENS.stop, VOCABULARY) for _ in range(rng.randint(*PROMPT_LENGTHS)))
        for _ in range(count)
    ]
    return tuple(
        Task(
            task_id=f"random:{number}",
            prompt=" ".join(f"w{token}" for token in prompt),
            prompt_ids=prompt,
            answer="",
            columns={"answer": ""},
        )
        for number, prompt in enumerate(prompts)
    )


def accuracy(completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """1 for the right answer in answer tags."""
    return [float(last_answer_tag(text) == gold) for text, gold in zip(completions, answer, strict=True)]


def mean_token(completion_ids: list, **columns: object) -> list[float]:
    """Mean token id, in thousands: any two different completions earn differently."""
    return [sum(ids) / len(ids) / 1000 for ids in completion_ids]


REWARDS = {"accuracy": accuracy, "mean_token": mean_token}
