"""`GRPOTrainer` with vLLM in its process: the run of the built-in engine, and what TRL's fields of vLLM become."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig

from paceline import GRPOConfig, GRPOTrainer
from paceline.engines.vllm.window import check_vllm
from paceline.errors import ConfigError
from tests.support.tiny import tiny_model, tiny_tokenizer
from tests.support.trainer_settings import SHORT

try:
    check_vllm("cpu")
except ConfigError as missing:
    pytest.skip(str(missing), allow_module_level=True)

VLLM = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 64, "vllm_enable_sleep_mode": True}


def variety(completions: list[str], **columns: object) -> list[float]:
    """Many different letters earn more."""
    return [len(set(text)) / 10 for text in completions]


def trained(place: Path, *, adapter: LoraConfig | None = None, **changes) -> GRPOTrainer:
    made = GRPOTrainer(
        model=tiny_model("llama"),
        reward_funcs=variety,
        args=GRPOConfig(
            **{
                **SHORT,
                "output_dir": str(place),
                "max_completion_length": 16,
                "save_steps": 1,
                "max_steps": 2,
                **changes,
            }
        ),
        train_dataset=[{"prompt": f"What is {number} + 1?"} for number in range(4)],
        processing_class=tiny_tokenizer(),
        peft_config=adapter,
    )
    made.train()
    return made


def weights(made: GRPOTrainer) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in made.model.named_parameters()}


def logged(made: GRPOTrainer, name: str) -> list[float]:
    return [line[name] for line in made.state.log_history if name in line]


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> GRPOTrainer:
    return trained(tmp_path_factory.mktemp("local") / "run")


def test_without_correction_vllm_makes_the_run_of_the_built_in_engine_bit_for_bit(tmp_path, local):
    made = trained(tmp_path / "run", **VLLM, vllm_importance_sampling_correction=False)
    assert logged(made, "reward") == logged(local, "reward")
    mine, theirs = weights(made), weights(local)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_the_correction_is_on_as_in_trl_and_near_1_in_float32(tmp_path, local):
    made = trained(tmp_path / "run", **VLLM)
    assert logged(made, "reward") == logged(local, "reward")
    assert logged(made, "correction_masked_fraction") == [0.0, 0.0]
    mine, theirs = weights(made), weights(local)
    assert max(float((mine[name] - theirs[name]).abs().max()) for name in theirs) < 1e-3


def test_an_adapter_and_a_resumed_run_sample_with_vllm_too(tmp_path):
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=True)
    off = {"vllm_importance_sampling_correction": False}
    one = trained(tmp_path / "vllm", adapter=adapter, **VLLM, **off)
    other = trained(tmp_path / "local", adapter=adapter)
    assert logged(one, "reward") == logged(other, "reward")
    resumed = GRPOTrainer(
        model=tiny_model("llama"),
        reward_funcs=variety,
        args=one.args,
        train_dataset=one.train_dataset,
        processing_class=tiny_tokenizer(),
        peft_config=adapter,
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "vllm" / "checkpoint-1"))
    mine, theirs = weights(resumed), weights(one)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_evaluation_and_a_second_train_see_the_weights_as_they_are(tmp_path):
    made = trained(tmp_path / "run", **VLLM)
    first = weights(made)
    again = made.evaluate(made.train_dataset)
    made.train()
    assert again["eval_reward"] is not None
    assert any(not torch.equal(one, first[name]) for name, one in weights(made).items())
