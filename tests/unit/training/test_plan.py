"""`paceline plan`: memory and layouts by hand, what fits and the one change that would, and the command."""

import json
import math
import re
import struct
from dataclasses import replace

import pytest

from paceline.cli.main import main
from paceline.cli.plan import this_device
from paceline.config.building import build_config
from paceline.config.layout import Sizes
from paceline.engines.local import tables, weights
from paceline.errors import ModelError
from paceline.kernels import linear, logprobs
from paceline.rewards.judges.settings import JudgeSettings
from paceline.runtime import devices
from paceline.training.plan import memory as planner
from paceline.training.plan import shape
from paceline.training.plan.batches import batch_plan
from paceline.training.plan.fitting import (
    USABLE,
    Fitting,
    describe_layouts,
    describe_memory,
    describe_room,
    refusal,
    sampler_refusal,
)
from paceline.training.plan.memory import activations, computed_bytes, judge_memory, memory_plan, sampler_memory
from paceline.training.plan.shape import CPU, GPUS, Device, gpu_of, model_shape, read_shape

REQUIRED = {"model": "m", "dataset": "d"}
GIB = 1 << 30

SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "head_dim": 8}


def test_memory_by_hand():
    shape = model_shape(SHAPE, parameters=1_000)
    given = {"max_prompt_length": 10, "max_completion_length": 30, "concurrent_sequences": 16, "beta": 0.1}
    memory = memory_plan(build_config({**REQUIRED, **given, "dtype": "bfloat16"}), shape)
    assert (memory.weights, memory.gradients, memory.optimizer, memory.reference) == (4_000, 4_000, 8_000, 4_000)
    # 16 completions of two groups, each with one prompt; layers, keys and values, heads, width, bytes
    assert memory.kv_cache == (16 * 30 + 2 * 10) * 2 * 2 * 2 * 8 * 2
    assert memory.saved == 12_000, "weights and moments"
    lasting = memory.libraries + 4_000 + 8_000 + 4_000 + 12_000
    assert memory.sampling == lasting + memory.engine + memory.kv_cache + memory.drawn
    assert memory.update == lasting + 4_000 + memory.activations + memory.head
    assert memory.peak == max(memory.sampling, memory.update)
    moving = memory_plan(build_config({**REQUIRED, **given, "ref_sync": (5, 0.6)}), shape)
    assert moving.saved == 16_000, "and the reference that moves"
    # no step goes on beside a copy that is waited for, of a run without checkpoints, or of the last step
    for unsaved in ({"background_save": False}, {"save_steps": 0}, {"save_steps": 5, "max_steps": 5}):
        waiting = memory_plan(build_config({**REQUIRED, **given, **unsaved}), shape)
        assert (waiting.saved, memory.lasting - waiting.lasting) == (0, 12_000)
    assert memory_plan(build_config({**REQUIRED, **given, "save_steps": 4, "max_steps": 5}), shape).saved == 12_000
    assert "copy that is being saved " in describe_memory(memory)
    assert "copy that is being saved" not in describe_memory(waiting)


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
        planned = memory_plan(elsewhere, shape, sizes)
        assert (planned.resident, planned.engine, planned.kv_cache) == (0, 0, 0), "who samples is elsewhere"
        assert planned.trained == sum(found)


def test_processes_that_share_tokens_keep_their_part_of_a_long_completion():
    shape = model_shape(LARGE, parameters=41_000)
    given = {**REQUIRED, "max_completion_length": 4_000, "max_prompt_length": 96, "micro_batch_tokens": 100}
    alone = memory_plan(build_config(given), shape)
    shared = memory_plan(build_config(given | {"context_parallel": 4}), shape, Sizes(replicate=4, context=4))
    assert alone.cut.tokens == 4 * shared.cut.tokens
    assert (alone.weights, shared.resident) == (shared.weights, 0)
    # below the longest completion the budget is each process's own
    short = given | {"max_completion_length": 4}
    budget = {**short, "prompts_per_step": 100}
    of_four = memory_plan(build_config(budget | {"context_parallel": 4}), shape, Sizes(replicate=4, context=4))
    assert memory_plan(build_config(budget), shape).cut == of_four.cut


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


ON_CLUSTER = {"cluster": True, "num_producers": 4, "num_consumers": 2}


def test_memory_of_a_process_that_only_samples_by_hand():
    shape = model_shape({**SHAPE, "vocab_size": 10}, parameters=1_000)
    given = {
        **REQUIRED,
        "max_prompt_length": 10,
        "max_completion_length": 30,
        "prompts_per_step": 8,
        "dtype": "float32",
    }
    assert sampler_memory(build_config(given), shape, Sizes()) is None, "those that train sample"
    for apart in (ON_CLUSTER, {"sampling_ranks": 4}):
        memory = sampler_memory(build_config(given | apart), shape, Sizes(replicate=2))
        # 2 of the 8 prompts with 8 completions each; the engine joins queries, keys and values of its own copy
        assert memory.kv_cache == (2 * 8 * 30 + 2 * 10) * 2 * 2 * 2 * 8 * 4
        assert (memory.weights, memory.drawn) == (4_000, 2 * 8 * 10 * 4)
        assert memory.peak == memory.libraries + 4_000 + memory.engine + memory.kv_cache + memory.drawn
    adapter = sampler_memory(build_config(given | ON_CLUSTER | {"lora_rank": 1}), shape, Sizes())
    assert adapter.weights == 4_000 + 2 * shape.linear_widths * 4


def test_a_sampler_that_does_not_fit_is_refused_with_the_option_that_decides():
    fitting = billions(**ON_CLUSTER, concurrent_sequences=4096, prompts_per_step=4096, max_completion_length=4096)
    memory = sampler_memory(fitting.config, fitting.shape, Sizes(replicate=2), on=fitting.device)
    assert not fitting.has_room(memory)
    sentence = sampler_refusal(fitting, memory)
    assert re.fullmatch(
        r"--model m takes \d+\.\d\d GiB of each process that samples, which must be at most 75\.67 GiB on NVIDIA H100 "
        r"80GB HBM3; lower --concurrent-sequences or take a smaller model",
        sentence,
    )


@pytest.mark.long
def test_a_run_with_vllm_is_planned_where_there_is_none(capsys):
    words = ("plan", "--model", "embedded", "--dataset", "arithmetic", "--gpu", "h100", "--engine", "vllm", "--cluster")
    assert main([*words, "--num-producers", "4"]) == 0
    out = capsys.readouterr().out
    # 45 % of the card, beside the sampler's own copy of the weights
    assert re.search(
        r"Of each of 4 processes that sample:\n(.+\n)+engine +35\.841\n(.+\n)*in all +\d+\.\d{3}  GiB\n", out
    )


def test_memory_of_an_adapter_by_hand():
    shape = model_shape({**SHAPE, "intermediate_size": 48}, parameters=1_000)
    # queries and output 32 to 32, keys and values 32 to 16, gate and up 32 to 48, down 48 to 32
    assert shape.linear_widths == 2 * 64 + 2 * 48 + 3 * 80
    memory = memory_plan(build_config({**REQUIRED, "lora_rank": 2, "beta": 0.1}), shape)
    adapter = 2 * 2 * 464 * 4  # rank, layers, widths, bytes
    assert (memory.weights, memory.gradients, memory.optimizer) == (4_000 + adapter, adapter, 2 * adapter)
    assert memory.reference == 0
    experts = {"num_experts": 3, "moe_intermediate_size": 5}
    shape = model_shape({**SHAPE, "intermediate_size": 48, **experts}, parameters=1_000)
    # for each expert: gate and up 32 to 10, down 5 to 32
    assert shape.expert_widths == 3 * (32 + 10 + 5 + 32)
    adapted = memory_plan(build_config({**REQUIRED, "lora_rank": 2, "lora_parameters": ["all-experts"]}), shape)
    # a mixture has no other feed-forward layers unless some are shared
    assert adapted.gradients == 2 * 2 * (224 + 237) * 4
    shared = model_shape({**SHAPE, **experts, "n_shared_experts": 2}, parameters=1_000)
    assert shared.linear_widths == 224 + 3 * (32 + 2 * 5)


def test_an_optimiser_in_main_memory_takes_nothing_of_the_device():
    shape = model_shape(SHAPE, parameters=2**28)
    given = {**REQUIRED, "gradient_checkpointing": "false", "micro_batch_tokens": 4096}
    resident, offloaded = (
        memory_plan(build_config({**given, "offload": offload}), shape, on=GPUS["h100"])
        for offload in ((), ("optimizer",))
    )
    assert (resident.optimizer, resident.peak - offloaded.peak) == (2 * 2**30, 2 * 2**30)
    assert re.search(r"optimiser, in main memory +2\.000\n", describe_memory(offloaded))


def test_activations_are_at_least_those_of_the_longest_completion_with_its_prompt():
    given = {**REQUIRED, "max_prompt_length": 10, "max_completion_length": 30, "prompts_per_step": 4}
    shape = model_shape(SHAPE, parameters=1)
    one, other = (memory_plan(build_config({**given, "micro_batch_tokens": tokens}), shape) for tokens in (8, 40))
    assert one.cut.tokens == other.cut.tokens == 40


def test_updates_of_a_step_are_passes_times_parts():
    given = {**REQUIRED, "num_iterations": 2, "num_minibatches": 4}
    assert batch_plan(build_config(given), 100).updates_per_step == 8


def test_the_cache_holds_no_more_sequences_than_a_step_has():
    shape = model_shape(SHAPE, parameters=1)
    small = build_config({**REQUIRED, "prompts_per_step": 1, "num_generations": 2, "dtype": "float32"})
    assert memory_plan(small, shape).kv_cache == (2 * 512 + 512) * 64 * 4


WINDOWED = SHAPE | {
    "model_type": "gemma3_text",
    "num_hidden_layers": 3,
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
GIVEN = {"max_prompt_length": 10, "max_completion_length": 100, "prompts_per_step": 2, "num_generations": 4}


def test_a_window_is_cached_by_its_last_tokens_on_a_cpu():
    config = build_config({**REQUIRED, **GIVEN, "dtype": "float32"})
    # 8 rows and 2 prompts; two layers keep 32 of a row's own 100 tokens, which is 20 in whole columns of 16
    cached = memory_plan(config, model_shape(WINDOWED, parameters=1)).kv_cache
    assert cached == (2 * (8 * 32 + 2 * 10) + (8 * 100 + 2 * 10)) * (2 * 2 * 8) * 4
    short = build_config({**REQUIRED, **GIVEN, "max_completion_length": 12, "dtype": "float32"})
    assert memory_plan(short, model_shape(WINDOWED, parameters=1)).kv_cache == 3 * (8 * 12 + 2 * 10) * 32 * 4
    # on CUDA, and where no layer is said to have a window, all layers keep everything
    on_cuda = memory_plan(config, model_shape(WINDOWED, parameters=1), on=GPUS["h100"])
    assert on_cuda.kv_cache == 3 * (8 * 110 + 2 * 10) * 32 * 4
    without = {name: value for name, value in WINDOWED.items() if name != "layer_types"}
    assert memory_plan(config, model_shape(without, parameters=1)).kv_cache == 3 * (8 * 100 + 2 * 10) * 32 * 4


@pytest.mark.parametrize(
    ("settings", "kind", "state"),
    [
        # 4 value heads of 16 x 8, and 3 inputs of 2 x 2 x 16 + 4 x 8 channels
        (
            {"model_type": "qwen3_5_text", "linear_num_key_heads": 2, "linear_num_value_heads": 4}
            | {"linear_key_head_dim": 16, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4},
            "linear_attention",
            4 * 16 * 8 + 3 * (64 + 32),
        ),
        # 6 heads of 4 x 8, and 3 inputs of 6 x 4 + 2 x 8 channels
        (
            {"model_type": "bamba", "mamba_n_heads": 6, "mamba_d_head": 4, "mamba_d_state": 8}
            | {"mamba_n_groups": 1, "mamba_d_conv": 4},
            "linear_attention",
            6 * 4 * 8 + 3 * (24 + 16),
        ),
        ({"model_type": "lfm2", "conv_L_cache": 3}, "conv", 2 * 32),
    ],
    ids=["delta rule", "Mamba-2", "convolution"],
)
def test_a_layer_with_a_state_caches_it_for_each_row_and_no_keys(settings, kind, state):
    kinds = [kind, kind, kind, "full_attention"]
    shape = model_shape(SHAPE | settings | {"num_hidden_layers": 4, "layer_types": kinds}, parameters=1)
    config = build_config({**REQUIRED, **GIVEN, "dtype": "float32"})
    assert (shape.state, shape.cached) == (3 * state, 2 * 2 * 8)
    assert memory_plan(config, shape).kv_cache == (8 * 100 + 2 * 10) * 32 * 4 + 8 * 3 * state * 4


def test_a_shape_is_read_from_nested_and_from_older_configurations():
    assert model_shape({"text_config": SHAPE}, parameters=1) == model_shape(SHAPE, parameters=1)
    older = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    assert model_shape(older, parameters=1).num_key_value_heads == 4
    assert model_shape({"n_layer": 2}, parameters=1) is None


def make_headers(model):
    """A model of 1,000 parameters without its weights."""
    model.mkdir()
    (model / "config.json").write_text(json.dumps(SHAPE))
    header = json.dumps(
        {"__metadata__": {}, "a": {"dtype": "F32", "shape": [100, 10], "data_offsets": [0, 4000]}}
    ).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def test_plan_prints_batches_and_memory_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n' * 64)
    make_headers(tmp_path / "model")
    before = sorted(tmp_path.rglob("*"))
    assert main(["plan", "--model", "model", "--dataset", "rows.jsonl", "--num-epochs", "3"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\nsteps +6\n", out)
    assert "The model has 1,000 parameters." in out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.long
def test_plan_says_how_many_calls_of_a_judge_a_step_makes_without_asking_it(capsys):
    judge = "judge:http://127.0.0.1:9/v1(model=x, mode=pairwise, repeats=2, temperature=1, key_env=NO_SUCH_KEY)"
    words = ["--model", "embedded", "--dataset", "arithmetic", "--prompts-per-step", "4", "--num-generations", "3"]
    assert main(["plan", *words, "--reward-funcs", judge]) == 0
    # 4 prompts, 3 * 2 ordered pairs of each, 2 verdicts on each
    assert re.search(r"judge's calls per step +at most 48 without retries: judge:http", capsys.readouterr().out)


def test_memory_of_a_judge_that_the_run_serves_by_hand():
    shape = model_shape({**SHAPE, "vocab_size": 10}, parameters=1_000)
    judge = JudgeSettings(model="m", concurrency=3, prompt_tokens=20, verdict_tokens=10)
    # whatever the run itself samples
    memory = judge_memory(build_config({**REQUIRED, "num_generations": 8, "lora_rank": 4}), shape, judge)
    # each of 3 requests has a prompt and an answer: 2 layers of keys and values, 2 heads of 8 numbers, in 4 bytes
    assert memory.kv_cache == 3 * (20 + 10) * 2 * 2 * 2 * 8 * 4
    assert (memory.weights, memory.drawn) == (4_000, 3 * 10 * 4)


@pytest.mark.long
def test_plan_counts_a_judge_that_the_run_serves_beside_the_trainer(capsys):
    words = ["plan", "--model", "embedded", "--dataset", "arithmetic", "--gpu", "h100", "--reward-funcs", "accuracy"]
    assert main(words) == 0
    alone = capsys.readouterr().out
    assert main([*words, "judge:embedded(mode=rank)", "--eval-reward-func", "judge:embedded(mode=score)"]) == 0
    beside = capsys.readouterr().out
    assert beside.count("Of the process that serves the judge embedded:\n") == 1  # both judges are of one process
    room = r"Peak (\S+) GiB of the (\S+) GiB of (.+)\."
    (peak, whole, name), (same, left, less) = (re.search(room, said).groups() for said in (alone, beside))
    taken = float(re.search(r"serves the judge(?:.*\n)+?in all +(\S+)  GiB", beside)[1])
    assert (same, less) == (peak, f"{name} beside the judge")
    assert float(left) == pytest.approx(float(whole) - taken, abs=0.011)
    assert main([*words, "judge:./nowhere"]) == 2
    assert "--reward-funcs judge:./nowhere cannot be served: --model ./nowhere is not a" in capsys.readouterr().err


def test_plan_says_of_rows_what_a_run_would(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_headers(tmp_path / "model")
    rows = [("1+1?", "2"), ("1+1?", "3"), ("2+2?", "4"), ("2+2?", "4"), ("3+3?", "")]
    lines = [json.dumps({"question": question, "answer": answer}) for question, answer in rows]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    (tmp_path / "held.jsonl").write_text("\n".join([lines[0], '{"question": "5+5?", "answer": "10"}']))
    words = ["plan", "--model", "model", "--dataset", "rows.jsonl", "--eval-dataset", "held.jsonl"]
    assert main(words) == 2
    refused = capsys.readouterr().err
    assert "held-out set held.jsonl: 1 of 2 prompts are trained on too (held.jsonl:1 is rows.jsonl:1)" in refused
    assert main([*words, "--allow-overlap"]) == 0
    out = capsys.readouterr().out
    assert "compares with gold answers and 1 of 5 tasks have none (rows.jsonl:5): it gives them no number" in out
    assert "1 of 5 rows repeat the prompt and the answer of an earlier one (rows.jsonl:4 those of rows.jsonl:3)" in out
    assert "answer (rows.jsonl:1 has '2', rows.jsonl:2 has '3')" in out
    assert "held.jsonl: 1 of 2 prompts are trained on too (held.jsonl:1 is rows.jsonl:1)" in out


def test_plan_refuses_a_directory_whose_held_out_split_is_trained_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_headers(tmp_path / "model")
    lines = ['{"question": "1+1?", "answer": "2"}', '{"question": "2+2?", "answer": "4"}']
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(lines))
    (tmp_path / "data" / "test.jsonl").write_text(lines[1])
    words = ["plan", "--model", "model", "--dataset", "data"]
    assert main(words) == 2
    refused = capsys.readouterr().err
    assert "held-out set data: 1 of 1 prompts are trained on too (data/test:1 is data/train:2)" in refused
    (tmp_path / "data" / "test.jsonl").write_text('{"question": "3+3?", "answer": "6"}')
    assert main(words) == 0
    # the rows of the directory beside another file to train on
    (tmp_path / "rows.jsonl").write_text('{"question": "3+3?", "answer": "6"}')
    assert main([*words[:4], "rows.jsonl", "--eval-dataset", "data"]) == 2
    assert "(data/test:1 is rows.jsonl:1)" in capsys.readouterr().err


def test_plan_refuses_the_prompts_that_a_run_refuses_where_the_tokenizer_is_on_this_disk(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"question": question, "answer": "2"}) for question in ("1+1?", "1 + 1? " * 40, "3 - 1?")]
    (tmp_path / "long.jsonl").write_text("\n".join(lines))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines[:1]))
    words = ["--model", "embedded", "--max-prompt-length", "64"]
    refused = r"row long\.jsonl:2: its prompt has \d+ tokens, above --max-prompt-length 64 \(1 of 3 rows are\)"
    assert main(["plan", *words, "--dataset", "long.jsonl"]) == 2
    assert re.search(refused, capsys.readouterr().err)
    assert main(["plan", *words, "--dataset", "rows.jsonl", "--eval-dataset", "long.jsonl"]) == 2
    assert re.search(refused, capsys.readouterr().err)
    assert main(["plan", *words, "--dataset", "long.jsonl", "--long-prompts", "drop"]) == 0
    out = capsys.readouterr().out
    assert "prompts above --max-prompt-length: 1 dropped, 0 truncated" in out
    assert "prompt tokens: n 3," in out


def test_plan_says_how_many_rows_a_share_holds_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_headers(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"question": "{n}+1?", "answer": "{n + 1}"}}\n' for n in range(20)))
    assert main(["plan", "--model", "model", "--dataset", "rows.jsonl", "--eval-share", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "2 rows are held out by --eval-share, and 18 are trained on." in out


def test_a_vllm_that_is_spread_counts_its_devices(tmp_path, capsys):
    shape = model_shape(SHAPE, parameters=1_000)
    given = {**REQUIRED, "engine": "vllm", "max_prompt_length": 10, "max_completion_length": 30, "dtype": "float32"}
    alone, two = (
        memory_plan(build_config({**given, "vllm_tensor_parallel": number}), shape).engine for number in (1, 2)
    )
    # weights in bfloat16; 256 completions of 32 groups, each with one prompt; layers, keys and values, heads, width
    assert alone == 1_000 * 2 + (256 * 30 + 32 * 10) * 2 * 2 * 2 * 8 * 4
    assert two == alone // 2
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "1+1?", "answer": "2"}\n' * 4)
    words = ["--model", "embedded", "--dataset", str(rows), "--engine", "vllm", "--vllm-tensor-parallel", "2"]
    assert main(["plan", *words, "--processes", "2"]) == 2
    assert "--vllm-tensor-parallel must be 1 in each of 2 processes" in capsys.readouterr().err


def test_memory_in_gib_stands_in_the_columns_of_the_phases_that_have_it():
    shape = model_shape(SHAPE, parameters=2**28)
    text = describe_memory(memory_plan(build_config(REQUIRED), shape))
    assert re.search(r"weights +1\.000 +1\.000\n", text)
    assert re.search(r"gradients +1\.000\n", text)
    assert re.search(r"in all +\d+\.\d{3} +\d+\.\d{3}  GiB$", text)


def test_activations_of_a_token_by_hand():
    shape = model_shape({**SHAPE, "intermediate_size": 48}, parameters=1)
    # of a layer: residuals 2 x 32 in float32; 2 x 32 normed, queries and output 2 x 32, keys and values 2 x 16, 3 x 48
    assert activations(shape, Sizes(), CPU, 2).all_layers == 2 * (4 * 64 + 2 * (64 + 64 + 32 + 144))
    # torch keeps 4 x 32 in float32; 4 x 32 normed, 3 x 32 and 4 x 16 of attention, 4 x 48
    assert activations(shape, Sizes(), GPUS["h100"], 2).all_layers == 2 * (4 * 128 + 2 * (128 + 96 + 64 + 192))
    # kernels on CUDA keep 2 x 32 normed, 2 x 32 and 2 x 16 of attention, 2 x 48; an adapter 2 x 32 and 48 more
    fused, h100 = replace(shape, fused=True), GPUS["h100"]
    assert activations(fused, Sizes(), h100, 2).all_layers == 2 * 2 * (64 + 64 + 32 + 96)
    assert activations(fused, Sizes(), h100, 2, adapter=True).all_layers == 2 * 2 * (64 + 64 + 32 + 96 + 64 + 48)
    split = activations(fused, Sizes(tensor=2), h100, 2)
    assert split == activations(shape, Sizes(tensor=2), h100, 2)
    assert activations(shape, Sizes(tensor=2), CPU, 2).all_layers == activations(shape, Sizes(), CPU, 2).all_layers / 2


def test_activations_of_experts_are_those_that_a_token_passes():
    mixture = {**SHAPE, "intermediate_size": 48, "num_experts": 64, "num_experts_per_tok": 3}
    shape = model_shape({**mixture, "moe_intermediate_size": 16}, parameters=1)
    assert shape.inner == 3 * 16
    dense = model_shape({**SHAPE, "intermediate_size": 48}, parameters=1)
    assert activations(shape, Sizes(), CPU, 4) == activations(dense, Sizes(), CPU, 4)
    # in half precision and on CUDA also each expert's row before its products and behind them
    for on in (CPU, GPUS["h100"]):
        more = activations(shape, Sizes(), on, 2).all_layers - activations(dense, Sizes(), on, 2).all_layers
        assert more == 2 * 2 * (2 * 3 * 32)
    # gpt-oss names an expert's width as others do a dense layer's; Qwen2-MoE has a shared one beside
    assert model_shape({**mixture, "model_type": "gpt_oss"}, parameters=1).inner == 3 * 48
    shared = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 20}
    assert model_shape(mixture | shared, parameters=1).inner == 3 * 16 + 20


def test_what_a_plan_may_not_load_is_as_those_who_do_have_it():
    assert planner.HEAD_ROWS == logprobs.PRODUCT_ROWS
    assert planner.BFLOAT16_PARAMETERS == devices.BFLOAT16_PARAMETERS
    assert planner.JOINED_WEIGHTS == weights.JOINED_WEIGHTS
    assert planner.WINDOW_COLUMNS == tables._TILE
    assert shape.BFLOAT16_UNITS == linear.BFLOAT16_UNITS


def test_micro_batches_of_an_update_and_steps_leave_pieces_between_them_on_a_cpu():
    shape = model_shape({**SHAPE, "vocab_size": 64}, parameters=10_000)
    given = {**REQUIRED, "max_prompt_length": 20, "max_completion_length": 20, "num_generations": 4}
    given |= {"prompts_per_step": 6, "micro_batch_tokens": 100}
    of_token = activations(shape, Sizes(), CPU, 4).all_layers
    six, one = (memory_plan(build_config({**given, "micro_batch_tokens": tokens}), shape) for tokens in (100, 600))
    assert (six.cut.tokens, one.cut.tokens) == (100, 600)
    assert six.activations == round(1.6 * 100 * of_token)
    assert one.activations == round(1.3 * 600 * of_token), "steps whose micro-batches differ in size"
    two_steps = memory_plan(build_config({**given, "micro_batch_tokens": 600, "max_steps": 2}), shape)
    assert two_steps.activations == round(600 * of_token)
    again = memory_plan(build_config({**given, "gradient_checkpointing": "true"}), shape)
    assert again.activations == round(100 * (2 * 32 * 4 + of_token / 2)), "inputs of both layers, and one of them whole"


def test_layers_are_planned_to_be_computed_again_where_a_run_would():
    shape = model_shape({**SHAPE, "vocab_size": 64}, parameters=10_000)
    config = build_config({**REQUIRED, "max_prompt_length": 100, "max_completion_length": 400})
    roomy = memory_plan(config, shape)
    assert roomy.cut.layers == 0, "a device of unknown memory is taken for large"
    needed = roomy.update - roomy.head - roomy.activations
    tight = memory_plan(config, shape, on=replace(CPU, memory=needed + roomy.activations))
    assert tight.cut.layers == 1
    assert tight.peak < roomy.peak
    without = memory_plan(replace(config, model=replace(config.model, gradient_checkpointing="false")), shape, on=CPU)
    assert without.cut.layers == 0


def test_a_size_is_planned_for_layers_that_are_computed_again_in_any_case():
    shape = model_shape({**SHAPE, "vocab_size": 64}, parameters=10_000)
    config = build_config({**REQUIRED, "gradient_checkpointing": "true", "prompts_per_step": 64})
    roomy = memory_plan(config, shape, on=replace(GPUS["h100"], memory=None))
    assert roomy.cut.micro_batch_tokens == 16_384
    kept = roomy.cut.tokens * 2 * 32 * 4  # the inputs of two layers, of which half of what is free may be
    without = roomy.update - roomy.head - roomy.activations
    for room, size in ((2 * kept, 16_384), (2 * kept - 2, 8192), (0, 4096)):
        assert (
            memory_plan(config, shape, on=replace(GPUS["h100"], memory=without + room)).cut.micro_batch_tokens == size
        )


def test_the_precision_of_auto_goes_by_device_and_size():
    large, small = (model_shape(SHAPE, parameters=count) for count in (10_000_000, 9_999_999))
    fast = replace(CPU, fast_bfloat16=True)
    auto = build_config(REQUIRED)
    assert [computed_bytes(auto, large, one) for one in (CPU, fast, GPUS["l4"])] == [4, 2, 2]
    assert computed_bytes(auto, small, fast) == 4
    assert computed_bytes(build_config({**REQUIRED, "dtype": "float32"}), large, GPUS["l4"]) == 4


BILLIONS = {
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}


def billions(**given: object) -> Fitting:
    shape = model_shape(BILLIONS, parameters=1_543_714_304)
    return Fitting(config=build_config({**REQUIRED, **given}), shape=shape, device=GPUS["h100"])


def test_what_does_not_fit_is_refused_with_the_one_change_that_costs_least():
    fitting = billions(
        micro_batch_tokens=131_072, prompts_per_step=64, num_generations=16, gradient_checkpointing="false"
    )
    memory = fitting.plan()
    assert not fitting.has_room(memory)
    change = fitting.one_change(Sizes())
    assert change.words == "--micro-batch-tokens 8192"
    assert fitting.has_room(change.memory)
    sentence = refusal(fitting, Sizes(), memory)
    assert re.fullmatch(
        r"--model m takes \d+\.\d\d GiB of each process, which must be at most 75\.67 GiB on NVIDIA H100 80GB HBM3; "
        r"--micro-batch-tokens 8192 would make it \d+\.\d\d GiB",
        sentence,
    )


def test_where_no_one_change_is_enough_the_smallest_is_named():
    fitting = replace(billions(), device=Device(name="a small card", kind="cuda", memory=GIB))
    assert fitting.one_change(Sizes()) is None
    assert "no one change is enough, " in refusal(fitting, Sizes(), fitting.plan())


def test_the_largest_micro_batch_is_the_last_that_has_room():
    fitting = billions(prompts_per_step=512, num_generations=16, gradient_checkpointing="false")
    found = fitting.largest_micro_batch(Sizes(), recomputing=False)

    def of(tokens: int) -> Fitting:
        return replace(
            fitting, config=replace(fitting.config, optim=replace(fitting.config.optim, micro_batch_tokens=tokens))
        )

    assert fitting.has_room(of(found).plan())
    assert not fitting.has_room(of(2 * found).plan())
    assert fitting.largest_micro_batch(Sizes(), recomputing=True) > found
    little = billions(prompts_per_step=2, num_generations=2, max_prompt_length=100, max_completion_length=450)
    assert little.largest_micro_batch(Sizes(), recomputing=False) == 2048, "an update has 2,000 tokens"
    tiny = replace(fitting, device=Device(name="a small card", kind="cuda", memory=GIB))
    assert tiny.largest_micro_batch(Sizes(), recomputing=True) is None


def test_layouts_of_four_are_those_with_room_and_with_whole_heads():
    fitting = billions(gradient_checkpointing="false", micro_batch_tokens=4096)
    words = [change.words for change in fitting.layouts(4)]
    assert words[:4] == ["copies (the default)", "--zero-stage 1", "--zero-stage 2", "--zero-stage 3"]
    assert "--zero-stage 3 --tensor-parallel 2" in words
    odd = replace(fitting, shape=replace(fitting.shape, num_heads=3, num_layers=7))
    assert not [change for change in odd.layouts(4) if "parallel" in change.words]
    needed = fitting.plan().peak
    small = replace(fitting, device=Device(name="a card", kind="cuda", memory=int(needed * 0.9)))
    fitting_words = [change.words for change in small.layouts(4)]
    assert "copies (the default)" not in fitting_words
    assert "--zero-stage 3" in fitting_words
    assert describe_layouts((), 4) == "No layout of 4 processes fits."


def test_a_device_is_known_by_the_words_that_its_driver_says():
    assert gpu_of("NVIDIA H100 80GB HBM3", 81_559) == GPUS["h100"]
    assert not gpu_of("NVIDIA A100-SXM4-40GB", 40_960).float8
    assert gpu_of("NVIDIA GeForce GTX 1080", 8_192).float8, "nothing is known of it"


def test_this_machine_is_planned_for_by_what_it_has_free(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    for flags, fast in (
        ("avx512f amx_bf16 amx_tile", True),
        ("avx512f avx512_bf16 avx512_vnni", True),
        ("avx512f", False),
    ):
        cpuinfo.write_text(f"flags\t: fpu {flags}\n")
        found = this_device(gpus=False, cpuinfo=cpuinfo)
        assert (found.kind, found.fast_bfloat16) == ("cpu", fast), flags


@pytest.mark.long
def test_a_gpu_that_is_not_here_is_planned_for_by_its_name(monkeypatch, capsys):
    monkeypatch.setattr("paceline.cli.plan.ask_driver", lambda: [])
    words = ["plan", "--model", "embedded", "--dataset", "arithmetic", "--device", "cuda"]
    assert main(words) == 2
    assert "--device cuda cannot be planned for where no driver shows a GPU" in capsys.readouterr().err
    assert main([*words, "--gpu", "l4"]) == 0
    assert "of the 22.49 GiB of NVIDIA L4." in capsys.readouterr().out


def test_the_largest_micro_batch_is_said_in_words_where_none_fits():
    # of few sequences at a time, so that sampling takes less than an update
    large = {"prompts_per_step": 512, "num_generations": 16, "concurrent_sequences": 16}
    sizes, fitting = Sizes(), billions(**large)
    needed = {again: fitting.largest_micro_batch(sizes, recomputing=again) for again in (False, True)}
    said = f"Largest micro-batch: {needed[False]:,} tokens, and {needed[True]:,} with every layer computed again."
    assert said in describe_room(fitting, sizes, fitting.plan())
    config = build_config({**REQUIRED, **large, "gradient_checkpointing": "true", "micro_batch_tokens": 1024})
    # room for the smallest with every layer computed again and for no more
    room = math.ceil(replace(fitting, config=config).plan().peak / USABLE)
    tight = replace(fitting, device=replace(fitting.device, memory=room))
    said = r"Largest micro-batch: [\d,]+ tokens with every layer computed again; none fits without that\."
    assert re.search(said, describe_room(tight, sizes, tight.plan()))
    tiny = replace(fitting, device=replace(fitting.device, memory=GIB))
    assert "No micro-batch fits, not even one completion" in describe_room(tiny, sizes, tiny.plan())


def test_a_shape_is_read_without_weights(tmp_path):
    described = {**BILLIONS, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert read_shape(str(tmp_path)) == model_shape(described, parameters=1_543_714_304)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"its config\.json is not a JSON object; restore it"):
        read_shape(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(BILLIONS | {"model_type": "no such"}))
    with pytest.raises(ModelError, match=r"transformers makes no model of its config\.json"):
        read_shape(str(tmp_path))


def test_an_adapter_is_planned_by_its_base_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "embedded"}))
    assert read_shape(str(tmp_path)) == read_shape("embedded")


@pytest.mark.long
def test_plan_ends_with_status_2_where_a_run_would_not_fit(tmp_path, capsys):
    (tmp_path / "config.json").write_text(
        json.dumps({**BILLIONS, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})
    )
    words = ["--model", str(tmp_path), "--dataset", "arithmetic", "--reward-funcs", "random"]
    assert main(["plan", *words, "--gpu", "l4"]) == 2
    captured = capsys.readouterr()
    assert re.search(r"Peak \d+\.\d\d GiB of the 22\.49 GiB of NVIDIA L4\.", captured.out)
    assert re.search(r"must be at most 21\.37 GiB on NVIDIA L4; --\S+ \S+ would make it", captured.err)
    assert main(["plan", *words, "--gpu", "h100"]) == 0
    capsys.readouterr()
    assert main(["plan", *words, "--device", "cpu", "--gpu", "h100"]) == 2
    assert "--gpu cannot be given with --device cpu" in capsys.readouterr().err
    assert main(["plan", *words, "--gpu", "h1000"]) == 2
    assert "--gpu must be one of l4, rtx-4090" in capsys.readouterr().err
    assert main(["plan", *words, "--gpu", "h100", "--calibrate"]) == 2
    assert "there is no option --calibrate" in capsys.readouterr().err
