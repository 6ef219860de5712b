"""Other tools' command lines: the sources' own as golden files, every flag in one table, and what is refused."""

import dataclasses
import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.arguments import parse
from paceline.cli.main import main
from paceline.cli.train import COMMAND as TRAIN
from paceline.compat.commands.command import translate
from paceline.compat.commands.fields import FIELD_NAMES
from paceline.compat.commands.swift import tables as swift
from paceline.compat.commands.translation import as_comments, as_shell
from paceline.compat.commands.trl import SCRIPT_FLAGS, known_flags
from paceline.config.building import build_config
from paceline.config.reading import options
from paceline.errors import ConfigError
from tests.support.colossalchat_commands import words_of

GOLDEN = Path(__file__).parents[2] / "golden" / "translate"
COMMANDS = sorted(GOLDEN.glob("*.command"))


def read_golden(name):
    return (GOLDEN / f"{name}.txt").read_text()


def output(path):
    """What `paceline translate` prints for a command; of one that is refused, the sentence."""
    repair = ".repaired" in path.name
    try:
        found = translate(words_of(path.read_text()), repair=repair, read=read_golden)
    except ConfigError as error:
        return f"paceline: {error}\n"
    return as_comments(found.notes) + as_shell(found)


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_the_sources_own_commands_translate_as_they_did(path):
    assert output(path) == path.with_suffix(".txt").read_text()


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_what_is_printed_is_a_command_of_paceline(path):
    if path.with_suffix(".txt").read_text().startswith("paceline: "):
        pytest.skip("is refused, as there")
    found = translate(words_of(path.read_text()), repair=".repaired" in path.name, read=read_golden)
    words = words_of(as_shell(found))
    start = words.index("paceline")
    assert words[start + 1] == "train"
    assert build_config(parse(TRAIN, words[start + 2 :]).options) == build_config(found.options)


PAGE = (Path(__file__).parents[3] / "docs" / "moving.md").read_text().replace("\\\n", " ")
BEFORE_AND_AFTER = [
    (before, after)
    for section in PAGE.split("## ")
    for before, after in re.findall(r"    paceline translate -- (.*)\n\n[^|]*?prints.*\n\n    (.*)\n", section)
]


@pytest.mark.parametrize(("before", "after"), BEFORE_AND_AFTER)
def test_the_page_says_what_comes_of_its_commands(before, after):
    assert words_of(as_shell(translate(words_of(before), read=read_golden))) == words_of(after)


def test_the_page_has_a_command_of_each_that_is_not_refused():
    assert len(BEFORE_AND_AFTER) == 2


def translated(text, **files):
    return translate(words_of(text), read=lambda path: files[path.replace(".", "_")])


SWIFT = "swift rlhf --rlhf_type grpo --model M --dataset rows.jsonl --reward_funcs accuracy --num_generations 2 "
SWIFT += "--per_device_train_batch_size 4"
TRL = "trl grpo --model_name_or_path M --dataset_name rows.jsonl --reward_funcs accuracy_reward"


def refusal(text, **files):
    with pytest.raises(ConfigError) as caught:
        translated(text, **files)
    return str(caught.value)


@functools.cache
def outcome(*words):
    """The translation, or the sentence of its refusal."""
    try:
        return translate(words, read=read_golden)
    except ConfigError as error:
        return str(error)


def notes(text, kind, **files):
    return {note.about: note.text for note in translated(text, **files).notes if note.kind == kind}


def test_no_flag_of_trls_script_is_a_field():
    assert not set(SCRIPT_FLAGS) & set(FIELD_NAMES)
    assert all(one.kind == "refused" for one in SCRIPT_FLAGS.values() if one.also)


def test_the_command_line_of_an_installed_trl_has_no_other_flags():
    trl = pytest.importorskip("trl")
    arguments = pytest.importorskip("trl.scripts.grpo").GRPOScriptArguments
    # not of its parser, which changes the types of TRL's fields as it is made
    kinds = (arguments, trl.GRPOConfig, trl.ModelConfig, trl.DatasetMixtureConfig)
    theirs = {one.name for kind in kinds for one in dataclasses.fields(kind)}
    assert theirs <= set(known_flags())


def test_every_flag_of_ms_swift_is_in_one_table():
    assert not set(swift.FIELDS) & set(swift.MEANINGS)
    assert set(swift.FIELDS.values()) <= set(FIELD_NAMES)
    assert all(one.kind == "refused" for one in swift.MEANINGS.values() if one.also)
    assert {one.partition(":")[0].partition(" ")[0].strip(",") for one in swift.OWN} <= {
        option.name for option in options()
    }


OF_THE_DOCUMENTS = """
    rlhf_type num_generations max_completion_length reward_funcs reward_model use_vllm vllm_device
    vllm_gpu_memory_utilization vllm_max_model_len temperature train_type beta system dataset dataset_num_proc
    torch_dtype
    num_train_epochs per_device_train_batch_size per_device_eval_batch_size learning_rate gradient_accumulation_steps
    save_total_limit logging_steps deepspeed ds3_gather_for_generation log_completions generation_batch_size
    steps_per_generation num_iterations epsilon epsilon_high delta loss_type tau_pos tau_neg real_tau fipo_decay_rate
    importance_sampling_level advantage_estimator kl_in_reward scale_rewards dynamic_sample max_resample_times
    overlong_filter top_entropy_quantile log_entropy rollout_importance_sampling_mode off_policy_sequence_mask_delta
    chord_sft_dataset teacher_model teacher_model_server reward_weights reward_model_plugin vllm_mode sleep_level
    offload_model offload_optimizer move_model_batches async_generate vllm_enable_lora multi_turn_scheduler max_turns
    completion_length_limit_scope use_gym_env num_generations_eval truncation_strategy dataset_shuffle sync_ref_model
    tuner_type adapters ref_adapters use_liger_kernel padding_free sequence_parallel_size structured_outputs_regex
    stop_words top_k top_p min_p repetition_penalty resume_from_checkpoint save_only_model external_plugins
    soft_cache_length cosine_max_len repetition_n_grams
""".split()


def test_every_option_of_ms_swifts_documents_is_known():
    assert set(OF_THE_DOCUMENTS) <= {*swift.KNOWN, *FIELD_NAMES}


SOMETHING = {
    "tuner_type": ("full",),
    "train_type": ("full",),
    "sft_type": ("full",),
    "torch_dtype": ("bfloat16",),
    "reward_funcs": ("format",),
    "deepspeed": ("zero2",),
    "fsdp": ("fsdp2",),
    "report_to": ("wandb",),
    "max_length": ("99",),
    "truncation_strategy": ("delete",),
    "top_k": ("20",),
    "beta": ("0",),
    "epsilon": ("0.3",),
    "epsilon_high": ("0.3",),
    "loss_type": ("dapo",),
    "temperature": ("0.5",),
    "top_p": ("0.5",),
    "min_p": ("0.5",),
    "num_generations": ("4",),
    "scale_rewards": ("none",),
    "enable_thinking": ("true",),
    "dataset_shuffle": ("false",),
    "train_dataloader_shuffle": ("false",),
    "overlong_filter": ("true",),
    "use_hf": ("true",),
    "use_vllm": ("true",),
    "advantage_estimator": ("rloo",),
    "kl_in_reward": ("true",),
    "dynamic_sample": ("true",),
    "importance_sampling_level": ("sequence",),
    "sync_ref_model": ("true",),
    "rollout_importance_sampling_mode": ("token_mask",),
    "deepspeed_autotp_size": ("2",),
    "reward_weights": ("2",),
    "lora_rank": ("16",),
    "steps_per_generation": ("2",),
    "generation_batch_size": ("8",),
}
"""Words that a flag takes and that are not its default; the others take 3, or refuse it."""


IDLE = sorted(name for name, one in swift.MEANINGS.items() if one.kind == "idle")


def test_every_flag_of_ms_swift_without_effect_is_said_to_have_none():
    words = [word for name in IDLE for word in (f"--{name}", *SOMETHING.get(name, ("3",)))]
    found = translate([*words_of(SWIFT), *words])
    assert {note.about for note in found.notes if note.kind == "idle"} >= {f"--{name}" for name in IDLE}
    assert found.options == translate(words_of(SWIFT)).options


@pytest.mark.parametrize("name", sorted({*swift.KNOWN} - {"rlhf_type", *IDLE}))
def test_no_flag_of_ms_swift_is_ignored_in_silence(name):
    plain = words_of(SWIFT)
    before, after = outcome(*plain), outcome(*plain, f"--{name}", *SOMETHING.get(name, ("3",)))
    if isinstance(after, str):
        assert name in after or swift.FIELDS.get(name, name) in after
    else:
        said = {word for note in after.notes for word in note.about.split()}
        assert after.options != before.options or f"--{name}" in said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{SWIFT} --learning_rtae 1", "did you mean --learning_rate?"),
        (f"{SWIFT} --max_completions_length 9", "did you mean --max_completion_length"),
        (f"{SWIFT} --cosine_m 9", "--cosine_m could be --cosine_max_len, "),
        (f"{SWIFT} --multi_turn_scheduler gym", "its step as an environment's `observe`"),
        (f"{SWIFT} --gym_env mine", "its environments have an interface of their own; write one with begin, observe"),
        (f"{SWIFT} --teacher_model T", "--teacher_model must be left out, got 'T'"),
        (f"{SWIFT} --tuner_type adalora", "--tuner_type must be full or lora, got 'adalora'"),
        (f"{SWIFT} --reward_funcs acuracy", "did you mean accuracy?"),
        (f"{SWIFT} --reward_funcs soft_overlong", "--soft_cache_length must be given"),
        (f"{SWIFT} --num_generations 3", "num_generations must divide the 4 completions of a batch"),
        (f"{SWIFT} --num_generations 1", "num_generations must be a whole number of at least 2, got 1"),
        (f"NPROC_PER_NODE=2 {SWIFT} --num_generations 3", "is counted over all 2 processes here"),
        (f"{SWIFT} --loss_type fipo", "loss_type must be one of"),
        (f"{SWIFT} --deepspeed zero4", "--deepspeed must be one of zero0"),
        (f"{SWIFT} --dataset '#5'", "--dataset must be a file, a directory or a Hub name, #N behind it or not"),
        (f"{SWIFT} --truncation_strategy right", "--truncation_strategy must be left or delete"),
        (f"{SWIFT} --temperature hot", "--temperature must be a number, got 'hot'"),
        (f"{SWIFT} --async_generate true", "--async_generate must be left out without --use_vllm"),
        ("swift sft --model M", "`swift` must be followed by rlhf, got 'sft'"),
        ("swift rlhf --model M", "--rlhf_type must be grpo, got none, which is dpo"),
        ("megatron rlhf --rlhf_type grpo", "give the command of `swift rlhf`"),
        (f"{TRL} --max_completions_length 9", "did you mean --max_completion_length"),
        (f"{TRL} --load_in_4bit", "weights are not quantised"),
        (f"{TRL} --fp16", "fp16 must be left out"),
        (f"{TRL} --num_generations 3", "num_generations must divide the 8 completions"),
        (f"{TRL} --lr_scheduler_type greedy", "lr_scheduler_type must be one of constant, constant_with_warmup, "),
        (f"{TRL} --warmup_ratio 0.1 --warmup_steps 3", "warmup_steps must be 0 with warmup_ratio, got 3.0"),
        (
            f"{TRL} --lr_scheduler_type cosine --lr_scheduler_kwargs '{{\"num_cycle\": 2}}'",
            "lr_scheduler_kwargs must not have 'num_cycle', got 2; did you mean num_cycles?",
        ),
        (f"{TRL} --reward_funcs accuracy", "did you mean accuracy_reward?"),
        (f"{TRL} --accelerate_config zero4", "must be a file of accelerate's"),
        (f"{TRL} --save_steps 2.5", "save_steps must be a whole number above 1, got 2.5"),
        (f"{TRL} --dtype float16", "half precision is not offered"),
        ("trl grpo --model_name_or_path M", "TRL has no default reward"),
        (
            "accelerate launch gspo.py --model_name_or_path M",
            "gspo.py is given no rewards by its flags: TRL's own script",
        ),
        ("trl grpo --reward_funcs accuracy_reward", "TRL needs --model_name_or_path"),
        ("trl dpo --x", "`trl` must be followed by grpo, got 'dpo'"),
        ("accelerate launch --num_procesess 2 train_grpo.py", "did you mean --num_processes?"),
        ("torchrun --nproc_per_node two train_grpo.py", "nproc_per_node must be a whole number"),
        ("make train", "`paceline translate` knows ColossalChat's"),
        (f"{SWIFT} --reward_funcs gsm8k_accuracy", "name a plugin's function as file.py:function"),
        (
            f"{SWIFT} --reward_funcs g --external_plugins p.py",
            "p.py registers it: give the function behind that name as",
        ),
        (f"{SWIFT} --use_gym_env true", "--use_gym_env must be left out, got 'true'"),
        (f"{SWIFT} --multi_turn_func mine", "--multi_turn_func must be left out, got 'mine'"),
    ],
)
def test_what_cannot_be_is_refused_with_flag_value_and_remedy(text, sentence):
    assert sentence in refusal(text)


def test_flags_are_read_as_transformers_reads_them():
    plain = translated(f"{TRL} --learning_rate 3e-6").options
    assert plain["learning_rate"] == 3e-6
    for spelling in ("--learning-rate 3e-6", "--learning_rate=3e-6", "--learning_ra 3e-6"):
        assert translated(f"{TRL} {spelling}").options == plain
    twice = f"{TRL} --learning_rate 1 --learning_rate 3e-6"
    assert translated(twice).options == plain
    assert notes(twice, "settled") == {"--learning_rate": "given as 1, then as 3e-6; the last counts"}


def test_a_batch_is_counted_in_prompts_over_all_processes():
    # 2 completions of 3 processes, 4 times, in groups of 6
    sizes = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --num_generations 6"
    found = translated(f"accelerate launch --num_processes 3 grpo.py {TRL.removeprefix('trl grpo ')} {sizes}")
    assert found.options["prompts_per_step"] == 4
    assert found.launch == ("--nproc-per-node", "3")
    assert as_shell(found).startswith("torchrun --nproc-per-node 3 -m paceline train ")


def test_flags_at_our_defaults_are_written_out():
    flags = "--learning_rate 1e-6 --temperature 1.0 --num_train_epochs 1 --num_iterations 1 --lora_rank 8"
    given = translated(f"{SWIFT} --tuner_type lora --beta 0 {flags}").options
    expected = {"learning_rate": 1e-6, "temperature": 1.0, "num_epochs": 1.0, "num_iterations": 1, "beta": 0.0}
    assert {name: given[name] for name in expected} == expected
    assert "num_iterations" not in translated(SWIFT).options


TRL_WORDS = {"dtype": "float32", "torch_dtype": "float32", "reward_funcs": "think_format_reward"}


@pytest.mark.parametrize("name", sorted(set(known_flags()) - {"config", "config_file", "accelerate_config"}))
def test_no_flag_of_trl_is_ignored_in_silence(name):
    plain = words_of(TRL)
    before = outcome(*plain)
    for value in (TRL_WORDS.get(name), "7", "true", "steps"):
        after = outcome(*plain, f"--{name}", value) if value else ""
        if not isinstance(after, str):
            said = {word for note in after.notes for word in note.about.split()}
            assert after.options != before.options or after.launch or f"--{name}" in said


def test_all_refusals_are_said_at_once():
    sentence = refusal(f"{SWIFT} --foo 1 --use_dora true --temperature hot --truncation_strategy right")
    assert sentence.startswith("4 refusals: (1) ms-swift has no flag --foo")
    assert all(
        part in sentence for part in ("(2) --use_dora", "--temperature must be", "--truncation_strategy must be")
    )
    both = refusal(f"{TRL} --load_in_4bit --dtype float16")
    assert "weights are not quantised" in both
    assert "half precision is not offered" in both


def test_flags_that_earlier_versions_had_are_known():
    assert translated(f"{TRL} --torch_dtype bfloat16").options["dtype"] == "bfloat16"
    assert "--gc_collect_after_offload" in notes(f"{SWIFT} --gc_collect_after_offload true", "idle")
    hosts = f"{SWIFT} --use_vllm true --vllm_mode server --vllm_server_host 10.0.0.1 10.0.0.2"
    assert "--vllm_server_host" in notes(hosts, "idle")


def test_a_variable_exported_before_ms_swifts_command_counts_its_processes():
    found = translate(words_of(SWIFT), environment={"NPROC_PER_NODE": "4", "HOME": "/root"})
    assert found.launch == ("--nproc-per-node", "4")
    assert found.environment == {}
    assert found == translated(f"NPROC_PER_NODE=4 {SWIFT}")
    assert translate(words_of(TRL), environment={"NPROC_PER_NODE": "4"}).launch == ()


def test_every_launcher_comes_to_the_same_processes():
    flags = TRL.removeprefix("trl grpo ")
    machines = ("--nproc-per-node", "4", "--nnodes", "2", "--node-rank", "1", "--master-addr", "h")
    for start in (
        "torchrun --nproc_per_node 4 --nnodes=2 --node-rank 1 --master_addr h",
        "python -m torch.distributed.run --nproc-per-node 4 --nnodes 2 --node_rank 1 --master_addr h",
        "accelerate launch --num_processes 8 --num_machines 2 --machine_rank 1 --main_process_ip h",
        "deepspeed --num_gpus 4 --num_nodes 2 --node_rank 1 --master_addr h",
        "NPROC_PER_NODE=4 NNODES=2 NODE_RANK=1 MASTER_ADDR=h python",
    ):
        assert translated(f"{start} train_grpo.py {flags}").launch == machines, start


def test_a_variable_of_the_examples_own_is_found_however_the_shell_left_it():
    for copied in ("$nproc_per_node", "${nproc_per_node}", "''", "3"):
        found = translated(f"nproc_per_node=3 NPROC_PER_NODE={copied} {SWIFT}")
        assert found.launch == ("--nproc-per-node", "3")
        assert found.environment == {}


def test_vllm_is_in_the_process_or_apart():
    alone = translated(f"{TRL} --use_vllm --vllm_gpu_memory_utilization 0.4")
    assert (alone.options["engine"], alone.options["vllm_memory"], alone.launch) == ("vllm", 0.4, ())
    apart = translated(f"{TRL} --use_vllm --vllm_mode server --num_processes 3").options
    assert (apart["engine"], apart["cluster"], apart["num_consumers"]) == ("vllm", True, 3)
    together = translated(f"{TRL} --use_vllm --num_processes 2 --vllm_tensor_parallel_size 2")
    assert (together.options["engine"], together.launch) == ("vllm", ("--nproc-per-node", "2"))
    assert together.options.get("vllm_tensor_parallel", 1) == 1
    assert "--vllm_tensor_parallel_size" in [note.about for note in together.notes if note.kind == "changed"]


def test_the_reward_models_weight_goes_where_the_model_goes():
    text = f"{TRL} --reward_model_name_or_path R --reward_weights 5 1"
    options = translated(text).options
    assert (options["reward_funcs"][-1], options["reward_weights"]) == ("model:R", (1.0, 5.0))


def test_a_file_of_deepspeeds_own_is_read_for_its_stage():
    ds = '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}'
    options = translated(f"{SWIFT} --deepspeed ds.json", ds_json=ds).options
    assert (options["zero_stage"], options["offload"]) == (3, ("parameters",))
    assert "must name a stage of 0 to 3" in refusal(f"{SWIFT} --deepspeed ds.json", ds_json="{}")


def test_a_mixture_of_datasets_and_an_unknown_line_of_a_file_are_refused():
    one = "{path: a, name: b}"
    assert "datasets must hold one entry" in refusal(f"{TRL} --config f.yaml", f_yaml=f"datasets: [{one}, {one}]")
    assert "TRL has no learning_rtae; did you mean" in refusal(f"{TRL} --config f.yaml", f_yaml="learning_rtae: 1")
    assert "is not YAML" in refusal(f"{TRL} --config f.yaml", f_yaml="a: [")


def test_a_share_of_the_run_is_said_to_be_missing_and_known_with_its_steps():
    assert "--save_steps" in notes(f"{SWIFT} --save_steps 0.1", "missing")
    assert translated(f"{SWIFT} --save_steps 0.1 --max_steps 50").options["save_steps"] == 5


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("", "linear"),  # TRL's own default
        ("--lr_scheduler_type cosine", "cosine"),
        ("--lr_scheduler_type cosine --warmup_steps 10 --max_steps 50", "cosine(warmup=10)"),
        ("--lr_scheduler_type cosine --warmup_ratio 0.1", "cosine(warmup=0.1)"),
        ("--lr_scheduler_type cosine --warmup_steps 0.1 --max_steps 50", "cosine(warmup=0.1)"),
        ("""--lr_scheduler_type cosine --lr_scheduler_kwargs '{"num_cycles": 2}'""", "cosine(num_cycles=2)"),
        (
            """--lr_scheduler_type polynomial --warmup_steps 3 --lr_scheduler_kwargs '{"power": 2.0}'""",
            "polynomial(warmup=3, power=2.0)",
        ),
        (
            """--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{"min_lr_rate": 0.1}'""",
            "cosine_with_min_lr(min_lr_rate=0.1)",
        ),
    ],
)
def test_a_schedule_becomes_the_one_that_transformers_has(flags, words):
    options = translated(f"{TRL} {flags}").options
    assert options["lr_scheduler"] == words
    assert not options.keys() & {"lr_schedule", "warmup_steps", "min_lr_ratio"}


def test_a_constant_rate_stays_the_options_own():
    options = translated(f"{TRL} --lr_scheduler_type constant").options
    assert options["lr_schedule"] == "constant"
    assert "lr_scheduler" not in options
    assert "--warmup_ratio" in notes(f"{TRL} --lr_scheduler_type constant --warmup_ratio 0.1", "idle")


def test_ms_swifts_switches_come_to_options():
    options = translated(
        f"{SWIFT} --enable_thinking false --stop_words x y --dynamic_sample --max_resample_times 2 "
        "--val_dataset v.jsonl --advantage_estimator rloo --max_length 99 --truncation_strategy delete "
        "--system 'Be brief.' --repetition_n_grams 4 --reward_funcs repetition --async_generate --use_vllm "
        "--vllm_mode server"
    ).options
    assert {name: options[name] for name in ("enable_thinking", "stop", "filter_range", "max_refills")} == {
        "enable_thinking": False,
        "stop": ("x", "y"),
        "filter_range": (0.0, 1.0),
        "max_refills": 2,
    }
    assert (options["max_prompt_length"], options["long_prompts"]) == (99, "drop")
    assert (options["advantage"], options["system_prompt"]) == ("leave_one_out", "Be brief.")
    assert (options["reward_funcs"], options["eval_dataset"]) == (("repetition(ngram=4)",), ("v.jsonl",))
    assert (options["max_staleness"], options["lora_rank"], options["lora_alpha"]) == (1, 8, 32.0)


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("--tuner_type full --freeze_vit true", {"train_vision": False}),
        ("--tuner_type full --freeze_vit false --vit_lr 1e-6", {"train_vision": True, "vision_learning_rate": 1e-6}),
        ("--tuner_type full --freeze_aligner false", {"train_projector": True}),
        (
            "--freeze_vit false --freeze_aligner false",
            {"train_vision": False, "train_projector": False, "lora_vision": True},
        ),
        ("--max_pixels 200704", {"image_max_pixels": 200704}),
        ("""--vllm_limit_mm_per_prompt '{"image": 5, "video": 2}'""", {"max_images_per_prompt": 5}),
    ],
)
def test_ms_swifts_flags_of_images_come_to_options(flags, options):
    plain = translated(f"{SWIFT} --tuner_type full" if "full" in flags else SWIFT)
    assert translated(f"{SWIFT} {flags}").options == {**plain.options, **options}


def test_ms_swifts_variables_bound_the_size_of_images():
    found = translated(f"MAX_PIXELS=1003520 MIN_PIXELS=3136 NPROC_PER_NODE=2 {SWIFT}")
    assert (found.options["image_max_pixels"], found.options["image_min_pixels"]) == (1003520, 3136)
    assert not {"MAX_PIXELS", "MIN_PIXELS"} & found.environment.keys()
    assert translated(f"IMAGE_MAX_TOKEN_NUM=1024 {SWIFT}").options["image_max_pixels"] == 1024 * 32 * 32
    exported = translate(words_of(SWIFT), environment={"MAX_PIXELS": "3136"})
    assert exported.options["image_max_pixels"] == 3136


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{SWIFT} --freeze_vit false", "--freeze_vit and --freeze_aligner must be the same with an adapter"),
        (
            f"{SWIFT} --freeze_vit false --freeze_aligner false --vit_lr 1e-6 --aligner_lr 1e-5",
            "--vit_lr and --aligner_lr must be the same where both are trained, got 1e-06 and 1e-05",
        ),
        (f"MAX_PIXELS=big {SWIFT}", "MAX_PIXELS and IMAGE_MAX_TOKEN_NUM must be one whole number, got MAX_PIXELS=big"),
        (f"{SWIFT} --vllm_limit_mm_per_prompt 5", "must be JSON such as '{\"image\": 5}', got '5'"),
        (f"{SWIFT} --norm_bbox norm1000", "--norm_bbox must be left out, got 'norm1000'"),
        (f"{SWIFT} --freeze_llm true", "--freeze_llm must be left out, got 'true'"),
    ],
)
def test_flags_of_images_that_cannot_be_are_refused(text, sentence):
    assert sentence in refusal(text)


def test_a_script_is_sent_to_its_import():
    for text in ("python train_grpo.py", "accelerate launch --num_processes 2 train_grpo.py"):
        assert "change the import to `from paceline import GRPOConfig, GRPOTrainer`" in refusal(text)


@pytest.mark.long
@pytest.mark.parametrize("command", [TRL, SWIFT])
def test_translating_loads_none_of_the_libraries_that_take_seconds(command, tmp_path):
    code = """
import sys
from paceline.cli.main import main
assert main(["translate", "--", *sys.argv[1:]]) == 0
heavy = {"torch", "transformers", "peft", "datasets", "bitsandbytes"}
print(*({name.partition(".")[0] for name in sys.modules} & heavy))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *shlex.split(command)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (done.stdout.splitlines()[-1], done.stderr) == ("", "")


def test_sequences_over_several_processes_are_context_parallelism():
    found = translated(f"NPROC_PER_NODE=4 {SWIFT} --sequence_parallel_size 2")
    assert (found.options["context_parallel"], found.options["prompts_per_step"]) == (2, 8)  # 4 of each of 4, in twos
    rule = "--sequence_parallel_size must divide the number of processes that train, 4, got 3"
    assert rule in refusal(f"NPROC_PER_NODE=4 {SWIFT} --sequence_parallel_size 3")


@pytest.mark.parametrize("command", [f"{SWIFT} --vllm_max_model_len", f"{TRL} --vllm_max_model_length"])
def test_a_length_of_vllm_is_refused_only_where_no_prompt_has_room_in_it(command):
    # 512 tokens of a prompt and 512 of a completion where nothing else is said
    assert "must be above the longest completion, 512 tokens, got 512" in refusal(f"{command} 512 --use_vllm true")
    flag = command.split()[-1]
    assert "together by 1000 tokens" in notes(f"{command} 1000 --use_vllm true", "changed")[flag]
    assert notes(f"{command} 1024 --use_vllm true", "idle")[flag].endswith("completion, 1024 tokens")
    assert notes(f"{command} 1000", "idle")[flag] == "use_vllm is off"


def test_completions_of_an_evaluation_are_counted_though_no_interval_is_given():
    options = translated(f"{TRL} --num_generations_eval 4 --temperature 0.7").options
    assert (options["eval_generations"], options["eval_temperature"]) == (4, 0.7)
    assert "eval_generations" not in translated(TRL).options


def test_a_float32_head_in_half_precision_is_said_to_be_missing():
    text = notes(f"{TRL} --cast_lm_head_to_fp32", "missing")["--cast_lm_head_to_fp32"]
    assert text.startswith("logits are a product in the precision of --dtype")


def test_a_flag_cut_short_names_each_that_it_could_be_once():
    assert "--num_generation could be --num_generations, --num_generations_eval; write" in refusal(
        f"{SWIFT} --num_generation 2"
    )


def test_a_file_that_is_not_there_is_named(capsys):
    assert main(["translate", "--", *shlex.split(TRL), "--config", "no-such.yaml"]) == 2
    assert "no-such.yaml, which the command names, cannot be read" in capsys.readouterr().err


def test_run_starts_the_training_that_it_prints(tmp_path, capsys):
    command = f"{TRL} --output_dir {tmp_path / 'run'}".replace("_path M", "_path no-such/model")
    assert main(["translate", "--run", "--", *shlex.split(command)]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("# ")
    assert "rows.jsonl" in said.err


def test_accelerates_own_file_says_processes_and_slices():
    start = f"accelerate launch --config_file a.yaml grpo.py {TRL.removeprefix('trl grpo ')}"
    found = translated(start, a_yaml="num_processes: 4\ndeepspeed_config: {zero_stage: 2}\n")
    assert (found.launch, found.options["zero_stage"]) == (("--nproc-per-node", "4"), 2)
    assert translated(start, a_yaml="distributed_type: FSDP\nnum_processes: 2").options["zero_stage"] == 3
    assert "a.yaml: num_processes must be a whole number" in refusal(start, a_yaml="num_processes: all")


def test_several_datasets_of_ms_swift_keep_their_numbers_of_rows():
    command = f"{SWIFT} --dataset 'a.jsonl#500' org/b --use_hf true".replace("--dataset rows.jsonl ", "")
    assert translated(command).options["dataset"] == ("a.jsonl#500", "org/b")


OPEN_R1 = "src/open_r1/grpo.py --model_name_or_path M --dataset_name rows.jsonl --reward_funcs accuracy format"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (f"env A=1 {TRL}", f"A=1 {TRL}"),
        (f"uv run {TRL}", TRL),
        (f"uv run --with trl python -m {TRL}", TRL),
        (f"nohup time {TRL}", TRL),
        (f"srun -N 1 --gres=gpu:2 {TRL}", TRL),
        (f"python -m {TRL}", TRL),
        (
            f"accelerate launch --num_processes 2 -m {TRL.replace('trl grpo', 'trl.scripts.grpo')}",
            f"{TRL} --num_processes 2",
        ),
        (
            f"torchrun --nproc_per_node 2 --module {TRL.replace('trl grpo', 'trl.scripts.grpo')}",
            f"NPROC_PER_NODE=2 {TRL}",
        ),
        (f"env -u B NPROC_PER_NODE=2 {SWIFT}", f"NPROC_PER_NODE=2 {SWIFT}"),
        (f"NPROC_PER_NODE=2 bash -c 'A=1; {SWIFT}'", f"NPROC_PER_NODE=2 {SWIFT}"),
        (f"srun bash -lc 'uv run {TRL}'", TRL),
    ],
)
def test_a_command_is_read_behind_what_starts_it(text, plain):
    found, same = translated(text), translated(plain)
    assert (found.options, found.launch) == (same.options, same.launch)
    missed = {note.about for note in found.notes if "is left out: the new command" in note.text}
    assert missed == {name for name in ("uv run", "srun") if name in text}


def test_the_environment_of_a_wrapped_command_is_kept():
    assert translated(f"srun env A=1 {TRL}").environment == {"A": "1"}


def test_what_open_r1_calls_prompt_and_system_prompt_are_options():
    found = translated(f"python {OPEN_R1} --dataset_prompt_column problem --system_prompt 'Think first.'").options
    assert (found["prompt_column"], found["system_prompt"]) == ("problem", "Think first.")
    assert found["reward_funcs"] == ("accuracy", "format")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"torchrun --nproc-per-node=gpu {OPEN_R1}", "got 'gpu'; write the number in its place"),
        (f"accelerate launch --num_processes 1 --mixed_precision fp16 {OPEN_R1}", "must be no or bf16, got 'fp16'"),
        (f"{TRL} --mixed_precision fp16", "--mixed_precision must be no or bf16, got 'fp16'; half precision is not"),
        (f"accelerate launch --config_file a.yaml {OPEN_R1}", "a.yaml: mixed_precision must be no or bf16, got 'fp16'"),
    ],
)
def test_half_precision_and_a_number_that_only_the_machine_knows_are_refused(text, sentence):
    assert sentence in refusal(text, a_yaml="num_processes: 1\nmixed_precision: fp16\n")
