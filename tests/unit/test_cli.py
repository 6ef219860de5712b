"""The command line: what it prints, what it answers, how flags become a configuration."""

import json
import re
import struct

import pytest

from paceline.cli.arguments import help_page, parse
from paceline.cli.configuration import read_configuration, read_run_configuration
from paceline.cli.eval import COMMAND as EVAL
from paceline.cli.main import COMMANDS, exit_status, main
from paceline.cli.train import COMMAND as TRAIN
from paceline.cli.train import default_output_dir
from paceline.config import Sizes, build_config, options, to_yaml
from paceline.errors import ConfigError, TrainingError
from paceline.plan import batch_plan, describe, describe_memory, memory_plan, model_shape, total_steps

REQUIRED = {"model": "org/some-model", "dataset": "data/rows.jsonl"}


def flags(words):
    return parse(TRAIN, words.split()).options


def config_of(words):
    return read_configuration(parse(TRAIN, words.split())).config


def test_paceline_alone_says_what_it_can_do(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"paceline {name}" in out for name in COMMANDS)


def test_what_paceline_says_of_itself_fits_a_narrow_terminal(capsys):
    main(["--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("report", "report needs a run directory; write `paceline report runs/NAME`"),
        ("report --open r", "there is no option --open; `paceline report RUN [RUN ...]` takes directories only"),
        ("export", "export needs a run directory; write `paceline export runs/NAME`"),
        ("export a b c", "export takes RUN [DIRECTORY], got 3 directories; leave out c"),
    ],
)
def test_a_command_that_takes_directories_alone_says_so(words, sentence, capsys):
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"paceline: {sentence}\n"


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"paceline \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: paceline {command}")


def test_the_help_holds_every_option_with_its_default_under_its_section():
    page = " ".join(help_page(TRAIN).split())
    assert all(f"{option.flag} " in page for option in options())
    assert "loss: The objective: how far" in page
    assert "--clip-eps-low X `clip`: the ratio is held above `1 - clip_eps_low`. (default: 0.2)" in page
    assert "--shuffle [true|false] A new order each epoch, fixed by `seed`. (default: true)" in page
    assert "--stop TEXT [TEXT ...]" in page


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("--learning-rate 1e-5", {"learning_rate": "1e-5"}),
        ("--learning_rate=1e-5", {"learning_rate": "1e-5"}),
        ("--max-steps 1 --max_steps 2", {"max_steps": "2"}),
        ("--reward-funcs accuracy format --seed 1", {"reward_funcs": ["accuracy", "format"], "seed": "1"}),
        ("--reward-funcs accuracy,format", {"reward_funcs": ["accuracy,format"]}),
        ("--gradient-checkpointing --seed 1", {"gradient_checkpointing": "true", "seed": "1"}),
        ("--shuffle false", {"shuffle": "false"}),
        ("--beta -1e-4", {"beta": "-1e-4"}),
        ("--dataset my_rows.jsonl", {"dataset": "my_rows.jsonl"}),
        ("--system-prompt=--a_b", {"system_prompt": "--a_b"}),
        ("--system-prompt=", {"system_prompt": ""}),
    ],
)
def test_flags_are_read(words, given):
    assert flags(words) == given


def test_an_option_of_training_is_no_option_of_evaluation():
    with pytest.raises(ConfigError, match=r"--learning-rate is no option of `paceline eval`, only of training"):
        parse(EVAL, ["--learning-rate", "1"])


def test_without_config_and_model_the_recipe_is_the_ground():
    configuration = read_configuration(parse(TRAIN, ["--seed", "3"]))
    assert configuration.config.model.model == "embedded"
    assert configuration.config.loop.seed == 3
    assert "the embedded recipe and the flags given" in configuration.origin


def test_the_recipes_warm_up_gives_way_to_a_shorter_run_but_a_given_one_does_not():
    assert config_of("--max-steps 2").optim.warmup_steps == 2
    with pytest.raises(ConfigError, match=r"--warmup-steps must be at most --max-steps \(2\), got 5"):
        config_of("--max-steps 2 --warmup-steps 5")


def test_with_a_model_the_recipe_is_left_out():
    config = config_of("--model m --dataset d")
    assert config == build_config({"model": "m", "dataset": "d"})


def test_flags_win_over_the_file(tmp_path):
    (tmp_path / "run.yaml").write_text("model: m\ndataset: d\nmax-steps: 5\nseed: 1\n")
    config = config_of(f"--config {tmp_path}/run.yaml --max_steps 7")
    assert (config.loop.max_steps, config.loop.seed, config.model.model) == (7, 1, "m")


def test_a_file_may_start_with_a_byte_order_mark(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\xef\xbb\xbfmodel: m\r\ndataset: d\r\n")
    assert config_of(f"--config {tmp_path}/run.yaml").data.dataset == "d"


def test_a_resumed_run_is_configured_as_it_was(tmp_path):
    config = build_config({**REQUIRED, "seed": 5, "output_dir": "elsewhere"})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert read_run_configuration(tmp_path) == config


def test_a_run_without_a_name_is_named_for_model_dataset_and_time():
    path = default_output_dir(build_config({**REQUIRED, "dataset": "reasoning_gym:gcd"}))
    assert re.fullmatch(r"runs/some-model-reasoning_gym-gcd-\d{8}-\d{6}", str(path))


@pytest.mark.parametrize("model", ["a/..", "/", "..", "a b/../c;d", "über/modell"])
def test_a_runs_name_stays_inside_runs(model):
    path = default_output_dir(build_config({**REQUIRED, "model": model}))
    assert path.parent.name == "runs"
    assert len(path.parts) == 2


def test_steps_cover_the_epochs_and_the_last_may_be_short():
    config = build_config({**REQUIRED, "prompts_per_step": 32, "num_epochs": 2})
    assert total_steps(config, 100) == 7  # 200 prompts: 6 whole steps and one of 8
    assert total_steps(config, None) is None


def test_a_fraction_of_an_epoch_is_counted_in_tasks_not_in_rounding_errors():
    config = build_config({**REQUIRED, "prompts_per_step": 1, "num_epochs": 1.1})
    assert total_steps(config, 10) == 11  # 1.1 * 10 is 11.000000000000002


def test_the_batch_plan_by_hand():
    given = {"prompts_per_step": 4, "num_generations": 8, "max_completion_length": 100, "max_prompt_length": 50}
    config = build_config({**REQUIRED, **given, "max_steps": 25, "eval_steps": 10, "save_steps": 10})
    plan = batch_plan(config, 40)
    assert plan.completions_per_step == 32
    assert plan.completion_tokens_per_step == 3_200
    assert plan.prompt_tokens_per_step == 200
    assert (plan.steps, plan.epochs, plan.checkpoints) == (25, 2.5, 2)
    assert plan.evaluations == 4  # before the first step, after 10, 20 and the last
    text = describe(plan)
    assert "32 = 4 prompts x 8" in text
    assert re.search(r"sampled tokens in all +at most 80,000\n", text)


def test_a_plan_counts_every_round_of_refills():
    plan = batch_plan(build_config({**REQUIRED, "preset": "dapo", "prompts_per_step": 2, "max_steps": 10}), 100)
    assert plan.completion_tokens_per_step == 4 * 2 * 8 * 512
    assert re.search(r"refills of a step +at most 3 rounds, counted above", describe(plan))
    assert re.search(r"passes over the tasks +0\.2, and more by refills", describe(plan))


def test_a_plan_without_a_count_of_tasks_says_so():
    plan = batch_plan(build_config(REQUIRED), None)
    assert plan.steps is plan.checkpoints is plan.evaluations is None
    assert "unknown, as the tasks are not counted" in describe(plan)


def test_evaluating_never_in_between_still_means_before_and_after():
    assert batch_plan(build_config({**REQUIRED, "max_steps": 5, "eval_steps": 0}), None).evaluations == 2


SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "head_dim": 8}


def test_memory_by_hand():
    shape = model_shape(SHAPE, parameters=1_000)
    given = {"max_prompt_length": 10, "max_completion_length": 30, "concurrent_sequences": 16, "beta": 0.1}
    memory = memory_plan(build_config({**REQUIRED, **given, "dtype": "bfloat16"}), shape)
    assert (memory.weights, memory.gradients, memory.optimizer, memory.reference) == (4_000, 4_000, 8_000, 4_000)
    assert memory.kv_cache == 16 * 40 * 2 * 2 * 2 * 8 * 2  # sequences, tokens, layers, K and V, heads, width, bytes
    assert memory.total == 20_000 + 81_920
    assert memory.saved == 12_000, "weights and moments"
    moving = memory_plan(build_config({**REQUIRED, **given, "ref_sync_steps": 5}), shape)
    assert moving.saved == 16_000, "and the reference that moves"
    waiting = memory_plan(build_config({**REQUIRED, **given, "background_save": False}), shape)
    assert waiting.saved == 0
    assert "while it is saved, in main memory" in describe_memory(memory)
    assert "while it is saved" not in describe_memory(waiting)


LARGE = SHAPE | {"vocab_size": 10, "hidden_size": 100, "num_hidden_layers": 4, "tie_word_embeddings": True}
"""An embedding of 1,000; with 41,000 parameters in all, layers of 10,000."""


@pytest.mark.parametrize(
    ("options", "sizes", "weights", "gradients", "optimizer", "fetched"),
    [
        ({}, Sizes(replicate=2), 41_000, 41_000, 82_000, 0),
        # whole weights while a step lasts, and whole gradients beside the slice
        ({"zero_stage": 1}, Sizes(shard=2), 20_500, 61_500, 41_000, 41_000),
        # of gradients the embedding's, a layer's and the message made of it
        ({"zero_stage": 2}, Sizes(shard=2), 20_500, 20_500, 41_000, 41_000 + 21_000),
        # weights and gradients of two layers at a time, beside the embedding's gradient
        ({"zero_stage": 3}, Sizes(shard=2), 20_500, 20_500, 41_000, 41_000),
        ({"tensor_parallel": 2}, Sizes(tensor=2), 20_500, 20_500, 41_000, 0),
        # two layers and the embedding at either end
        ({"pipeline_parallel": 2}, Sizes(pipeline=2), 21_000, 21_000, 42_000, 0),
    ],
)
def test_memory_of_a_process_of_several_by_hand(options, sizes, weights, gradients, optimizer, fetched):
    shape = model_shape(LARGE, parameters=41_000)
    assert (shape.matrix, shape.embeddings, shape.layer) == (1_000, 1_000, 10_000)
    memory = memory_plan(build_config({**REQUIRED, **options}), shape, sizes)
    found = (memory.weights, memory.gradients, memory.optimizer, memory.fetched)
    assert found == tuple(4 * count for count in (weights, gradients, optimizer, fetched))
    assert memory.trained == sum(found)
    assert memory.resident == (164_000 if sizes.splits_the_model else 0)
    on_cluster = build_config({**REQUIRED, **options, "cluster": True, "num_consumers": 2})
    apart = build_config({**REQUIRED, **options, "sampling_ranks": 1})
    for elsewhere in (on_cluster, apart):
        assert memory_plan(elsewhere, shape, sizes).total == sum(found), "who samples is elsewhere"


def test_processes_that_share_tokens_keep_their_part_of_a_long_completion():
    shape = model_shape(LARGE, parameters=41_000)
    given = {**REQUIRED, "max_completion_length": 4_000, "max_prompt_length": 96, "micro_batch_tokens": 100}
    alone = memory_plan(build_config(given), shape)
    shared = memory_plan(build_config(given | {"context_parallel": 4}), shape, Sizes(replicate=4, context=4))
    assert (alone.activations, alone.recomputed) == (4 * shared.activations, 4 * shared.recomputed)
    assert (alone.weights, shared.resident) == (shared.weights, 0)
    # below the longest completion the budget is each process's own
    short = given | {"max_completion_length": 4}
    budget = {**short, "prompts_per_step": 100}
    of_four = memory_plan(build_config(budget | {"context_parallel": 4}), shape, Sizes(replicate=4, context=4))
    assert memory_plan(build_config(budget), shape).activations == of_four.activations


def test_plan_says_what_each_of_several_processes_takes(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "1+1?", "answer": "2"}\n' * 4)
    words = ["--model", "embedded", "--dataset", str(rows), "--processes", "4", "--zero-stage", "3"]
    assert main(["plan", *words]) == 0
    out = capsys.readouterr().out
    assert "Of each of 4 processes that train:" in out
    assert "fetched at a time" in out
    assert main(["plan", *words, "--sampling-ranks", "1"]) == 0
    assert "Of each of 3 processes that train:" in capsys.readouterr().out
    assert main(["plan", *words[:5], "four"]) == 2
    assert "--processes must be a whole number of at least 1, got 'four'" in capsys.readouterr().err


def test_memory_of_an_adapter_by_hand():
    shape = model_shape({**SHAPE, "intermediate_size": 48}, parameters=1_000)
    # queries and output 32 to 32, keys and values 32 to 16, gate and up 32 to 48, down 48 to 32
    assert shape.linear_widths == 2 * 64 + 2 * 48 + 3 * 80
    memory = memory_plan(build_config({**REQUIRED, "lora_rank": 2, "beta": 0.1}), shape)
    adapter = 2 * 2 * 464 * 4  # rank, layers, widths, bytes
    assert (memory.weights, memory.gradients, memory.optimizer) == (4_000 + adapter, adapter, 2 * adapter)
    assert memory.reference == 0


def test_an_optimiser_in_main_memory_takes_nothing_of_the_device():
    shape = model_shape(SHAPE, parameters=2**28)
    resident, offloaded = (
        memory_plan(build_config({**REQUIRED, "optimizer_offload": offload}), shape) for offload in (False, True)
    )
    assert (resident.optimizer, resident.total - offloaded.total) == (2 * 2**30, 2 * 2**30)
    assert re.search(r"optimiser, in main memory +2\.000 GiB", describe_memory(offloaded))


def test_activations_are_at_least_those_of_the_longest_completion_with_its_prompt():
    given = {**REQUIRED, "max_prompt_length": 10, "max_completion_length": 30, "prompts_per_step": 4}
    shape = model_shape(SHAPE, parameters=1)
    one, other = (memory_plan(build_config({**given, "micro_batch_tokens": tokens}), shape) for tokens in (8, 40))
    assert one.activations == other.activations == 40 * 2 * shape.linear_widths * 4


def test_updates_of_a_step_are_passes_times_parts():
    given = {**REQUIRED, "num_iterations": 2, "num_minibatches": 4}
    assert batch_plan(build_config(given), 100).updates_per_step == 8


def test_the_cache_holds_no_more_sequences_than_a_step_has():
    shape = model_shape(SHAPE, parameters=1)
    small = build_config({**REQUIRED, "prompts_per_step": 1, "num_generations": 2, "dtype": "float32"})
    assert memory_plan(small, shape).kv_cache == 2 * 1024 * 64 * 4


def test_a_shape_is_read_from_nested_and_from_older_configurations():
    assert model_shape({"text_config": SHAPE}, parameters=1) == model_shape(SHAPE, parameters=1)
    older = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    assert model_shape(older, parameters=1).num_key_value_heads == 4
    assert model_shape({"n_layer": 2}, parameters=1) is None


def test_plan_prints_batches_and_memory_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n' * 64)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(SHAPE))
    header = json.dumps(
        {"__metadata__": {}, "a": {"dtype": "F32", "shape": [100, 10], "data_offsets": [0, 4000]}}
    ).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    before = sorted(tmp_path.rglob("*"))
    assert main(["plan", "--model", "model", "--dataset", "rows.jsonl", "--num-epochs", "3"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\nsteps +6\n", out)
    assert "The model has 1,000 parameters." in out
    assert sorted(tmp_path.rglob("*")) == before


def test_memory_in_gib():
    shape = model_shape(SHAPE, parameters=2**28)
    assert re.search(r"weights +1\.000 GiB", describe_memory(memory_plan(build_config(REQUIRED), shape)))


def test_an_interrupt_ends_with_130_and_how_to_go_on(capsys):
    def interrupted():
        raise KeyboardInterrupt("go on with `paceline train --resume R`")

    assert exit_status(interrupted) == 130
    assert capsys.readouterr().err == "paceline: interrupted; go on with `paceline train --resume R`\n"


def test_a_failed_run_ends_with_1_and_a_wrong_input_with_2(capsys):
    def failed():
        raise TrainingError("the loss is not finite\nat step 3")

    def misused():
        raise ConfigError("--seed must be a whole number")

    assert (exit_status(failed), exit_status(misused)) == (1, 2)
    assert capsys.readouterr().err == (
        "paceline: the loss is not finite at step 3\npaceline: --seed must be a whole number\n"
    )


def test_a_fault_of_our_own_keeps_its_traceback():
    def faulty():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        exit_status(faulty)


def test_a_traceback_of_the_users_own_code_keeps_its_lines(capsys):
    def fail():
        raise TrainingError(
            "function 'f' failed\n  on row 3\nTraceback (most recent call last):\n  File a\nValueError: x"
        )

    assert exit_status(fail) == 1
    assert capsys.readouterr().err == (
        "paceline: function 'f' failed on row 3\nTraceback (most recent call last):\n  File a\nValueError: x\n"
    )


def test_an_export_that_cannot_be_made_is_refused_before_weights_are_read(tmp_path, capsys):
    run, there = tmp_path / "run", tmp_path / "there"
    for folder in (run, there):
        folder.mkdir()
    assert main(["export", str(run)]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    (run / "config.yaml").write_text("model: embedded\ndataset: arithmetic\n")
    (there / "a").touch()
    assert main(["export", str(run), str(there)]) == 2
    assert "which is there; name a directory that is not" in capsys.readouterr().err
    assert main(["export", str(run)]) == 2
    assert "has no checkpoint yet" in capsys.readouterr().err
    assert main(["export", str(run), "--merge-lora"]) == 2
    assert "there is no option --merge-lora" in capsys.readouterr().err
