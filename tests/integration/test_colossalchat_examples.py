"""ColossalChat's own example commands, translated, train: on small models and rows of its format, here and on Ray."""

import json
from pathlib import Path

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from paceline.compat.commands.command import translate
from paceline.compat.commands.translation import as_words
from paceline.data.sources import load_rows
from paceline.models.places import DIRECTORIES
from paceline.sandbox.levels import probe_levels
from tests.support.colossalchat_commands import PROJECT, ROWS, SEVERAL_MACHINES, SINGLE_MACHINE, rows_file, scaled_down
from tests.support.tiny import tiny_model, tiny_tokenizer

HERE = (
    *("cluster", "num_producers", "num_consumers", "max_staleness"),
    *("tensor_parallel", "pipeline_parallel", "zero_stage"),
)
"""Options that are left out for a run in one process."""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model"
    tiny_model("qwen2").save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def command(tmp_path: Path, example: str, rows: list[dict], model: Path, flags: str = "") -> list[str]:
    """With the engine that needs no other package."""
    return scaled_down(tmp_path, example, rows, model, f"-b transformers {flags}")


def train_here(tmp_path: Path, words: list[str]) -> RunDir:
    """In this process."""
    found = translate(words, repair=True).options
    assert main(["train", *as_words({name: value for name, value in found.items() if name not in HERE})]) == 0
    return RunDir(tmp_path / "runs" / PROJECT)


def test_the_example_for_one_machine_trains_in_one_process(tmp_path, model):
    run = train_here(tmp_path, command(tmp_path, SINGLE_MACHINE, ROWS * 2, model))
    assert [(step["prompts"], step["rollouts"]) for step in run.metrics()] == [(8, 32)] * 2
    assert "micro_batch_tokens: 624" in (run.path / "config.yaml").read_text()  # 2 of at most 300 + 12
    rollouts = run.rollouts(1)
    assert {rollout["answer"] for rollout in rollouts} <= {str(n + 1) for n in range(8)}
    assert all("put your final answer within \\boxed{}." in rollout["prompt"] for rollout in rollouts)
    assert (run.path / "final" / "config.json").exists()


def test_the_example_for_several_machines_trains_in_one_process_in_as_many_updates(tmp_path, model):
    layout = "-t 8 -i 4 -tp 2 -pp 2 -zero 1 -ibs 2"  # two groups of four trainers, as its file has them of eight
    run = train_here(tmp_path, command(tmp_path, SEVERAL_MACHINES, ROWS, model, layout))
    assert "num_minibatches: 2" in (run.path / "config.yaml").read_text()
    assert [step["prompts"] for step in run.metrics()] == [8, 8]  # two episodes
    assert [step["updates"] for step in run.metrics()] == [2, 2]


def test_programs_of_its_rows_are_learnt_from(tmp_path):
    if not any(report.available for report in probe_levels() if report.level != "none"):
        pytest.skip("no isolation for programs here")
    programs = [row.columns for row in load_rows("programs", split="train", size=8)]
    rows = [
        {"messages": {"role": "user", "content": row["question"]}, "test_cases": row["test_cases"]} for row in programs
    ]
    embedded = Path(__file__).parent.parent.parent / "src" / "paceline" / "models" / DIRECTORIES["embedded-programs"]
    flags = "-rt code -cv http://10.0.0.9:8000 -s '' -mnt 64 -mpt 64 -lr 1e-4 -a DAPO -g 8"
    run = train_here(tmp_path, command(tmp_path, SINGLE_MACHINE, rows, embedded, flags))
    (step,) = run.metrics()
    assert step["rewards"]["code"]["failures"] == 0
    assert 0 < step["rewards"]["code"]["mean"] < 1
    assert step["updates"] == 1
    assert step["grad_norm"] > 0


@pytest.mark.usefixtures("forked_workers")
def test_the_example_for_one_machine_trains_on_ray_with_two_held_out_sets_and_a_timeline(tmp_path, model):
    held_out = [
        {"messages": {"role": "user", "content": f"What is {n} + 2?"}, "gt_answer": str(n + 2)} for n in range(5)
    ]
    sets = {"odd": held_out, "few": held_out[:1]}
    sets = {name: str(rows_file(tmp_path / f"{name}.jsonl", rows)) for name, rows in sets.items()}
    flags = f"-t 2 -i 2 -ed '{json.dumps(sets)}' -ei 1 --enable_profiling"
    words = command(tmp_path, SINGLE_MACHINE, ROWS[:4], model, flags)
    assert main(["translate", "--repair", "--run", "--", *words]) == 0
    run = RunDir(tmp_path / "runs" / PROJECT)
    assert [(step["prompts"], step["rollouts"]) for step in run.metrics()] == [(4, 16)]
    assert [(one["set"], one["step"], one["n"]) for one in run.evals()] == [
        ("odd", 0, 5), ("few", 0, 1), ("odd", 1, 5), ("few", 1, 1),
    ]  # fmt: skip
    measured = [record["task_id"] for record in run.eval_completions("odd", 1)]
    assert measured == [f"odd.jsonl:{number}" for number in range(1, 6)]
    trace = json.loads((run.path / "timeline.json").read_text())["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in trace if event["name"] == "thread_name"}
    assert set(rows.values()) == {"run", "sampler 0", "sampler 1", "trainer 0", "trainer 1"}
    done = {(rows[event["tid"]].split()[0], event["name"].split()[0]) for event in trace if event["ph"] == "X"}
    assert {("sampler", name) for name in ("load", "sample", "generate", "reward")} <= done
    assert {("trainer", "update"), ("trainer", "manifest"), ("run", "evaluate"), ("run", "sample")} <= done


@pytest.mark.usefixtures("forked_workers")
def test_the_example_for_several_machines_trains_on_ray_scaled_down_to_this_one(tmp_path, model):
    layout = "-t 4 -i 1 -tp 2 -pp 2 -zero 1 -nb 1 -ibs 2"
    found = translate(command(tmp_path, SEVERAL_MACHINES, ROWS[:4], model, layout))
    assert found.options["cluster"] == "10.0.0.3:6379"
    options = {**found.options, "cluster": True}
    assert main(["train", *as_words(options)]) == 0
    run = RunDir(tmp_path / "runs" / PROJECT)
    assert [step["prompts"] for step in run.metrics()] == [2] * 4  # two episodes of four rows
