"""Every example starts: its own file, with a tiny model and a few rows in the place of the named ones."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import skyrl_gym

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from tests.support.tiny import tiny_model, tiny_reward_model, tiny_tokenizer

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
GSM8K = [
    {"question": f"A pen costs {n} dollars. Two pens?", "answer": f"2 * {n} = {2 * n}\n#### {2 * n}"} for n in range(8)
]
PROMPTS = [{"prompt": [{"role": "user", "content": f"Tell me about {n}."}]} for n in range(8)]
SMALL = (
    "--max-steps 2 --prompts-per-step 2 --num-generations 4 --max-completion-length 12 --eval-size 2 --warmup-steps 0"
)


@pytest.fixture
def policy(tmp_path) -> Path:
    tiny_model("qwen2").save_pretrained(tmp_path / "policy")
    tiny_tokenizer().save_pretrained(tmp_path / "policy")
    return tmp_path / "policy"


def rows_file(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def start(name: str, tmp_path: Path, policy: Path, *options: object, rows: list[dict] = GSM8K) -> RunDir:
    data = rows_file(tmp_path / "rows.jsonl", rows)
    given = ["--config", EXAMPLES / name, "--model", policy, "--dataset", data, "--output-dir", tmp_path / "run"]
    assert main(["train", *map(str, given), *SMALL.split(), *map(str, options)]) == 0
    return RunDir(tmp_path / "run")


def test_a_real_model_is_rewarded_for_the_result_of_its_first_equation(tmp_path, policy, monkeypatch):
    monkeypatch.chdir(ROOT)
    options = ("--config", EXAMPLES / "smollm2.yaml", "--model", policy, "--output-dir", tmp_path / "run")
    assert main(["train", *map(str, options), *SMALL.split()]) == 0
    run = RunDir(tmp_path / "run")
    assert [set(step["rewards"]) for step in run.metrics()] == [{"examples/first_equation.py:first_equation"}] * 2
    assert all(re.search(r"How many [^?]+[?]", record["prompt"]) for record in run.rollouts(1))


def test_rewards_of_ones_own_stand_beside_the_checked_answer(tmp_path, policy, monkeypatch):
    monkeypatch.chdir(ROOT)
    (step, _) = start("custom_reward.yaml", tmp_path, policy).metrics()
    assert [name.rpartition(":")[2] for name in step["rewards"]] == ["accuracy", "shows_its_work", "names_the_unit"]
    assert step["rewards"]["examples/custom_reward.py:names_the_unit"]["mean"] is not None


def test_a_reward_model_judges_alone(tmp_path, policy):
    judge = tmp_path / "judge"
    tiny_reward_model().save_pretrained(judge)
    tiny_tokenizer().save_pretrained(judge)
    run = start("reward_model.yaml", tmp_path, policy, "--reward-funcs", f"model:{judge}", rows=PROMPTS)
    steps = run.metrics()
    assert [list(step["rewards"]) for step in steps] == [[str(judge)]] * 2
    assert all(step["updates"] == 1 and step["rewards"][str(judge)]["std"] > 0 for step in steps)
    penalised = [record["rewards"]["overlong"] for record in run.rollouts(1)]
    assert min(penalised) == -1.0  # a completion that runs to the limit


def test_a_script_for_trl_runs_with_its_import_changed(tmp_path, policy):
    pytest.importorskip("peft")
    words = (
        f"--model_name_or_path {policy} --output_dir {tmp_path / 'run'} --per_device_train_batch_size 8 "
        "--num_generations 4 --max_completion_length 8 --max_steps 3 --logging_steps 1 --learning_rate 1e-3 "
        "--eval_strategy steps --eval_steps 2 --metric_for_best_model eval_reward --report_to tensorboard"
    )
    script = [sys.executable, str(EXAMPLES / "trl_script.py"), *words.split()]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'eval_rewards/right/mean'" in done.stdout
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()
    assert list((tmp_path / "run").rglob("events.out.tfevents.*"))


def test_an_agent_that_knows_openais_interface_is_trained_as_it_is(tmp_path, monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.chdir(ROOT)
    options = "--model embedded-agent --environment harness:examples/agent.py:play --eval-reward-func play"
    short = "--max-steps 1 --prompts-per-step 2 --num-generations 4 --dataset-size 8 --eval-size 2"
    assert main(["train", *options.split(), *short.split(), "--output-dir", str(tmp_path / "run")]) == 0
    found = RunDir(tmp_path / "run").rollouts(1)
    assert [one["episode"]["failure"] for one in found] == [None] * 8
    assert all(one["rewards"]["play"] in (0.0, 1.0) for one in found)


@pytest.fixture
def registered_for_this_test(monkeypatch):
    """The example's module, whose environment no other test of this process finds registered."""
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    del skyrl_gym.registry["guess-steps"], sys.modules["guess_steps"]


@pytest.mark.usefixtures("registered_for_this_test")
def test_a_game_is_played_as_an_environment_of_skyrl_gym(tmp_path):
    options = "--model embedded-agent --environment skyrl_gym:guess_steps:guess-steps --eval-reward-func guess-steps"
    short = "--max-steps 1 --prompts-per-step 2 --num-generations 4 --dataset-size 8 --eval-size 2"
    short += " --max-completion-length 96"
    assert main(["train", *options.split(), *short.split(), "--output-dir", str(tmp_path / "run")]) == 0
    found = list(RunDir(tmp_path / "run").rollouts(1))
    assert all(one["reward"] == 1 for one in found if len(one["episode"]["turns"]) < 5)  # over before its fifth guess
    assert {one["episode"]["failure"] for one in found} == {None}


def test_an_agent_of_a_library_is_trained_as_it_is(tmp_path, monkeypatch):
    pytest.importorskip("smolagents")
    monkeypatch.chdir(ROOT)
    model = tiny_model()
    model.config.max_position_embeddings = 8192  # the agent's words are read byte by byte, those on its mistakes too
    model.save_pretrained(tmp_path / "policy")
    tiny_tokenizer().save_pretrained(tmp_path / "policy")
    agent = "--environment harness:examples/smolagents_agent.py:play --dataset arithmetic --eval-reward-func play"
    short = (
        "--max-steps 1 --prompts-per-step 2 --num-generations 2 --dataset-size 8 --eval-size 1 --max-turns 6 "
        "--max-turn-length 8 --max-prompt-length 4096 --max-completion-length 2048"
    )
    given = ["--model", str(tmp_path / "policy"), *agent.split(), *short.split()]
    assert main(["train", *given, "--output-dir", str(tmp_path / "run")]) == 0
    found = list(RunDir(tmp_path / "run").rollouts(1))
    # three turns that are no call, which the library answers with what is wrong, and the answer that it asks for then
    assert [len(one["episode"]["turns"]) for one in found] == [4] * 4
    assert [(one["episode"]["failure"], one["reward"]) for one in found] == [(None, 0.0)] * 4
