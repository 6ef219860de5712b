"""Makes what contenders are given: python materials.py generate|step|busy|families WORKLOAD QUICK DIRECTORY

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
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from wider_heads import write_twin
from workloads import BUSY, FAMILIES, GENERATE, STEP, WITHOUT_WEIGHTS, Workload, completion_limits, find

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
GEMMA3 = {
    "model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 64, "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_5 = {
    "model_type": "qwen3_5_text", "num_hidden_layers": 8, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 6, "sliding_window": 64, "num_local_experts": 8,
    "num_experts_per_tok": 2, "router_aux_loss_coef": 0.0,
}  # fmt: skip
QWEN3_MOE = {
    "model_type": "qwen3_moe", "num_hidden_layers": 6, "num_experts": 32, "num_experts_per_tok": 4,
    "norm_topk_prob": True, "max_position_embeddings": 2048, "router_aux_loss_coef": 0.0, "tie_word_embeddings": True,
}  # fmt: skip
SHAPES |= {
    "gemma3-10m": GEMMA3 | {
        "vocab_size": 8192, "hidden_size": 320, "intermediate_size": 1024, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 64, "query_pre_attn_scalar": 64,
    },
    "gemma3-100m": GEMMA3 | {
        "vocab_size": 16_384, "hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 128, "query_pre_attn_scalar": 128,
    },
    "qwen3.5-10m": QWEN3_5 | {
        "vocab_size": 8192, "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 4,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    },
    "qwen3.5-100m": QWEN3_5 | {
        "vocab_size": 16_384, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 128, "linear_num_key_heads": 6, "linear_num_value_heads": 6,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    },
    "gpt-oss-10m": GPT_OSS | {
        "vocab_size": 8192, "hidden_size": 192, "intermediate_size": 192, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64,
    },
    "gpt-oss-100m": GPT_OSS | {
        "vocab_size": 16_384, "hidden_size": 640, "intermediate_size": 768, "num_attention_heads": 10,
        "num_key_value_heads": 2, "head_dim": 64,
    },
    "qwen3-moe-10m": QWEN3_MOE | {
        "vocab_size": 8192, "hidden_size": 192, "moe_intermediate_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64,
    },
    "qwen3-moe-100m": QWEN3_MOE | {
        "vocab_size": 16_384, "hidden_size": 640, "moe_intermediate_size": 224, "num_attention_heads": 10,
        "num_key_value_heads": 2, "head_dim": 64,
    },
}  # fmt: skip


def main(benchmark: str, name: str, is_quick: str, directory: str) -> None:
    channel = Channel.open()
    workload = find(
        {"generate": GENERATE, "busy": BUSY, "families": FAMILIES}.get(benchmark, STEP),
        name,
        is_quick=bool(int(is_quick)),
    )
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


def config_of(shape: dict) -> PretrainedConfig:
    """The configuration of a shape, in bfloat16 as such models are published; Qwen2's where it names no other type."""
    settings = {"model_type": "qwen2", "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None} | shape
    config = AutoConfig.for_model(**settings, dtype="bfloat16")
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    return config


def write_model(shape: dict, place: Path, *, with_weights: bool = True) -> None:
    """Random weights, unless they are left out, and one word per token."""
    config = config_of(shape)
    if with_weights:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).bfloat16()
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
