"""Every recipe starts: its own file, with its family's model and tokenizer made tiny, and rows with its columns.

Lengths, batches and steps are small, and a recipe for many processes is one process here. Two of those start on two
ranks as well, and that for Ray with a trainer and a sampler, whose processes are left out.
"""

import contextlib
import io
import json
import shlex
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.arguments import parse
from paceline.cli.main import main
from paceline.cli.train import COMMAND
from paceline.config.building import build_config
from paceline.training.session import train
from paceline.training.setup.configuration import read_configuration
from paceline.training.setup.preparation import prepare
from paceline.training.setup.run_request import RunRequest
from scripts.recipes import MODELS, ROOT, Recipe, recipes
from tests.support.chat_families import stop_ids_of, tokenizer_of
from tests.support.cluster_here import cluster_here
from tests.support.forked import torchrun

TOKENIZERS = {
    "Qwen2.5": "qwen2.5",
    "Qwen3": "qwen3",
    "Llama-3.2": "llama3.2",
    "SmolLM2": "smollm2",
    "SmolLM3": "chatml",
    "gemma-3": "gemma3",
    "gpt-oss": "chatml",
}
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
SMALL_PARTS = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
"""What only some families have."""
ROWS = {
    "openai/gsm8k:main": {"question": "A pen costs 3 dollars. Two pens?", "answer": "2 * 3 = 6\n#### 6"},
    "DigitalLearningGmbH/MATH-lighteval": {
        "problem": "What is $2 + 4$?",
        "level": "Level 1",
        "solution": "It is $\\boxed{6}$.",
        "type": "Prealgebra",
    },
    "HuggingFaceH4/MATH-500": {
        "problem": "What is $2 + 4$?",
        "solution": "It is $\\boxed{6}$.",
        "answer": "6",
        "subject": "Prealgebra",
        "level": 1,
        "unique_id": "test/prealgebra/1.json",
    },
    "open-r1/verifiable-coding-problems-python": {
        "source": "apps",
        "task_type": "verifiable_code",
        "in_source_id": "1",
        "problem_statement": "Print the sum of two numbers.",
        "gold_standard_solution": "print(sum(map(int, input().split())))",
        "problem_id": "vfc_1",
        "metadata": {"difficulty": "introductory", "time_limit": None},
        "verification_info": {
            "language": "python",
            "test_cases": [{"fn_name": None, "input": "1 2\n", "output": "3\n", "type": "stdin_stdout"}],
        },
    },
}
"""A row with the columns of each data set, as their pages on the Hub show them."""
SCALED = (
    "--max-steps 1 --warmup-steps 0 --prompts-per-step 2 --num-generations 4 --max-prompt-length 2048 --eval-size 2 "
    "--max-completion-length 24 --device cpu"
)
ONE_PROCESS = (
    "--cluster false --num-producers 1 --num-consumers 1 --sampling-ranks 0 --max-staleness 0 --on-new-weights finish "
    "--zero-stage 0"
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Tables of the `datasets` library are not kept beyond the tests."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


def tiny(recipe: Recipe, place: Path) -> Path:
    """A model of the recipe's family with its switches, and a tokenizer with its template."""
    name = str(recipe.options["model"])
    family = next(kind for start, kind in TOKENIZERS.items() if name.partition("/")[2].startswith(start))
    tokenizer = tokenizer_of(family)
    described = dict(MODELS[name].get("text_config", MODELS[name]))
    kind = described.pop("model_type")
    parts = {key: value for key, value in SMALL_PARTS.items() if key in described}
    ends = {"eos_token_id": sorted(stop_ids_of(family)), "pad_token_id": None, "bos_token_id": None}
    settings = described | SMALL | parts | ends | {"vocab_size": len(tokenizer)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **settings)
        AutoModelForCausalLM.from_config(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def folder(address: str, place: Path) -> Path:
    """Eight rows for training and as many held out, in the form of a data set of the Hub."""
    made = place / address.replace("/", "-").replace(":", "-")
    if not made.exists():
        made.mkdir()
        for split in ("train", "test"):
            (made / f"{split}.jsonl").write_text((json.dumps(ROWS[address]) + "\n") * 8)
    return made


def data(recipe: Recipe, place: Path) -> list[str]:
    """The options that put rows of this machine in the place of the Hub's, after the head's own conversion if any."""
    given = build_config(recipe.options).data
    for _, flag, code in (words for words in recipe.commands if words[:2] == ["python", "-c"]):
        (address,) = [one for one in ROWS if one in code]
        own = code.replace(address, str(folder(address, place))).replace("train_test_split(500", "train_test_split(4")
        assert (flag, own.count("train_test_split(4")) == ("-c", 1)
        with contextlib.chdir(place):
            exec(own, {})
        return ["--dataset", str(place / str(given.dataset)), "--allow-overlap"]
    if given.dataset not in ROWS:
        return ["--dataset-size", "8"]
    options = ["--dataset", str(folder(str(given.dataset), place))]
    if given.eval_dataset is not None:
        options += ["--eval-dataset", *(f"{name}={folder(one, place)}" for name, one in given.held_out)]
    return [*options, "--allow-overlap"]


def options(recipe: Recipe, place: Path) -> list[str]:
    config = build_config(recipe.options)
    words = ["--config", str(recipe.path), "--model", str(tiny(recipe, place / "model"))]
    words += [*shlex.split(SCALED), *data(recipe, place), "--output-dir", str(place / "run")]
    if config.environment.environment:  # turns and what is answered, in tokens of a letter or two
        words += ["--max-completion-length", "400", "--max-turn-length", "8", "--max-turns", "2"]
    # a random model answers nothing right: a random reward beside the recipe's own gives every group something to learn
    words += ["--reward-funcs", *config.rewards.names, "random"]
    if config.rewards.reward_weights is not None:
        words += ["--reward-weights", *map(str, config.rewards.reward_weights), "1"]
    if config.advantage.filter_range is not None:
        words += ["--filter-range=-9,9"]
    return [*words, "--engine", "local", "--vllm-memory", "none"]


@pytest.mark.parametrize("recipe", [pytest.param(one, id=one.path.stem) for one in recipes()])
def test_a_recipe_starts_on_a_tiny_model_of_its_family(recipe, tmp_path):
    config = build_config(recipe.options)
    if config.lora.lora_rank:
        pytest.importorskip("peft")
    if config.optim.optimizer == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    if str(config.data.dataset).startswith("reasoning_gym:"):
        pytest.importorskip("reasoning_gym")
    with contextlib.chdir(ROOT):
        assert main(["train", *options(recipe, tmp_path), *shlex.split(ONE_PROCESS)]) == 0
    run = RunDir(tmp_path / "run")
    (step,) = run.metrics()
    assert set(config.rewards.names) < set(step["rewards"])
    assert (len(run.rollouts(1)), step["groups_missing"], step["updates"]) == (8, 0, config.optim.num_minibatches)
    assert step["grad_norm"] > 0
    assert ("kl" in step) == (config.loss.beta > 0)
    assert (tmp_path / "run" / "final" / "adapter_config.json").exists() == bool(config.lora.lora_rank)
    assert [one["step"] for one in run.evals()] == [0, 1]


@pytest.mark.parametrize(
    ("name", "apart"), [("qwen2.5-7b-math-8x80gb", "0"), ("qwen3-4b-math-8x80gb", "1")], ids=["together", "apart"]
)
def test_a_recipe_for_eight_cards_starts_on_two_ranks(name, apart, tmp_path):
    (recipe,) = [one for one in recipes() if one.path.stem == name]
    words = ("train", *options(recipe, tmp_path), "--sampling-ranks", apart)
    done = torchrun("-m", "paceline", *words, count=2)
    assert done.returncode == 0, done.stderr
    (step,) = RunDir(tmp_path / "run").metrics()
    assert (step["groups_missing"], step["updates"]) == (0, 1)


def test_the_recipe_for_ray_samples_the_second_step_before_the_first_is_trained(tmp_path):
    (recipe,) = [one for one in recipes() if one.options.get("cluster")]
    apart = ("--max-steps", "2", "--num-producers", "1", "--num-consumers", "1", "--zero-stage", "0")
    given = parse(COMMAND, [*options(recipe, tmp_path), *apart])
    config = read_configuration(given.options, file=given.flags["config"]).config
    request = RunRequest(config=config, output_dir=tmp_path / "run")
    assert train(request, prepare(config), console=Console(file=io.StringIO()), make_backend=cluster_here)
    steps = RunDir(tmp_path / "run").metrics()
    assert [(step["updates"], step["staleness_max"]) for step in steps] == [(4, 0), (4, 4)]
