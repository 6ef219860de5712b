"""Makes what contenders are given: python materials.py generate|step|busy WORKLOAD QUICK DIRECTORY

Writes the model, once per directory, and a file with the workload's prompts and limits; prints the file's name. A
process of its own, so that the benchmark's stays small: the peak memory of a child starts at its parent's.
"""

import sys
from pathlib import Path
from random import Random

import torch
import yaml
from given import Given, Prompt
from measuring import Channel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from wider_heads import write_twin
from workloads import BUSY, GENERATE, STEP, WITHOUT_WEIGHTS, Workload, completion_limits, find

from paceline.config.sections import DataConfig, ModelConfig
from paceline.data.sources import load_rows
from paceline.data.tasks import build_tasks
from paceline.models.pretrained import load_tokenizer, model_directory

GGUF = Path(__file__).parents[1] / "runs" / "real" / "SmolLM2-135M-Instruct.Q4_1.gguf"
RECIPE = Path(__file__).parents[1] / "examples" / "smollm2.yaml"
FIRST_WORD = 2
"""Of a random model: 0 pads, 1 ends."""
SHAPES = {
    "30m": {
        "vocab_size": 8192,
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    },
    "100m": {
        "vocab_size": 32_768,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    "135m": {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        "tie_word_embeddings": True,
    },
    "qwen-0.5b": {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
    },
    "qwen-1.5b": {
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
    },
    "qwen-7b": {
        "vocab_size": 152_064,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": False,
    },
}


def main(benchmark: str, name: str, is_quick: str, directory: str) -> None:
    channel = Channel.open()
    workload = find({"generate": GENERATE, "busy": BUSY}.get(benchmark, STEP), name, is_quick=bool(int(is_quick)))
    place = Path(directory) / workload.size
    model = str(place)
    if workload.size == "shipped":
        model = str(model_directory("embedded"))
        if not place.is_dir():
            write_twin(model, place)
    elif workload.size == "smollm2":
        model = model_directory(str(GGUF))
        place = Path(model)
    elif not place.is_dir():
        write_model(SHAPES[workload.size], place, with_weights=workload.size not in WITHOUT_WEIGHTS)
    given = Given(workload=workload, model=model, twin=str(place), repetitions=_repetitions(workload))
    path = Path(directory) / f"{benchmark}-{name}.json"
    given.write(path)
    channel.reply({"given": str(path)})


def config_of(shape: dict) -> Qwen2Config:
    """The configuration of a shape, in bfloat16 as such models are published."""
    config = Qwen2Config(**shape, pad_token_id=0, eos_token_id=1, bos_token_id=None, dtype="bfloat16")
    config.architectures = ["Qwen2ForCausalLM"]
    return config


def write_model(shape: dict, place: Path, *, with_weights: bool = True) -> None:
    """Random weights, unless they are left out, and one word per token."""
    config = config_of(shape)
    if with_weights:
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config).bfloat16()
        model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
        model.save_pretrained(place)
    else:
        config.save_pretrained(place)
    words = {"<pad>": 0, "<end>": 1} | {f"w{index}": index for index in range(FIRST_WORD, shape["vocab_size"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<end>").save_pretrained(place)


def _repetitions(workload: Workload) -> tuple[tuple[Prompt, ...], ...]:
    count = workload.repetitions + 1
    made = {"shipped": _arithmetic, "smollm2": _word_problems}.get(workload.size, random_prompts)(workload, count)
    return tuple(
        tuple(
            Prompt(task_id=task_id, text=text, ids=ids, answer=answer, limits=limits)
            for (task_id, text, ids, answer), limits in zip(
                made[number * workload.prompts :], completion_limits(workload, number), strict=False
            )
        )
        for number in range(count)
    )


Made = list[tuple[str, str, tuple[int, ...], str]]


def _arithmetic(workload: Workload, count: int) -> Made:
    return prompts_of("embedded", "arithmetic", size=workload.prompts * count, system=None)


def _word_problems(workload: Workload, count: int) -> Made:
    return recipe_prompts("train", workload.prompts * count)


def recipe_prompts(split: str, size: int) -> Made:
    """The word problems of `make real`, as its recipe asks them."""
    recipe = yaml.safe_load(RECIPE.read_text())
    return prompts_of(str(GGUF), recipe["dataset"], split=split, size=size, system=recipe["system_prompt"])


def prompts_of(model: str, dataset: str, *, split: str = "train", size: int, system: str | None) -> Made:
    """Name, text, tokens and answer of the first prompts of a dataset, as a model's chat template writes them."""
    tokenizer = load_tokenizer(ModelConfig(model=model))
    rows = load_rows(dataset, split=split, size=size)
    tasks = build_tasks(rows, tokenizer, DataConfig(dataset=dataset), system=system).tasks
    for task in tasks:
        if tuple(tokenizer(task.prompt)["input_ids"]) != task.prompt_ids:
            raise ValueError(f"{task.task_id}: text and tokens differ, contenders would not see the same prompt")
    return [(task.task_id, task.prompt, task.prompt_ids, str(task.answer)) for task in tasks]


def random_prompts(workload: Workload, count: int) -> Made:
    """Prompts of a random model for `count` repetitions, one after the other."""
    rng, words = Random(0), range(FIRST_WORD, SHAPES[workload.size]["vocab_size"])
    prompts = [rng.choices(words, k=rng.randint(*workload.prompt_lengths)) for _ in range(workload.prompts * count)]
    return [
        (f"random:{number}", " ".join(f"w{token}" for token in ids), tuple(ids), "")
        for number, ids in enumerate(prompts)
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
