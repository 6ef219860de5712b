"""GRPOConfig: every field in one table, TRL's defaults, its batches, and one sentence for everything refused."""

import ast
import copy
import dataclasses
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import HfArgumentParser, TrainingArguments, get_scheduler
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType

import paceline
from paceline.compat.trl.batches import describe_plan, scheduler_words, total_updates
from paceline.compat.trl.config import GRPOConfig, layout_options
from paceline.compat.trl.fields import FIELD_OF, MEANINGS, accepted_without_effect, in_field_names, of_fields
from paceline.compat.trl.grpo_fields import GRPOFields
from paceline.compat.trl.notes import check_schedule, describe_rate
from paceline.compat.trl.training_fields import TrainingFields
from paceline.compat.trl.translation import RunContext, translate
from paceline.config.building import build_config
from paceline.config.objective import SCHEDULERS
from paceline.config.presets import PRESETS
from paceline.config.reading import options, scheduler_of
from paceline.errors import ConfigError
from paceline.training.trainer import SteppedRate, make_scheduler, updates_per_step

SOURCE = Path(paceline.__file__).parent
OURS = {
    "preset",
    "max_prompt_length",
    "warmup_ratio",
    "filter_range",
    "max_refills",
    "oversampling",
    "micro_batch_tokens",
    "on_bad_row",
    "reward_timeout",
    "max_reward_failure_rate",
    "step_timeout",
    "sandbox",
    "max_turn_length",
    "max_observation_length",
    "environment_timeout",
    "turn_credit",
    "history",
}
AROUND = RunContext(model="m", reward_names=("accuracy",), num_prompts=100, context_length=2048)


def make(**fields):
    return GRPOConfig(output_dir="run", **fields)


def config_of(around=AROUND, **fields):
    return translate(make(**fields), around)


def refusal(around=AROUND, **fields):
    """The sentence with which these fields are refused, by the configuration or by its translation."""
    with pytest.raises(ConfigError) as caught:
        config_of(around, **fields)
    assert "--" not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- tables


def test_every_field_has_one_row():
    assert set(MEANINGS) == {field.name for field in dataclasses.fields(GRPOConfig)}
    assert not set(GRPOFields.MEANINGS) & set(TrainingFields.MEANINGS)
    decided = {option for one in MEANINGS.values() for option in one.options}
    assert decided <= {option.name for option in options()}
    assert all(one.text for one in MEANINGS.values() if one.kind in ("refused", "idle"))
    assert all(one.note for one in MEANINGS.values() if one.kind == "kept")


def test_the_fields_known_without_transformers_are_those_of_transformers():
    theirs = {field.name: field for field in dataclasses.fields(TrainingArguments)}
    ours = {field.name: field for field in dataclasses.fields(TrainingFields)}
    assert set(theirs) <= set(ours)  # an older transformers lacks some, which GRPOConfig has all the same
    for name in set(theirs) - {field.name for field in dataclasses.fields(GRPOFields)}:
        assert ours[name].default == theirs[name].default, name


def test_the_words_known_without_transformers_are_those_of_transformers():
    words = {name: one.choices for name, one in MEANINGS.items()}
    assert words["logging_strategy"] == words["eval_strategy"] == tuple(word.value for word in IntervalStrategy)
    assert words["save_strategy"] == tuple(word.value for word in SaveStrategy)
    decided_here = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
    for name, keywords in SCHEDULERS.items():
        theirs = inspect.signature(TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(name)]).parameters
        assert keywords == tuple(one for one in theirs if one not in decided_here), name


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")
def test_every_field_of_trl_is_there_with_its_type_and_its_default():
    from trl import GRPOConfig as TheirConfig

    ours = {field.name: field for field in dataclasses.fields(GRPOConfig)}
    theirs = {field.name: field for field in dataclasses.fields(TheirConfig)}
    assert set(ours) - set(theirs) == OURS
    for name, field in theirs.items():
        mine = ours[name]
        assert (mine.default, mine.default_factory, mine.type) == (field.default, field.default_factory, field.type)


def test_every_field_has_a_help_text_of_its_own():
    own = [field for field in dataclasses.fields(GRPOConfig) if field.name in GRPOFields.__annotations__]
    assert len(own) > 80
    assert all(field.metadata["help"].endswith(".") for field in own)


def test_the_table_of_names_speaks_of_options_and_fields_that_exist():
    fields = {field.name for field in dataclasses.fields(GRPOConfig)} | {"model", "peft_config"}
    fields |= {"reward_funcs", "train_dataset", "environment_factory", "rollout_func"}
    assert set(FIELD_OF) - {"resume"} <= {option.name for option in options()}
    assert {re.match(r"\w+", field)[0] for field in FIELD_OF.values()} <= fields


OTHER = {bool: lambda value: not value, int: lambda value: value + 7, float: lambda value: value + 0.5}


def other_value(field):
    """A value that is not the default, by type; text where the default is text or None."""
    if field.default is dataclasses.MISSING:
        return ["something"]
    return OTHER.get(type(field.default), lambda value: "something")(field.default)


ALWAYS_REFUSED = [name for name, one in MEANINGS.items() if one.kind == "refused" and one.switch is None]


@pytest.mark.parametrize("name", sorted(ALWAYS_REFUSED))
def test_a_refused_field_is_named_with_its_reason_when_set(name):
    field = next(field for field in dataclasses.fields(GRPOConfig) if field.name == name)
    sentence = refusal(**{name: other_value(field)})
    assert sentence.startswith(f"{name} must be left out, got ")
    assert MEANINGS[name].text in sentence


def test_a_field_set_after_the_configuration_was_made_is_refused_as_well():
    args = make()
    args.neftune_noise_alpha = 5.0
    with pytest.raises(ConfigError, match=r"neftune_noise_alpha must be left out, got 5\.0: noise in the embeddings"):
        translate(args, AROUND)


def test_values_that_say_what_the_default_says_are_accepted():
    config_of(fsdp="", fsdp_config={}, local_rank=0, repetition_penalty=1, router_aux_loss_coef=0.0, debug="")


def test_what_has_no_effect_is_accepted_and_said_with_the_reason():
    args = make(dataloader_num_workers=2, log_multimodal=False, accelerator_config={"split_batches": True})
    line = accepted_without_effect(args)
    assert line.startswith("accepted without effect: ")
    assert "dataloader_num_workers (prompts are tokenised once" in line
    assert "accelerator_config (" in line
    assert "log_multimodal (images of prompts are in the run directory" in line
    assert "pin_memory" not in line


@pytest.mark.parametrize(
    ("fields", "said", "switched_on"),
    [
        ({"vllm_mode": "server"}, "vllm_mode (use_vllm is off)", {"use_vllm": True}),
        ({"vllm_structured_outputs_regex": "a+"}, "(use_vllm is off)", {"use_vllm": True}),
        ({"fsdp_config": {"a": 1}}, "(fsdp is off)", {"fsdp": "full_shard"}),
        ({"cast_lm_head_to_fp32": True}, "(every product is float32 without bf16)", {"bf16": True}),
    ],
)
def test_a_field_of_something_switched_off_is_accepted_and_said_and_refused_with_its_switch(fields, said, switched_on):
    args = make(**fields)
    translate(args, AROUND)
    assert said in accepted_without_effect(args)
    refusal(**fields, **switched_on)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ref_model_sync_steps": 8}, "ref_model_sync_steps (sync_ref_model is off)"),
        ({"entropy_target": 0.5}, "entropy_target (use_adaptive_entropy is off)"),
        ({"vespo_k_pos": 1.0}, "vespo_k_pos (loss_type is not vespo)"),
        ({"sapo_temperature_neg": 2.0}, "sapo_temperature_neg (loss_type is not sapo)"),
        ({"warmup_steps": 5, "lr_scheduler_type": "constant"}, "warmup_steps (lr_scheduler_type is constant)"),
        (
            {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_correction": False},
            "vllm_importance_sampling_mode (vllm_importance_sampling_correction is off)",
        ),
    ],
)
def test_a_field_that_something_else_leaves_idle_is_said(fields, said):
    args = make(**fields)
    config = translate(args, AROUND)
    assert said in accepted_without_effect(args)
    assert (config.loss.ref_sync_steps, config.optim.warmup_steps, config.loss.rollout_correction) == (0, 0, "none")


def test_vllm_samples_in_this_process_and_rollouts_are_corrected_as_in_trl():
    config = config_of(use_vllm=True, vllm_gpu_memory_utilization=0.5, vllm_tensor_parallel_size=2)
    engine, loss = config.engine, config.loss
    assert (engine.engine, engine.vllm_memory, engine.vllm_tensor_parallel) == ("vllm", 0.5, 2)
    assert (loss.rollout_correction, loss.correction_bounds) == ("sequence_mask", (0.0, 3.0))
    lower = config_of(use_vllm=True, vllm_importance_sampling_clip_min=0.5, vllm_importance_sampling_clip_max=None)
    assert lower.loss.correction_bounds == (0.5, 3.4e38)
    uncorrected = config_of(use_vllm=True, vllm_importance_sampling_correction=False)
    assert uncorrected.loss.rollout_correction == "none"
    assert config_of(vllm_gpu_memory_utilization=0.5).engine == config_of().engine


def test_vllms_length_leaves_a_prompt_what_the_completion_does_not_take():
    fields = {"use_vllm": True, "max_completion_length": 100}
    assert config_of(**fields, vllm_max_model_length=300).data.max_prompt_length == 200
    assert config_of(**fields, vllm_max_model_length=9000).data.max_prompt_length == 2048
    assert "hold a prompt of 1 tokens and a completion of 100, got 100" in refusal(**fields, vllm_max_model_length=100)
    assert "at least 350" in refusal(**fields, max_prompt_length=250, vllm_max_model_length=300)


def test_what_vllm_does_anyway_is_said():
    said = accepted_without_effect(make(use_vllm=True, vllm_enable_sleep_mode=True, vllm_server_port=1))
    assert "vllm_enable_sleep_mode (vLLM gives its memory back" in said
    assert "vllm_server_port (vllm_mode is colocate)" in said


def test_nothing_is_said_of_an_untouched_configuration():
    assert accepted_without_effect(make()) == ""


# --- construction


def test_a_machine_without_cuda_computes_in_float32_unless_bfloat16_is_asked_for():
    assert not make(use_cpu=True).bf16
    assert config_of(use_cpu=True).model.dtype == "float32"
    assert config_of(use_cpu=True).model.device == "cpu"
    assert config_of(use_cpu=True, bf16=True).model.dtype == "bfloat16"


def test_the_command_line_of_a_script_reads_lists_dicts_and_optional_switches():
    words = (
        "--output_dir run --reward_weights 1 0.5 --bf16 false --use_vllm false --log_completions "
        "--filter_range 0 1 --scale_rewards none --report_to tensorboard"
    ).split()
    words += ["--generation_kwargs", '{"top_k": 50}', "--model_init_kwargs", '{"dtype": "bfloat16"}']
    (args,) = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses(words)
    config = translate(args, RunContext(model="m", reward_names=("f", "g")))
    assert config.rewards.reward_weights == (1.0, 0.5)
    assert config.sampling.top_k == 50
    assert config.model.dtype == "bfloat16"
    assert config.advantage.filter_range == (0.0, 1.0)
    assert config.advantage.advantage == "none"
    assert config.loop.report_to == ("tensorboard",)


def test_a_copy_and_a_dictionary_of_the_configuration_make_it_again():
    args = make(steps_per_generation=4, gradient_accumulation_steps=2)
    assert dataclasses.replace(args, temperature=0.5).generation_batch_size == 32
    assert GRPOConfig(**args.to_dict()).steps_per_generation == 4


def test_batches_that_nobody_gave_follow_the_fields_that_they_are_made_of():
    args = make()
    args.per_device_train_batch_size = 16
    assert translate(args, AROUND).loop.prompts_per_step == 2
    assert (args.generation_batch_size, args.steps_per_generation) == (16, 1)
    replaced = dataclasses.replace(make(), per_device_train_batch_size=16, gradient_accumulation_steps=2)
    assert (replaced.generation_batch_size, replaced.steps_per_generation) == (32, 2)
    copied = dataclasses.replace(copy.deepcopy(make(steps_per_generation=4)), num_generations=4)
    copied.per_device_train_batch_size = 4
    assert translate(copied, AROUND).optim.num_minibatches == 4
    assert copied.generation_batch_size == 16


def test_a_batch_that_was_given_stays_and_is_checked_against_the_others():
    args = make(generation_batch_size=32)
    args.per_device_train_batch_size = 16
    translate(args, AROUND)
    assert (args.generation_batch_size, args.steps_per_generation) == (32, 2)
    with pytest.raises(ConfigError, match=r"generation_batch_size must be a multiple of .* \(64\), got 32"):
        dataclasses.replace(args, per_device_train_batch_size=64)


def test_text_that_says_a_number_is_that_number():
    args = make(max_steps="20", learning_rate="1e-5", warmup_steps="2", top_p="0.5")
    assert (args.max_steps, args.learning_rate, args.warmup_steps, args.top_p) == (20, 1e-5, 2.0, 0.5)
    args.learning_rate = "2e-5"
    assert translate(args, AROUND).optim.learning_rate == 2e-5


def test_an_objective_that_cannot_be_is_refused_when_the_configuration_is_made():
    with pytest.raises(ConfigError, match=r"epsilon must lie in \[0, 1\), got 1\.5: .*; 0\.2 is usual"):
        make(epsilon=1.5)
    with pytest.raises(ConfigError, match="delta must be above"):
        make(delta=0.5)


@pytest.fixture
def two_ranks(monkeypatch):
    """Variables as torchrun sets them on the second of two ranks."""
    variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    for name, value in {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)


def test_batches_count_the_completions_of_each_rank(two_ranks):
    args = make(per_device_train_batch_size=4, gradient_accumulation_steps=3, num_generations=8)
    assert (args.world_size, args.process_index, args.generation_batch_size) == (2, 1, 24)  # 4 * 2 ranks * 3
    assert translate(args, AROUND).loop.prompts_per_step == 3
    said = refusal(per_device_train_batch_size=4, gradient_accumulation_steps=1, num_generations=3)
    # 3 and 6 per rank are the nearest: 6 and 12 completions in groups of 3
    assert "8 completions of a batch (per_device_train_batch_size 4 * 2 processes * 1 micro-batches), got 3" in said
    assert "per_device_train_batch_size 3 and 6" in said


def test_a_launcher_that_says_half_of_it_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert refusal() == "RANK must be set for every rank, and is not; start the ranks with torchrun, which sets it"


def layout_of(monkeypatch, environment=(), **fields):
    for name, value in dict(environment).items():
        monkeypatch.setenv(name, value)
    return layout_options(make(**fields), os.environ)


ACCELERATE_3 = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}
FSDP_1 = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1", "FSDP_SHARDING_STRATEGY": "SHARD_GRAD_OP"}
FSDP_2 = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_SHARDING_STRATEGY": "FULL_SHARD"}


@pytest.mark.parametrize(
    ("environment", "fields", "options"),
    [
        ({}, {}, {}),
        ({}, {"fsdp": "full_shard auto_wrap"}, {"zero_stage": 3}),
        ({}, {"fsdp": "shard_grad_op offload"}, {"zero_stage": 2, "offload": ("parameters",)}),
        ({}, {"fsdp": True, "fsdp_config": {"reshard_after_forward": False}}, {"zero_stage": 2}),
        ({}, {"deepspeed": {"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}}, {"zero_stage": 1}),
        ({}, {"deepspeed": {"zero_optimization": {"stage": 3, "zero_quantized_weights": False}}}, {"zero_stage": 3}),
        ({}, {"deepspeed": {"train_batch_size": 16}}, {"zero_stage": 0}),  # 8 * 2 ranks
        ({}, {"parallelism_config": {"tp_size": 2}}, {"tensor_parallel": 2}),
        (ACCELERATE_3, {}, {"zero_stage": 3}),
        (ACCELERATE_3, {"deepspeed": {"zero_optimization": {"stage": 2}}}, {"zero_stage": 2}),  # the field comes first
        (FSDP_1, {}, {"zero_stage": 2}),
        ({**FSDP_2, "FSDP_RESHARD_AFTER_FORWARD": "true"}, {}, {"zero_stage": 3}),
        ({**FSDP_2, "FSDP_RESHARD_AFTER_FORWARD": "false"}, {}, {"zero_stage": 2}),
    ],
)
def test_layouts_of_other_tools_are_stages_here(two_ranks, monkeypatch, environment, fields, options):
    assert layout_of(monkeypatch, environment, **fields) == options


@pytest.mark.parametrize("by_launcher", [False, True])
def test_a_relative_file_of_deepspeeds_is_the_one_beside_the_program_wherever_it_goes(
    two_ranks, monkeypatch, tmp_path, by_launcher
):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    monkeypatch.chdir(tmp_path)
    if by_launcher:
        monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
        monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", "ds.json")
    args = make() if by_launcher else make(deepspeed="ds.json")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert layout_options(args, os.environ) == {"zero_stage": 2}


def test_one_process_has_all_slices(monkeypatch):
    assert layout_of(monkeypatch, ACCELERATE_3, fsdp="") == {}
    assert config_of(fsdp="full_shard").parallel.zero_stage == 0


@pytest.mark.parametrize(
    ("environment", "fields", "said"),
    [
        ({}, {"fsdp": "hybrid_shard"}, "fsdp must not be hybrid_shard: slices lie on all processes that train"),
        ({}, {"fsdp": "full_shard", "fsdp_config": {"xla": True}}, "fsdp_config xla has no counterpart here"),
        ({}, {"fsdp": "full_shard", "deepspeed": {"train_batch_size": 16}}, "deepspeed and fsdp both say how"),
        ({}, {"deepspeed": {"gradient_clipping": 0.5}}, "gradient_clipping must be 1.0 as in the arguments, got 0.5"),
        ({}, {"deepspeed": {"gradient_accumulation_steps": 4}}, "gradient_accumulation_steps must be 1 as in the"),
        ({}, {"deepspeed": {"scheduler": {"type": "WarmupLR"}}}, "the schedule is lr_scheduler_type"),
        ({}, {"deepspeed": {"optimizer": {"type": "Lamb"}}}, "optimizer has no counterpart here"),
        ({}, {"deepspeed": {"optimizer": {"type": "AdamW", "params": {"lr": 1.0}}}}, "lr must be"),
        ({}, {"deepspeed": {"fp16": {"enabled": True}}}, "fp16 must be off"),
        ({}, {"deepspeed": {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}}, "be to cpu"),
        ({}, {"deepspeed": {"zero_optimization": {"stage": 0, "offload_param": {"device": "cpu"}}}}, "with stage 1"),
        ({}, {"deepspeed": {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}}, "zero_hpz_partition"),
        (
            {},
            {"deepspeed": {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}},
            "weights has no counter",
        ),
        ({}, {"deepspeed": {"zero_optimization": {"stage": 2, "cpu_offload": True}}}, "cpu_offload has no counterpart"),
        ({}, {"deepspeed": "/no-such.json"}, "deepspeed must be a JSON file's path, got '/no-such.json'"),
        ({}, {"ddp_backend": "mpi"}, "ddp_backend must be one of nccl, gloo"),
        ({}, {"accelerator_config": {"split_batches": True}}, "split_batches must be False"),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, {}, "ACCELERATE_USE_MEGATRON_LM must be off"),
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, {}, "ACCELERATE_MIXED_PRECISION must be no or bf16, got 'fp16'"),
        ({**ACCELERATE_3, "ACCELERATE_GRADIENT_CLIPPING": "0.5"}, {}, "gradient_clipping must be 1.0"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_name(two_ranks, monkeypatch, environment, fields, said):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert said in refusal(**fields)


def test_importing_the_package_imports_neither_torch_nor_transformers():
    code = "import sys, paceline; sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    assert paceline.GRPOConfig is GRPOConfig
    assert {"GRPOConfig", "GRPOTrainer"} <= set(dir(paceline))
    with pytest.raises(AttributeError, match="no attribute 'SFTConfig'"):
        _ = paceline.SFTConfig


# --- batches


@pytest.mark.parametrize(
    ("fields", "prompts", "parts", "updates"),
    [
        ({}, 1, 1, 1),  # 8 completions, 8 of each prompt
        ({"gradient_accumulation_steps": 4}, 4, 1, 1),  # 8 * 4 / 8
        ({"steps_per_generation": 4}, 4, 4, 4),  # 32 completions, an update on every 8
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 2}, 4, 2, 2),
        ({"steps_per_generation": 2, "gradient_accumulation_steps": 4}, 4, 1, 1),  # two generations, one update
        ({"generation_batch_size": 64, "num_iterations": 3}, 8, 8, 24),
        ({"num_generations": 2, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 6}, 3, 1, 1),
    ],
)
def test_a_step_holds_the_larger_of_a_generation_and_an_update(fields, prompts, parts, updates):
    config = config_of(**fields)
    assert config.loop.prompts_per_step == prompts
    assert config.optim.num_minibatches == parts
    assert updates_per_step(config) == updates


def test_the_fields_of_the_generation_batch_are_filled_in():
    args = make(gradient_accumulation_steps=3)
    assert (args.steps_per_generation, args.generation_batch_size) == (3, 24)


def test_a_batch_without_whole_groups_is_refused_with_the_nearest_that_fit():
    assert refusal(per_device_train_batch_size=6, num_generations=4) == (
        "num_generations must divide the 6 completions of a batch (per_device_train_batch_size 6 * 1 micro-batches), "
        "got 4; the nearest that fit are num_generations 3 and 6, or per_device_train_batch_size 4 and 8, "
        "or 2 micro-batches (gradient_accumulation_steps)"
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"num_generations": 1},
            "num_generations must be a whole number of at least 2, got 1; an advantage compares the completions of one "
            "prompt (8 is usual)",
        ),
        (
            {"steps_per_generation": 3, "gradient_accumulation_steps": 2},
            "steps_per_generation must divide gradient_accumulation_steps (2) or be a multiple of it, got 3; the "
            "nearest that do are 2 and 4",
        ),
        (
            {"generation_batch_size": 20},
            "generation_batch_size must be a multiple of per_device_train_batch_size (8), got 20; the nearest that "
            "are: 16 and 24",
        ),
        (
            {"generation_batch_size": 16, "steps_per_generation": 4},
            "generation_batch_size must be per_device_train_batch_size * steps_per_generation (8 * 4 = 32), got 16; "
            "give only one of generation_batch_size and steps_per_generation",
        ),
        ({"num_iterations": 0}, "num_iterations must be a whole number of at least 1, got 0"),
    ],
)
def test_batch_numbers_at_odds_are_refused(fields, sentence):
    assert refusal(**fields) == sentence


def test_lengths_counted_in_updates_are_rounded_up_to_whole_steps():
    fields = {"steps_per_generation": 4, "max_steps": 10, "save_steps": 6, "warmup_steps": 5}
    config = config_of(**fields)  # 4 updates per step
    assert (config.loop.max_steps, config.loop.save_steps, config.optim.warmup_steps) == (3, 2, 2)
    assert total_updates(make(**fields), None) == 12


def test_a_share_of_the_run_is_counted_on_its_updates():
    config = config_of(gradient_accumulation_steps=4, warmup_ratio=0.1, save_steps=0.5, eval_strategy="epoch")
    # 3 epochs of 100 prompts, 4 per update: 75 updates
    assert (config.optim.warmup_steps, config.loop.save_steps, config.evaluation.eval_steps) == (8, 38, 0)
    assert config_of(gradient_accumulation_steps=4, warmup_steps=0.1).optim.warmup_steps == 8


# --- the objective


@pytest.mark.parametrize(
    ("loss_type", "bound", "average"),
    [
        ("grpo", "clip", "sequence"),
        ("bnpo", "clip", "token"),
        ("dr_grpo", "clip", "constant"),
        ("dapo", "clip", "token"),
        ("cispo", "cispo", "token"),
        ("sapo", "sapo", "sequence"),
        ("luspo", "clip", "sequence_sum"),
        ("vespo", "vespo", "token"),
    ],
)
def test_a_loss_type_is_a_bound_and_an_average(loss_type, bound, average):
    loss = config_of(loss_type=loss_type).loss
    assert (loss.bound, loss.average, loss.average_over) == (bound, average, "all")


def test_the_fields_of_the_objective_become_options():
    config = config_of(
        epsilon=0.1, epsilon_high=0.3, delta=2.0, beta=0.04, use_bias_correction_kl=False, entropy_coef=0.01,
        importance_sampling_level="sequence", mask_truncated_completions=True, off_policy_mask_threshold=0.5,
        sync_ref_model=True, ref_model_sync_steps=6, ref_model_mixup_alpha=0.9, steps_per_generation=4,
    )  # fmt: skip
    loss = config.loss
    assert (loss.clip_eps_low, loss.clip_eps_high, loss.bound_shape) == (0.1, 0.3, (2.0,))
    assert (loss.beta, loss.kl, loss.entropy_coef, loss.ratio_level) == (0.04, "k3", 0.01, "sequence")
    assert config_of(beta=0.04).loss.kl == "k3_ratio"
    assert (loss.off_policy_threshold, loss.ref_sync) == (0.5, (2.0, 0.9))
    assert config.advantage.mask_truncated


@pytest.mark.parametrize(
    ("scale", "advantage"),
    [
        ("group", "group"),
        (True, "group"),
        ("batch", "group_mean_reward_std"),
        ("none", "none"),
        (False, "none"),
    ],
)
def test_scale_rewards_says_what_the_advantage_is_divided_by(scale, advantage):
    assert config_of(scale_rewards=scale).advantage.advantage == advantage


def test_rewards_normalised_one_by_one_are_normalised_again_over_the_batch():
    advantage = config_of(multi_objective_aggregation="normalize_then_sum").advantage
    assert (advantage.reward_aggregation, advantage.advantage) == ("normalize_then_sum", "batch")


def test_the_bound_of_cispo_is_absolute():
    assert config_of(loss_type="cispo", epsilon_high=4.0).loss.clip_eps_high == 3.0
    assert config_of(loss_type="cispo").loss.clip_eps_high == 4.0


def test_the_upper_bound_follows_epsilon_when_it_is_not_given():
    assert config_of(epsilon=0.1).loss.clip_eps_high == 0.1


def test_rollouts_are_corrected_only_where_it_is_configured():
    assert config_of().loss.rollout_correction == "none"
    loss = config_of(vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_cap=2.5).loss
    assert (loss.rollout_correction, loss.correction_bounds) == ("token_truncate", (0.0, 2.5))
    loss = config_of(vllm_importance_sampling_clip_min=0.5).loss
    assert (loss.rollout_correction, loss.correction_bounds) == ("sequence_mask", (0.5, 3.0))


def test_the_numbers_of_soft_bounds_and_of_entropy_become_options():
    sapo = config_of(loss_type="sapo", sapo_temperature_pos=2.0).loss
    vespo = config_of(loss_type="vespo", vespo_k_neg=4.0, vespo_lambda_pos=1.5).loss
    assert (sapo.bound_shape, vespo.bound_shape) == ((2.0, 1.05), (2.0, 1.5, 4.0, 2.0))
    given = {"entropy_target": 0.4, "entropy_coef_max": 0.1, "entropy_coef": 0.01, "top_entropy_quantile": 0.2}
    loss = config_of(use_adaptive_entropy=True, **given).loss
    assert (loss.entropy_target, loss.entropy_coef) == ((0.4, 0.0, 0.1, 0.005), 0.01)
    assert (loss.top_entropy_quantile, config_of().loss.top_entropy_quantile) == (0.2, 1.0)
    assert config_of(adam_beta2=0.95).optim.adam_betas == (0.9, 0.95)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_preset_decides_where_no_field_does(preset):
    config = config_of(preset=preset)
    for name, value in PRESETS[preset].values.items():
        assert value in (getattr(config.advantage, name, None), getattr(config.loss, name, None))


def test_a_field_wins_over_the_preset():
    config = config_of(preset="dapo", epsilon_high=0.4, max_refills=1, scale_rewards="none")
    assert (config.loss.clip_eps_high, config.loss.clip_eps_low) == (0.4, 0.2)
    assert (config.advantage.max_refills, config.advantage.advantage) == (1, "none")
    assert config_of(preset="cispo", epsilon_high=4.0).loss.clip_eps_high == 3.0


# --- sampling, data, schedule


def test_generation_keywords_win_over_fields_of_their_name():
    config = config_of(top_p=0.9, generation_kwargs={"top_p": 0.8, "do_sample": True, "stop_strings": "END"})
    assert (config.sampling.top_p, config.sampling.stop) == (0.8, ("END",))


def test_prompts_are_bounded_by_the_models_context_or_lose_their_beginning():
    assert (config_of().data.max_prompt_length, config_of().data.long_prompts) == (2048, "error")
    bounded = config_of(max_prompt_length=16).data
    assert (bounded.max_prompt_length, bounded.long_prompts) == (16, "truncate_left")


def test_the_template_is_told_whether_to_think():
    assert config_of(chat_template_kwargs={"enable_thinking": False}).data.enable_thinking is False
    data = config_of(chat_template_kwargs={"enable_thinking": True, "effort": "low", "tags": ["a", 1]}).data
    assert data.chat_template_kwargs == ('effort="low"', 'tags=["a", 1]')
    assert data.switches == {"enable_thinking": True, "effort": "low", "tags": ["a", 1]}


def test_evaluation_samples_as_training_does():
    evaluation = config_of(num_generations_eval=2, temperature=0.7, eval_strategy="steps", eval_steps=5).evaluation
    assert (evaluation.eval_generations, evaluation.eval_temperature, evaluation.eval_steps) == (2, 0.7, 5)


@pytest.mark.parametrize(
    ("fields", "schedule", "warmup", "ratio"),
    [
        ({}, "linear", 0, 0.0),
        ({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3}, "constant", 3, 0.0),
        ({"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}, "cosine", 0, 0.1),
        ({"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 5e-7}}, "cosine", 0, 0.5),
    ],
)
def test_a_schedule_is_a_shape_a_warm_up_and_an_end(fields, schedule, warmup, ratio):
    optim = config_of(**fields).optim
    assert (optim.lr_schedule, optim.warmup_steps, optim.min_lr_ratio) == (schedule, warmup, ratio)


SCHEDULES = [
    ("linear", None, 3),
    ("linear", None, 0.25),
    ("cosine", None, 3),
    ("constant", None, 0),
    ("constant_with_warmup", None, 3),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1}, 2),
    ("cosine_with_restarts", {"num_cycles": 2}, 0),
    ("cosine_warmup_with_min_lr", {"min_lr": 1e-5}, 2),
    ("polynomial", {"power": 2.0}, 1),
    ("inverse_sqrt", None, 3),
    ("warmup_stable_decay", {"num_decay_steps": 4}, 2),
]


@pytest.mark.parametrize(("kind", "keywords", "warmup"), SCHEDULES)
def test_every_schedule_has_the_rates_of_transformers_update_by_update(kind, keywords, warmup):
    args = make(lr_scheduler_type=kind, lr_scheduler_kwargs=keywords, warmup_steps=warmup, learning_rate=1e-4)
    translate(args, AROUND)
    check_schedule(args, total=12)
    rates = [[], []]
    for seen, theirs in zip(rates, (False, True), strict=True):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-4)
        scheduler = (
            get_scheduler(
                kind, optimizer, num_warmup_steps=args.get_warmup_steps(12), num_training_steps=12,
                scheduler_specific_kwargs=keywords,
            )
            if theirs
            else make_scheduler(scheduler_words(args), optimizer, total=12)
        )  # fmt: skip
        rate = SteppedRate(optimizer, scheduler)
        for _ in range(12):
            rate.advance()
            seen.append(rate.last)
    assert rates[0] == rates[1]


def test_the_rise_begins_at_zero_and_the_fall_ends_one_update_after_the_last():
    args = make(lr_scheduler_type="linear", warmup_steps=3, learning_rate=1e-4)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-4)
    rate = SteppedRate(optimizer, make_scheduler(scheduler_words(args), optimizer, total=12))
    seen = []
    for _ in range(12):
        seen.append(rate.current)
        rate.advance()
    assert seen[:5] == pytest.approx([0, 1e-4 / 3, 2e-4 / 3, 1e-4, 1e-4 * 8 / 9])
    assert seen[-1] == pytest.approx(1e-4 / 9)


def test_keywords_that_a_schedule_cannot_take_are_refused():
    sentence = refusal(lr_scheduler_type="cosine_with_restarts", lr_scheduler_kwargs={"num_cycle": 2})
    assert sentence == "lr_scheduler_kwargs must not have 'num_cycle', got 2; did you mean num_cycles?"
    args = make(lr_scheduler_type="polynomial", lr_scheduler_kwargs={"lr_end": 1.0})
    with pytest.raises(
        ConfigError, match=r"lr_scheduler_kwargs must be such that 'polynomial' can be made, got .*1\.0"
    ):
        check_schedule(args, total=12)


def test_a_schedule_is_said_with_its_warm_up():
    line = describe_rate(make(warmup_ratio=0.5), total=5)
    assert line.startswith("learning rate: transformers' schedule 'linear' over 5 updates, 3 of them warm-up")


@pytest.mark.parametrize(("kind", "keywords", "warmup"), SCHEDULES)
def test_an_option_says_every_schedule(kind, keywords, warmup):
    words = scheduler_words(make(lr_scheduler_type=kind, lr_scheduler_kwargs=keywords, warmup_steps=warmup))
    config = build_config({"model": "m", "dataset": "d", "lr_scheduler": words})
    assert config.optim.lr_scheduler == words
    expected = {"warmup": warmup, **(keywords or {})} if warmup else keywords or {}
    assert scheduler_of(words) == (kind, expected)


# --- refusals


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"epsilon": 1.5}, "epsilon must lie in [0, 1), got 1.5: the ratio is held above 1 - epsilon; 0.2 is usual"),
        ({"delta": 1.1}, "delta must be above 1 + epsilon_high (0.2), got 1.1; 3 is usual, None is off"),
        ({"delta": 0.0}, "delta must be above 1 + epsilon_high (0.2), got 0.0; 3 is usual, None is off"),
        ({"beta": -0.1}, "beta must be at least 0, got -0.1"),
        ({"loss_type": "grop"}, "loss_type must be one of grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo, vespo, got "),
        ({"loss_type": "vespo", "importance_sampling_level": "sequence"}, "importance_sampling_level must be token"),
        ({"scale_rewards": "grup"}, "scale_rewards must be one of group, batch, none, got 'grup'; did you mean group?"),
        ({"preset": "dr_grp"}, "preset must be one of grpo, dapo, dr_grpo, "),
        ({"optim": "sgd"}, "optim must be one of adamw_torch, adamw_torch_fused, adamw_apex_fused, paged_adamw"),
        ({"lr_scheduler_type": "greedy"}, "lr_scheduler_type must be one of constant, constant_with_warmup, "),
        ({"max_steps": "two"}, "max_steps must be a whole number, got 'two'; write it in digits, without quotes"),
        ({"max_steps": 2.5}, "max_steps must be a whole number, got 2.5; write it in digits"),
        ({"seed": None}, "seed must be a whole number, got None; write it in digits"),
        ({"learning_rate": "low"}, "learning_rate must be a number, got 'low'; write it in digits"),
        ({"learning_rate": [1e-5]}, "learning_rate must be a number, got [1e-05]; write it in digits"),
        ({"generation_kwargs": {"stop": ["x"]}}, "generation_kwargs must not have 'stop', got ['x']; did you mean "
            "stop_strings?"),
        ({"generation_kwargs": {"max_tokens": 9}}, "generation_kwargs max_tokens is refused, got 9; set max_compl"),
        ({"eval_strategy": "step"}, "eval_strategy must be one of no, steps, epoch, got 'step'; did you mean steps?"),
        ({"hub_strategy": "checkpoint"}, "hub_strategy must be one of every_save, end, got 'checkpoint'; the model "),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0; greedy completions of one prompt are all the "),
        ({"max_completion_length": None}, "max_completion_length must be a whole number, got None"),
        ({"num_generations_eval": 0}, "num_generations_eval must be at least 1, got 0"),
        ({"epsilon_high": 0.28, "loss_type": "cispo"}, "epsilon_high must be at least 1 with the bound of cispo, "),
        ({"epsilon": 0.1, "loss_type": "sapo"}, "epsilon must be left out with loss_type 'sapo', got 0.1: its ratio "),
        ({"delta": 3.0, "preset": "cispo"}, "delta must be left out with preset 'cispo', got 3.0: its ratio is not"),
        ({"sync_ref_model": True}, "sync_ref_model must be False while beta is 0, got True: there is no reference "),
        ({"reward_weights": [1.0, 2.0]}, "reward_weights must have one number for each of the 1 rewards (accuracy), "),
        ({"max_refills": 2}, "max_refills must be 0 without filter_range, got 2; only filtered groups are replaced"),
        ({"warmup_steps": 5, "max_steps": 4}, "warmup_steps must be at most max_steps (4), got 5; the peak would "),
        ({"warmup_ratio": 1.5}, "warmup_ratio must lie in [0, 1), got 1.5; warmup_steps takes a number of updates"),
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, "lr_scheduler_kwargs must not have 'num_cycles', got 2; what "),
        ({"generation_kwargs": {"temperature": 0.5}}, "generation_kwargs must not have another temperature than the "),
        ({"generation_kwargs": {"top_kk": 5}}, "generation_kwargs must not have 'top_kk', got 5; did you mean top_k"),
        ({"generation_kwargs": {"num_beams": 4}}, "generation_kwargs num_beams must be 1, got 4; leave it out"),
        ({"model_init_kwargs": {"dtype": "float16"}}, "model_init_kwargs dtype must be one of float32, auto, "),
        ({"model_init_kwargs": {"revison": "v2"}}, "model_init_kwargs must not have 'revison', got 'v2'; did you"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs must not have 'tools', got []; "),
        (
            {"vllm_importance_sampling_mode": "token", "use_cpu": True},
            "vllm_importance_sampling_mode must be one of token_truncate, token_mask, sequence_truncate, ",
        ),
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused_in_one_sentence_that_names_it(fields, sentence):
    assert refusal(**fields).startswith(sentence)


def test_a_moving_reference_is_refused_with_an_adapter():
    around = dataclasses.replace(AROUND, adapter=True)
    assert refusal(around, sync_ref_model=True, beta=0.1).startswith("sync_ref_model must be False with a PEFT model")


def test_a_share_of_a_run_of_unknown_length_is_refused():
    around = dataclasses.replace(AROUND, num_prompts=None)
    assert refusal(around, save_steps=0.5).startswith("save_steps must be 1 or more for a dataset without a length")


REACHED = [
    path
    for folder in (
        *("data", "models", "rewards", "engines", "training", "training/learner", "training/rollouts"),
        "reports/trackers",
    )
    for path in sorted((SOURCE / folder).glob("*.py"))
    # datasets and functions by name, and the command line's own way into the loop and back, are not reached from here
    if path.name not in ("files.py", "generators.py", "hub.py", "sources.py", "system_message.py", "resolving.py")
    and path.name not in ("session.py", "identity.py")
]


def text_of(node):
    """Text of a literal, with 4 for every value in it; None for other expressions."""
    if isinstance(node, ast.JoinedStr):
        return "".join(one.value if isinstance(one, ast.Constant) else "4" for one in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def errors_in(path):
    """Every text in the code of a file as the message or the remedy of an error, documentation left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    parts = [keyword.value for call in calls for keyword in call.keywords if keyword.arg in ("remedies", "then")]
    remedies = [node for part in parts for node in ast.walk(part) if text_of(node) is not None]
    yield from (ConfigError("", remedies=[text_of(node)]) for node in remedies)
    for node in [*ast.walk(tree), *(argument for call in calls for argument in call.args)]:
        alone = isinstance(node, ast.JoinedStr) or any(node in call.args for call in calls)
        if alone and node not in remedies and text_of(node) is not None:
            yield ConfigError(text_of(node))


NEVER_SAID = (
    *("--long-prompts drop leaves no row", "--prompt-column", "--answer-column", "ranks share the tokens"),
    *("recurrent layers carry a state", "--system-prompt", "--eval-share", "a router chose"),
    "recorded routes have",
)
"""Prompts are never dropped, no other column, system message, share or model is ever named; there is one process."""


@pytest.mark.parametrize("path", REACHED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_name_of_an_option_that_is_no_field_reaches_a_user(path):
    known = {field.name for field in dataclasses.fields(GRPOConfig)} | {"eval_dataset", "reward_funcs"}
    strange = {option.name for option in options()} - known
    for error in errors_in(path):
        if "--" in str(error) and not str(error).startswith(NEVER_SAID):
            said = str(of_fields(error))
            assert "--" not in said.replace("---", "")
            words = set(re.findall(r"(?<![\w.])[a-z]+(?:_[a-z]+)+", said))
            assert not words & strange, said
            assert in_field_names(said) == said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError("", remedies=["mend the row", "name another column with --prompt-column"]), "; mend the row"),
        (ConfigError("above --max-reward-failure-rate 0.05"), "above max_reward_failure_rate 0.05"),
        (ConfigError("--reward-funcs judge cannot be loaded"), "reward_funcs judge cannot be loaded"),
        (ConfigError("--lora-targets must name layers"), "peft_config.target_modules must name layers"),
        (ConfigError("", remedies=["name the right column with --answer-column"]), "; give them in a column `answer`"),
        (
            ConfigError("it is full", remedies=["make room for it"], then="--resume the run"),
            "it is full; make room for it, then continue it with train(resume_from_checkpoint=True)",
        ),
        (ConfigError("it waits (--stop-grace 3)"), "it waits"),
        (ConfigError("train an adapter (--lora-rank) on it"), "train an adapter (peft_config.r) on it"),
        (ConfigError("--max-prompt-length 4", remedies=["raise --clip-eps-high"]), "max_prompt_length 4; raise "
            "epsilon_high"),
    ],
)  # fmt: skip
def test_an_error_is_said_of_fields_with_remedies_that_a_program_has(error, said):
    assert str(of_fields(error)) == said


# --- the plan


def test_the_plan_shows_the_counts_of_trl_beside_ours():
    fields = {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 5}
    args = make(**fields, loss_type="cispo", disable_dropout=True)
    plan = describe_plan(args, translate(args, AROUND))
    assert "completions per update: 16 (TRL: per_device_train_batch_size 8 * gradient_accumulation_steps 2)" in plan
    assert "prompts per update: 2 (num_generations 8)" in plan
    assert "updates per rollout batch: 4 = 2 parts * num_iterations 2" in plan
    assert "completions per rollout batch: 32 of 4 prompts (TRL: generation_batch_size 32)" in plan
    assert "length: 2 rollout batches, 8 updates (global_step), rounded up from max_steps 5" in plan
    assert "cispo: a ratio weighs at most 5.0 (TRL would take epsilon, 0.2, and hold every weight there)" in plan
    assert "accepted without effect: disable_dropout (dropout is always off" in plan
