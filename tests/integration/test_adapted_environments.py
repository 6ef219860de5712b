"""One step of training on environments of five other packages, each in processes of its own, without a network."""

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from tests.support.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model with places for the rules of a game, byte by byte."""
    path = tmp_path_factory.mktemp("model")
    made = tiny_model()
    made.config.max_position_embeddings = 2048
    made.save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("reasoning_gym:chain_sum(attempts=2)", "Answer as <answer>...</answer>. You have 2 attempts."),
        ("reasoning_gym:countdown", "Answer as <answer>...</answer>. You have 3 attempts."),
        ("gymnasium:FrozenLake-v1", "<red>S</red>FFF\nFHFH\nFFFH\nHFFG\nActions: left, down, right, up."),
        ("gymnasium:Blackjack-v1", "Actions: stick, hit."),
        (
            "gymnasium:gym_simplegrid:SimpleGrid-4x4-v0(actions=up/down/left/right)",
            "implementation of the SimpleGrid environment.",
        ),
        ("textarena:GuessTheNumber-v0", "You are playing Guess The Number."),
        ("skyrl_gym:gsm8k_multi_turn(max_turns=2)", "How many"),
        ("textarena:TowerOfHanoi-v0", "A: [3, 2, 1]\nB: []\nC: []"),
    ],
)
def test_an_environment_of_another_package_trains(tmp_path, model, address, said):
    options = (
        "--system-prompt= --dataset-size 8 --max-steps 1 --prompts-per-step 2 --num-generations 2 --eval-size 1 "
        "--eval-steps 0 --max-prompt-length 1024 --max-turns 2 --max-turn-length 8 --max-completion-length 600 "
        "--max-reward-failure-rate 0"
    )
    run = tmp_path / "run"
    given = ["--model", str(model), "--environment", address, "--output-dir", str(run)]
    if address.startswith("skyrl_gym"):  # it plays rows, and makes none
        given += ["--dataset", "arithmetic"]
    assert main(["train", *given, *options.split()]) == 0
    (step,), name = RunDir(run).metrics(), address.partition("(")[0].rpartition(":")[2]
    assert step["rewards"][name]["count"] == 4
    rollouts = list(RunDir(run).rollouts(1))
    assert len({(rollout["task_id"], rollout["prompt"]) for rollout in rollouts}) == 2  # siblings begin alike
    assert all(said in rollout["prompt"] for rollout in rollouts)
