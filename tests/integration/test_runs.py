"""Whole runs through the command line: every model family, precision and data format that is promised."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import paceline
from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from paceline.errors import ConfigError
from paceline.models.gguf import write_gguf
from paceline.models.places import model_place
from tests.support.gguf_models import saved_model
from tests.support.tiny import tiny_model, tiny_tokenizer

GSM8K = [{"question": f"What is {n} + 1?", "answer": f"{n} and 1 make {n + 1}.\n#### {n + 1}"} for n in range(6)]
COLOSSALCHAT = [
    {"messages": {"role": "user", "content": f"What is {n} + 1?"}, "gt_answer": str(n + 1)} for n in range(6)
]


@pytest.fixture
def model_directory(tmp_path):
    def build(kind: str) -> Path:
        path = tmp_path / kind
        model = tiny_model(kind)
        model.save_pretrained(path)
        tiny_tokenizer().save_pretrained(path)
        return path

    return build


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train(tmp_path: Path, *options: object) -> RunDir:
    """Two steps of 2 prompts with 4 completions; the reward favours completions of many different letters."""
    reward = tmp_path / "reward.py"
    reward.write_text("def variety(completions, **columns):\n    return [len(set(c)) / 10 for c in completions]\n")
    run = tmp_path / "run"
    fixed = (
        f"--output-dir {run} --max-steps 2 --prompts-per-step 2 --num-generations 4 --max-completion-length 12 "
        f"--learning-rate 0.01 --reward-funcs {reward}:variety --system-prompt="
    )
    assert main(["train", *fixed.split(), *map(str, options)]) == 0
    return RunDir(run)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_a_run_changes_the_weights_of_every_family_in_both_precisions(tmp_path, model_directory, kind, dtype):
    rows = write_rows(tmp_path / "train.jsonl", GSM8K)
    run = train(tmp_path, "--model", model_directory(kind), "--dataset", rows, "--dtype", dtype)
    steps = run.metrics()
    assert [step["step"] for step in steps] == [1, 2]
    limit = 1e-4 if dtype == "float32" else 0.2
    assert all(step["logprob_mismatch_max"] < limit for step in steps if step["updates"])
    before, after = (AutoModelForCausalLM.from_pretrained(path) for path in (tmp_path / kind, run.path / "final"))
    assert after.dtype == torch.float32  # the weights' own, whatever a CPU computed in
    changed = [not torch.equal(b.to(a.dtype), a) for b, a in zip(before.parameters(), after.parameters(), strict=True)]
    assert all(changed)


@pytest.mark.parametrize("rows", [GSM8K, COLOSSALCHAT], ids=["gsm8k", "colossalchat"])
def test_rows_of_other_tools_train_and_are_measured_as_they_are(tmp_path, model_directory, rows):
    training, held_out = (write_rows(tmp_path / name, rows) for name in ("train.jsonl", "test.jsonl"))
    run = train(
        tmp_path, "--model", model_directory("qwen3"), "--dataset", training, "--eval-dataset", held_out,
        "--allow-overlap",
    )  # fmt: skip
    assert [(record["step"], record["n"]) for record in run.evals()] == [(0, 6), (2, 6)]
    prompts = {(record["prompt"], record["answer"]) for step in (1, 2) for record in run.rollouts(step)}
    assert all("What is" in prompt and answer is not None for prompt, answer in prompts)
    assert (run.path / "report.html").stat().st_size > 10_000


def test_several_held_out_sets_have_each_their_own_accuracy_under_their_names(tmp_path, model_directory, capsys):
    training = write_rows(tmp_path / "train.jsonl", GSM8K)
    easy, hard = (
        write_rows(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", GSM8K), ("b", COLOSSALCHAT[:2]))
    )
    sets = ("--eval-dataset", f"easy={easy}", hard)
    run = train(tmp_path, "--model", model_directory("qwen3"), "--dataset", training, *sets, "--allow-overlap")
    measured = [(record["set"], record["step"], record["n"]) for record in run.evals()]
    assert measured == [("easy", 0, 6), (str(hard), 0, 2), ("easy", 2, 6), (str(hard), 2, 2)]
    assert [record["task_id"] for record in run.eval_completions("easy", 2)] == [f"a.jsonl:{n}" for n in range(1, 7)]
    summary = json.loads((run.path / "summary.json").read_text())
    assert {name: one["after"]["n"] for name, one in summary["sets"].items()} == {"easy": 6, str(hard): 2}
    assert summary["before"] == summary["sets"]["easy"]["before"]
    capsys.readouterr()
    options = ["--model", str(run.path / "final"), "--dataset", str(training), "--max-completion-length", "12"]
    assert main(["eval", *options, *map(str, sets), "--system-prompt="]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("accuracy")]
    assert [line.rpartition(" on ")[2] for line in lines] == ["easy, n = 6", f"{hard}, n = 2"]


def test_held_out_rows_that_are_left_out_are_said_with_their_set(tmp_path, model_directory, capsys):
    training = write_rows(tmp_path / "train.jsonl", GSM8K)
    long = {"question": "What is one more than one? " * 20, "answer": "2"}
    held_out = write_rows(tmp_path / "test.jsonl", [*GSM8K, long])
    options = ("--eval-dataset", f"hard={held_out}", "--max-prompt-length", 100, "--long-prompts", "drop")
    with pytest.raises(AssertionError):
        train(tmp_path, "--model", model_directory("qwen3"), "--dataset", training, *options)
    assert "held-out set hard: 6 of 6 prompts are trained on too (test.jsonl:1 is" in capsys.readouterr().err
    options += ("--allow-overlap",)
    run = train(tmp_path, "--model", model_directory("qwen3"), "--dataset", training, *options)
    said = capsys.readouterr().out
    assert "hard: prompts above --max-prompt-length: 1 dropped, 0 truncated" in said
    assert "hard: 6 of 6 prompts are trained on too (test.jsonl:1 is train.jsonl:1)" in said
    assert [record["n"] for record in run.evals()] == [6, 6]


def test_a_share_that_is_held_out_is_measured_and_a_run_is_measured_again_as_it_measured_itself(
    tmp_path, model_directory, capsys
):
    rows = write_rows(tmp_path / "rows.jsonl", GSM8K)
    model = str(model_directory("qwen3"))
    run = train(tmp_path, "--model", model, "--dataset", rows, "--eval-share", 0.34, "--eval-reward-func", "format")
    assert [(record["set"], record["step"], record["n"]) for record in run.evals()] == [
        (f"{rows}:held-out", 0, 2),
        (f"{rows}:held-out", 2, 2),
    ]
    assert all(record["clock"]["time"] > 1e9 for record in [*run.evals(), *run.metrics()])
    held_out = {one["task_id"] for one in run.eval_completions(f"{rows}:held-out", 2)}
    trained = {one["task_id"] for step in (1, 2) for one in run.rollouts(step)}
    assert (len(held_out), held_out & trained) == (2, set())
    capsys.readouterr()
    for words in ([run.path], ["--model", run.path]):
        place = tmp_path / f"again-{len(words)}"
        assert main(["eval", *map(str, words), "--output-dir", str(place)]) == 0
        again = RunDir(place)
        assert again.eval_completions(f"{rows}:held-out", 0) == run.eval_completions(f"{rows}:held-out", 2)
    assert main(["eval", str(run.path), "--model", model]) == 2
    assert "leave out --model, or the run" in capsys.readouterr().err
    assert main(["export", str(run.path)]) == 2
    assert f"its final model is in {run.path / 'final'} already" in capsys.readouterr().err
    assert model_place(str(run.path)).base == str(run.path / "final")


def test_without_a_length_of_ones_own_completions_are_as_long_as_the_model_leaves(tmp_path, model_directory, capsys):
    rows = write_rows(tmp_path / "rows.jsonl", GSM8K)
    model = model_directory("qwen3")
    described = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 128}
    (model / "config.json").write_text(json.dumps(described))
    options = ["eval", "--model", str(model), "--dataset", str(rows), "--system-prompt=", "--eval-size", "2"]
    assert main(options) == 0
    found = re.search(r"at most (\d+) tokens, which the model's 128 positions leave", capsys.readouterr().out)
    assert 0 < int(found[1]) < 128
    assert main([*options, "--max-completion-length", "512"]) == 2
    assert "--max-completion-length must be below the model's 128 positions, got 512" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "dtype"), [((), "bfloat16"), (("--final-dtype", "float32"), "float32")])
def test_the_final_model_has_its_bases_precision_and_may_be_read_as_the_umask_says(
    tmp_path, model_directory, option, dtype
):
    rows = write_rows(tmp_path / "rows.jsonl", GSM8K)
    base = model_directory("qwen3")
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    run = train(tmp_path, "--model", base, "--dataset", rows, "--save-steps", 1, *option)
    final = run.path / "final"
    assert {str(one.dtype) for one in load_file(final / "model.safetensors").values()} == {f"torch.{dtype}"}
    assert json.loads((final / "config.json").read_text())["dtype"] == dtype
    assert {oct(file.stat().st_mode) for file in final.iterdir()} == {oct((final / "config.json").stat().st_mode)}
    # what a checkpoint has is exact either way, and is exported in another precision
    other = "float32" if dtype == "bfloat16" else "bfloat16"
    assert main(["export", str(run.path), str(tmp_path / "other"), "--final-dtype", other]) == 0
    exported = load_file(tmp_path / "other" / "model.safetensors")
    assert {str(one.dtype) for one in exported.values()} == {f"torch.{other}"}


def test_a_profile_shows_every_phase_of_every_step_in_the_order_in_which_they_were_done(tmp_path, model_directory):
    rows = write_rows(tmp_path / "train.jsonl", GSM8K)
    run = train(tmp_path, "--model", model_directory("qwen3"), "--dataset", rows, "--profile", "--save-steps", 1)
    trace = json.loads((run.path / "timeline.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    order = ("sample", "generate", "reward", "update", "publish", "checkpoint")
    phases = [f"{phase} {step}" for step in (1, 2) for phase in order]
    assert [event["name"] for event in events] == phases
    assert {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"} == {"run"}
    clock = run.metrics()[1]["clock"]
    assert events[7]["dur"] == pytest.approx(1e6 * clock["generate"])
    assert events[9]["dur"] <= 1e6 * clock["update"]


def test_without_profile_there_is_no_timeline(tmp_path, model_directory):
    rows = write_rows(tmp_path / "train.jsonl", GSM8K)
    run = train(tmp_path, "--model", model_directory("qwen3"), "--dataset", rows)
    assert not (run.path / "timeline.json").exists()


def test_a_gguf_file_trains_and_what_is_exported_as_one_has_the_trained_weights(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = saved_model(tmp_path / "model", "llama")
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "F32")
    rows = write_rows(tmp_path / "train.jsonl", GSM8K)

    run = train(tmp_path, "--model", tmp_path / "model.gguf", "--dataset", rows, "--save-steps", 2)
    assert "--model is a GGUF file: its weights are trained dequantised, in float32" in capsys.readouterr().out
    assert main(["export", str(run.path), str(tmp_path / "out"), "--format", "gguf:F32"]) == 0

    trained = load_file(run.path / "final" / "model.safetensors")
    again = load_file(Path(model_place(str(tmp_path / "out" / "model.gguf")).base) / "model.safetensors")
    before = model.state_dict()
    assert trained.keys() == again.keys()
    assert all(torch.equal(again[name], weight) for name, weight in trained.items())
    assert any(not torch.equal(before[name], weight) for name, weight in trained.items())


@pytest.mark.parametrize("save_steps", [0, 1, 2])
def test_the_newest_model_is_exported_whether_or_not_a_checkpoint_has_it(tmp_path, model_directory, save_steps, capsys):
    pytest.importorskip("gguf")
    rows = write_rows(tmp_path / "train.jsonl", GSM8K)
    saved_model(tmp_path / "model", "llama")
    run = train(
        tmp_path, "--model", tmp_path / "model", "--dataset", rows, "--save-steps", save_steps, "--max-steps", 3
    )
    assert main(["export", str(run.path), str(tmp_path / "out"), "--format", "gguf:F32"]) == 0
    assert "step 3: " in capsys.readouterr().out
    final, out = (load_file(folder / "model.safetensors") for folder in (run.path / "final", tmp_path / "out"))
    assert all(torch.equal(final[name], weight) for name, weight in out.items())
    assert (tmp_path / "out" / "model.gguf").is_file()
    words = ["export", str(run.path), str(tmp_path / "half"), "--final-dtype", "bfloat16"]
    if save_steps == 1:
        assert main(words) == 0
    else:
        assert main(words) == 2
        assert "--final-dtype needs a checkpoint, and the newest model of the run is only in" in capsys.readouterr().err
    if save_steps == 2:  # a checkpoint that is named is taken
        assert main(["export", str(run.path / "checkpoints" / "step-000002"), str(tmp_path / "two")]) == 0
        assert "step 2: " in capsys.readouterr().out
    assert main(["export", str(run.path / "checkpoints" / "step-000009"), str(tmp_path / "nine")]) == 2
    there = {0: "none", 1: "step-000002, step-000003", 2: "step-000002"}[save_steps]
    assert f"step-000009 is not there; the checkpoints of this run: {there}" in capsys.readouterr().err


def test_a_run_without_held_out_tasks_is_not_measured_on_what_it_was_trained_on(tmp_path, model_directory, capsys):
    rows = write_rows(tmp_path / "train.jsonl", GSM8K)
    run = train(tmp_path, "--model", model_directory("qwen3"), "--dataset", rows)
    capsys.readouterr()
    assert main(["eval", str(run.path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"the run of {run.path / 'config.yaml'} kept no tasks apart from --dataset {rows}; give tasks" in said
    with pytest.raises(ConfigError, match="kept no tasks apart from dataset"):
        paceline.evaluate(config=run.path / "config.yaml", model=str(run.path / "final"))
    assert main(["eval", str(run.path / "final")]) == 2
    assert "is a model and no run; name the run that trained it, or measure it by --model" in " ".join(
        capsys.readouterr().err.split()
    )
    assert main(["eval", str(run.path), "--dataset", str(rows), "--eval-size", "2"]) == 0


def test_a_format_that_cannot_be_exported_is_refused_before_anything_is_written(tmp_path, model_directory, capsys):
    pytest.importorskip("gguf")
    rows = write_rows(tmp_path / "train.jsonl", GSM8K)
    run = train(tmp_path, "--model", model_directory("llama"), "--dataset", rows, "--save-steps", 2)
    for form, sentence in (
        ("onnx", "--format must be gguf or gguf:TYPE, got 'onnx'"),
        ("gguf:Q3", "must have one of the types F32, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1, Q4_0, got Q3"),
        ("gguf", "writes byte-level BPE as GPT-2, Llama 3, Qwen2 or SmolLM divide text"),
    ):
        assert main(["export", str(run.path), str(tmp_path / "out"), "--format", form]) == 2
        assert sentence in capsys.readouterr().err
        assert not (tmp_path / "out").exists(), form


def test_a_reasoning_gym_task_trains_by_name(tmp_path, model_directory):
    pytest.importorskip("reasoning_gym")
    run = train(
        tmp_path, "--model", model_directory("llama"), "--dataset", "reasoning_gym:chain_sum", "--dataset-size", 8,
        "--eval-size", 4,
    )  # fmt: skip
    assert [record["set"] for record in run.evals()] == ["reasoning_gym:chain_sum:test"] * 2
    assert len(run.metrics()) == 2


@pytest.mark.parametrize("rate", ["0", "0.01"])
def test_a_reference_model_and_several_updates_per_batch_are_reported(tmp_path, model_directory, rate):
    rows = write_rows(tmp_path / "train.jsonl", GSM8K)
    run = train(
        tmp_path, "--model", model_directory("qwen2"), "--dataset", rows, "--beta", "0.1", "--num-iterations", 3,
        "--learning-rate", rate,
    )  # fmt: skip
    first, second = run.metrics()
    assert (first["updates"], second["policy_version"]) == (3, 6)
    moved = rate != "0"
    assert [record["kl"] > 1e-6 for record in (first, second)] == [moved, moved]
    assert (first["clip_high_fraction"] > 0) == moved


def test_a_reference_is_the_policy_again_after_the_steps_that_move_it_there(tmp_path, model_directory):
    rows = write_rows(tmp_path / "train.jsonl", GSM8K)
    run = train(
        tmp_path, "--model", model_directory("qwen2"), "--dataset", rows, "--beta", "0.1", "--max-steps", 3,
        "--ref-sync", 2, 1,
    )  # fmt: skip
    assert [record["kl"] > 1e-6 for record in run.metrics()] == [False, True, False]


def test_an_adapter_trains_alone_and_a_resumed_run_ends_with_the_same_one(tmp_path, model_directory):
    rows, model = write_rows(tmp_path / "train.jsonl", GSM8K), model_directory("qwen3")
    options = ("--model", model, "--dataset", rows, "--lora-rank", 4, "--save-steps", 1)
    run = train(tmp_path, *options, "--report-to", "tensorboard")
    assert list((run.path / "tensorboard").glob("events*"))
    assert (run.path / "final" / "adapter_model.safetensors").is_file()
    whole = adapter_of(run)
    assert any(tensor.abs().sum() > 0 for name, tensor in whole.items() if "lora_B" in name)
    shutil.rmtree(run.path / "checkpoints" / "step-000002")
    shutil.rmtree(run.path / "final")
    assert main(["train", "--resume", str(run.path)]) == 0
    assert [record["step"] for record in run.metrics()] == [1, 2]
    assert all(torch.equal(tensor, whole[name]) for name, tensor in adapter_of(run).items())


def test_a_moving_reference_is_refused_for_a_model_that_is_an_adapter(tmp_path, model_directory, capsys):
    rows = write_rows(tmp_path / "train.jsonl", GSM8K)
    run = train(tmp_path, "--model", model_directory("qwen2"), "--dataset", rows, "--lora-rank", 2, "--max-steps", 1)
    options = f"--model {run.path / 'final'} --dataset {rows} --output-dir {tmp_path / 'next'} --beta 0.1"
    short = "--ref-sync 1 0.5 --max-completion-length 8 --prompts-per-step 2 --max-steps 1"
    assert main(["train", *options.split(), *short.split()]) == 2
    assert "--ref-sync must be none with an adapter, got (1.0, 0.5); the reference" in capsys.readouterr().err
    assert not (tmp_path / "next").exists()


def adapter_of(run: RunDir) -> dict[str, torch.Tensor]:
    return load_file(run.path / "final" / "adapter_model.safetensors")


@pytest.mark.parametrize(("high", "refills"), [(2, 0), (0.01, 1)])
def test_groups_outside_the_filter_are_replaced_and_what_is_missing_is_said(
    tmp_path, model_directory, capsys, high, refills
):
    rows = write_rows(tmp_path / "train.jsonl", GSM8K)
    # the reward lies between 0 and 1.2: no group is above 2, and none with two letters is below 0.01
    run = train(
        tmp_path, "--model", model_directory("qwen2"), "--dataset", rows, "--filter-range", 0, high,
        "--max-refills", 1,
    )  # fmt: skip
    missing = 2 * refills
    for record in run.metrics():
        assert (record["prompts"], record["refills"]) == (2 + missing, refills)
        assert (record["groups_filtered"], record["groups_missing"], record["updates"]) == (
            2 * missing, missing, 1 - refills,
        )  # fmt: skip
    said = "outside --filter-range after 1 of 1 refills" in " ".join(capsys.readouterr().out.split())
    assert said == bool(refills)


def test_a_preset_and_two_parts_of_a_step_make_two_updates(tmp_path, model_directory):
    rows = write_rows(tmp_path / "train.jsonl", GSM8K)
    run = train(
        tmp_path, "--model", model_directory("llama"), "--dataset", rows, "--preset", "gspo", "--num-minibatches", 2,
    )  # fmt: skip
    assert [record["updates"] for record in run.metrics()] == [2, 2]
    assert "ratio_level: sequence" in (run.path / "config.yaml").read_text()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_eval_of_the_shipped_and_of_the_final_model_repeats_the_runs_own_numbers(tmp_path, capsys, dtype):
    run = tmp_path / "run"
    shape = f"--eval-size 60 --dtype {dtype}".split()
    short = "--max-steps 2 --prompts-per-step 8 --dataset-size 100 --warmup-steps 1 --learning-rate 1e-3".split()
    assert main(["train", "--output-dir", str(run), *shape, *short]) == 0
    before, after = (record["accuracy"] for record in RunDir(run).evals())
    for model, accuracy in (("embedded", before), (str(run / "final"), after)):
        capsys.readouterr()
        assert main(["eval", "--model", model, "--dataset", "arithmetic", "--max-completion-length", "64", *shape]) == 0
        assert f"accuracy {100 * accuracy:.1f} %" in capsys.readouterr().out


def test_eval_keeps_its_completions_as_a_run_does_and_prints_json(tmp_path, capsys):
    options = ["eval", "--eval-size", "4", "--output-dir", str(tmp_path / "measured")]
    assert main([*options, "--json"]) == 0
    said, measured = capsys.readouterr(), RunDir(tmp_path / "measured")
    found, (record,) = json.loads(said.out), measured.evals()
    assert (found["model"], found["set"], found["accuracy"]) == ("embedded", record["set"], record["accuracy"])
    completions = measured.eval_completions(record["set"], 0)
    assert (len(completions), found["verdicts"]["completions"]) == (4, 4)
    assert sum(one["correct"] for one in completions) == found["verdicts"]["right"]
    assert "with 4 held-out tasks, differences below" in said.err
    # no measurement is written over
    assert main(options) == 2
    assert f"--output-dir {measured.path} must be a new or an empty directory" in capsys.readouterr().err


def test_eval_says_that_it_measures_layers_in_eight_bits(capsys):
    assert main(["eval", "--eval-size", "4", "--engine-quantization", "fp8"]) == 0
    assert "completions are sampled with layers in eight bits" in " ".join(capsys.readouterr().out.split())


def test_a_quiet_measurement_prints_its_accuracy_alone(capsys):
    assert main(["eval", "--eval-size", "4", "--quiet"]) == 0
    said = capsys.readouterr()
    assert re.fullmatch(
        r"accuracy \d+\.\d % \[.+\], 95 % interval, on arithmetic:test, n = 4\n", " ".join(said.out.split()) + "\n"
    )
    assert said.err == ""
    assert main(["eval", "--eval-size", "4", "--quiet", "--json"]) == 0
    said = capsys.readouterr()
    assert (json.loads(said.out)["n"], said.err) == (4, "")


@pytest.mark.usefixtures("heeded_signals")
def test_an_interrupt_ends_the_run_after_its_step_and_resuming_finishes_it(tmp_path, capsys):
    run = tmp_path / "run"
    interrupting = tmp_path / "reward.py"
    interrupting.write_text(
        "import os, signal\n"
        "def interrupt(completions, **columns):\n"
        f"    if os.path.isdir({str(run)!r}) and not os.path.exists({str(run / 'metrics.jsonl')!r}):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return [len(c) / 100 for c in completions]\n"
    )
    short = "--max-steps 3 --prompts-per-step 4 --dataset-size 100 --eval-size 10 --warmup-steps 1".split()
    assert main(["train", "--output-dir", str(run), "--reward-funcs", f"{interrupting}:interrupt", *short]) == 130
    assert f"paceline train --resume {run}" in capsys.readouterr().out
    assert [record["step"] for record in RunDir(run).metrics()] == [1]
    assert main(["train", "--resume", str(run)]) == 0
    assert [record["step"] for record in RunDir(run).metrics()] == [1, 2, 3]


def test_weights_that_cannot_be_read_are_named_and_leave_no_run_behind(tmp_path, model_directory, capsys):
    rows, model, run = write_rows(tmp_path / "t.jsonl", GSM8K), model_directory("qwen2"), tmp_path / "run"
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    short = "--max-completion-length 8 --max-steps 1 --prompts-per-step 2".split()
    capsys.readouterr()
    assert main(["train", "--model", str(model), "--dataset", str(rows), "--output-dir", str(run), *short]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"paceline: --model {model} cannot be loaded: ")
    assert error.count("\n") == 1
    assert not run.exists()
