"""Of a checkpoint that also reads images, the language model alone is loaded, trained and written."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import paceline
from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.config.objective import LossConfig, OptimConfig
from paceline.config.sections import LoraConfig, ModelConfig
from paceline.errors import ModelError
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded, export_model
from paceline.models.loading import adopt_model, load_model, restore_weights
from paceline.models.pretrained import end_token_ids, is_text_part, read_config, text_config
from paceline.reports.model_card import loading_program
from paceline.training.card import card_facts
from paceline.training.learner.learner import Learner
from paceline.training.plan.shape import read_shape
from paceline.types import Completion, Rollout, RolloutGroup, Task, completed
from paceline.workers.weight_sync import manifest_of, read_bucket, weights_in, write_weights
from tests.support.multimodal import TEXT_PARTS, multimodal_model
from tests.support.tiny import tiny_tokenizer

TOKENS = torch.tensor([[5, 8, 13, 21, 34, 55, 89, 144, 2, 3]])


def written(name: str, folder: Path, **settings: object) -> torch.Tensor:
    """Write the directory of a model that reads images, and return its logits."""
    model = multimodal_model(name, **settings)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return logits(model)


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model.eval()(input_ids=TOKENS, use_cache=False).logits


def test_an_end_token_that_is_named_beside_the_parts_alone_ends_completions(tmp_path):
    written("gemma3", tmp_path)
    file = tmp_path / "config.json"
    named = json.loads(file.read_text())
    named["text_config"].pop("eos_token_id", None)
    file.write_text(json.dumps({**named, "eos_token_id": 77}))
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    tokenizer, config = tiny_tokenizer(), ModelConfig(model=str(tmp_path))
    model = load_model(config).model
    for described in (read_config(config), model.config):
        assert 77 in end_token_ids(tokenizer, None, described)


def is_alike(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return whether logits differ by rounding only, as products of other kernels do."""
    return torch.allclose(got, wanted, rtol=0, atol=2e-5)


def trained(loaded: Loaded, steps: int = 2) -> Loaded:
    learner = Learner(
        loaded, choose_forward(loaded.model), reference=None, loss=LossConfig(), optim=OptimConfig(), temperature=1.0,
        max_completion_length=8,
    )  # fmt: skip
    task = Task(task_id="1", prompt="", prompt_ids=(5, 6, 7), answer=None)
    rollouts = tuple(
        Rollout(trajectory=completed((5, 6, 7), completion(ids)), rewards={}, reward=advantage, advantage=advantage)
        for ids, advantage in (((9, 10, 11), 1.0), ((12, 13), -1.0))
    )
    for _ in range(steps):
        learner.step([RolloutGroup(task=task, rollouts=rollouts)], learning_rate=1e-2)
    return loaded


def completion(ids: tuple[int, ...]) -> Completion:
    return Completion(token_ids=ids, logprobs=(-5.0,) * len(ids), text="", finish_reason="length", policy_version=0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TEXT_PARTS)
def test_the_language_model_is_loaded_trained_written_and_opened_again(name, tmp_path):
    whole = written(name, tmp_path / "whole")
    config = ModelConfig(model=str(tmp_path / "whole"), device="cpu")
    assert is_text_part(config)
    loaded = load_model(config)
    assert not any("vision" in module or "visual" in module for module, _ in loaded.model.named_modules())
    assert is_alike(logits(loaded.model), whole)
    trained(loaded)
    after = logits(loaded.model)
    assert not torch.allclose(after, whole, rtol=0, atol=1e-3)
    export_model(loaded, tiny_tokenizer(), tmp_path / "final", merge=False)
    described = json.loads((tmp_path / "final" / "config.json").read_text())
    assert described["architectures"] == [type(loaded.model).__name__]
    assert "vision_config" not in described
    names = load_file(tmp_path / "final" / "model.safetensors")
    assert not [name for name in names if "language_model" in name or "vision" in name or "visual" in name]
    opened, report = AutoModelForCausalLM.from_pretrained(tmp_path / "final", output_loading_info=True)
    assert not any(report.values())
    assert is_alike(logits(opened), after)
    assert is_alike(logits(load_model(ModelConfig(model=str(tmp_path / "final"), device="cpu")).model), after)
    fresh = load_model(config)
    restore_weights(fresh, tmp_path / "final")
    assert is_alike(logits(fresh.model), after)
    assert is_alike(logits(load_model(config, checkpoint=tmp_path / "final").model), after)


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "llama4"])
def test_a_users_object_is_trained_in_place_without_its_tower(name):
    whole = multimodal_model(name)
    before = logits(whole)
    loaded = adopt_model(whole, ModelConfig(model="m", device="cpu"))
    assert is_alike(logits(loaded.model), before)
    trained(loaded)
    assert not is_alike(logits(whole), before)
    assert is_alike(logits(loaded.model), logits(whole))


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_tied_as_in_the_whole_model(tied, tmp_path):
    whole = written("mistral3", tmp_path, tie_word_embeddings=tied)
    model = load_model(ModelConfig(model=str(tmp_path), device="cpu")).model
    assert torch.equal(logits(model), whole)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert model.config.tie_word_embeddings == tied


def test_two_embeddings_in_the_files_are_not_tied_by_a_default_of_the_whole(tmp_path):
    """As Mistral Small is published: its configuration says nothing of ties, and transformers' own ties them."""
    whole = written("mistral3", tmp_path, tie_word_embeddings=False)
    described = json.loads((tmp_path / "config.json").read_text())
    del described["tie_word_embeddings"], described["text_config"]["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(described))
    model = load_model(ModelConfig(model=str(tmp_path), device="cpu")).model
    assert torch.equal(logits(model), whole)
    assert not model.config.tie_word_embeddings


@pytest.mark.long
def test_an_adapter_on_all_linear_layers_leaves_no_matrix_in_a_tower_and_opens_by_its_card(tmp_path):
    written("gemma3", tmp_path / "base")
    config = ModelConfig(model=str(tmp_path / "base"), device="cpu")
    loaded = trained(load_model(config, LoraConfig(lora_rank=2)))
    names = [name for name, weight in loaded.model.named_parameters() if weight.requires_grad]
    assert len(names) == 6 * 7 * 2  # layers, their products, two matrices each
    export_model(loaded, tiny_tokenizer(), tmp_path / "adapter", merge=False)
    run = build_config({"model": config.model, "dataset": "arithmetic"})
    again = load_model(ModelConfig(model=str(tmp_path / "adapter"), device="cpu"))
    assert torch.equal(logits(again.model), logits(loaded.model))
    program = loading_program(card_facts(RunDir(tmp_path), run, tmp_path / "adapter", step=2)).split("prompt =")[0]
    opened = {}
    exec(program.replace('folder = "."', f"folder = {str(tmp_path / 'adapter')!r}"), opened)  # what the card says
    assert is_alike(logits(opened["model"]), logits(loaded.model))


def test_a_peft_model_around_the_whole_is_refused():
    import peft

    whole = peft.get_peft_model(multimodal_model("gemma3"), peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ModelError, match="PeftModel is around a Gemma3ForConditionalGeneration, of which only the"):
        adopt_model(whole, ModelConfig(model="m", device="cpu"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TEXT_PARTS)
def test_trained_weights_arrive_at_a_sampler_of_the_same_directory(name, tmp_path):
    written(name, tmp_path)
    config = ModelConfig(model=str(tmp_path), device="cpu")
    loaded, sampler = trained(load_model(config)), load_model(config).model
    manifest = manifest_of(loaded.model, version=1, policy_version=2)
    buckets = [read_bucket(loaded.model, names) for names in manifest.buckets]
    write_weights(sampler, manifest, weights_in(sampler, manifest, buckets))
    assert torch.equal(logits(sampler), logits(loaded.model))


def test_a_plan_counts_no_weight_of_a_tower(tmp_path):
    written("gemma3", tmp_path)
    shape = read_shape(str(tmp_path))
    assert shape.parameters == load_model(ModelConfig(model=str(tmp_path), device="cpu")).model.num_parameters()
    (tmp_path / "model.safetensors").unlink()
    assert read_shape(str(tmp_path)).parameters == shape.parameters


def test_precision_and_quantisation_beside_the_parts_are_the_language_models():
    config = multimodal_model("gemma3").config
    config.text_config.dtype, config.dtype = None, torch.bfloat16
    config.quantization_config = {"quant_method": "fp8"}
    text = text_config(config)
    assert (text.model_type, text.dtype, text.quantization_config) == (
        "gemma3_text", torch.bfloat16, {"quant_method": "fp8"},
    )  # fmt: skip
    assert text_config(text) is text


@pytest.mark.long
def test_a_run_trains_resumes_and_says_that_its_final_model_does_not_see(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written("mistral3, ministral3", tmp_path / "base")
    options = {
        "model": "base", "dataset": "arithmetic", "dataset_size": 8, "device": "cpu", "output_dir": "run",
        "num_generations": 2, "prompts_per_step": 2, "max_completion_length": 8, "save_steps": 1,
    }  # fmt: skip
    paceline.train(**options, max_steps=1)
    paceline.train(resume="run", max_steps=2)
    card = (tmp_path / "run" / "final" / "README.md").read_text()
    assert "also reads images or sound; this is its language model alone, a causal language model" in card
    assert "AutoModelForCausalLM.from_pretrained(folder)" in card
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "final")
    assert type(opened).__name__ == "Ministral3ForCausalLM"
