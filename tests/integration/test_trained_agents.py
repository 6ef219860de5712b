"""A program that plays a game through the endpoint is trained bit for bit as the game that is built in."""

import shutil
from pathlib import Path

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from tests.support.cluster_runs import weights

AGENT = '''
import re

from tests.support.endpoint_client import Client, Refused, user


def play(task, base_url, api_key):
    """Play the game `guess`, as the environment of that name does."""
    client, messages, secret = Client(base_url, api_key), list(task["messages"]), int(task["answer"])
    try:
        while True:
            numbers = re.findall(r"-?\\d+", client.say(messages)["content"])
            guess = int(numbers[-1]) if numbers else None
            if guess == secret:
                return 1.0
            hint = "higher" if guess is not None and guess < secret else "lower"
            wrong = f"Say a number from {task['low']} to {task['high']}."
            messages.append(user(wrong if guess is None else hint))
    except Refused:
        return 0.0
'''
SHORT = (
    "--max-steps 2 --save-steps 1 --prompts-per-step 4 --num-generations 4 --learning-rate 3e-4 --dataset-size 100 "
    "--eval-size 8"
)


def trained(folder: Path, *options: str) -> RunDir:
    given = ["--model", "embedded-agent", "--output-dir", str(folder), *SHORT.split(), *options]
    assert main(["train", *given]) == 0
    return RunDir(folder)


def test_an_agent_is_trained_as_the_game_that_it_plays_and_resumes_so_too(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    game = trained(tmp_path / "game")
    address = f"harness:{tmp_path / 'agent.py'}:play"
    agent = trained(tmp_path / "agent", "--environment", address, "--eval-reward-func", "play")
    assert weights(agent) == weights(game)
    pairs = [
        (one["completion"], one["reward"], one["rewards"]["play"], other["rewards"]["guess"])
        for step in (1, 2)
        for one, other in zip(agent.rollouts(step), game.rollouts(step), strict=True)
        if (one["completion"], one["reward"]) == (other["completion"], other["reward"])
    ]
    assert len(pairs) == 2 * 16
    assert [one["accuracy"] for one in agent.evals()] == [one["accuracy"] for one in game.evals()]
    # killed after its first step, and gone on with
    for later in ("final", "checkpoints/step-000002"):
        shutil.rmtree(agent.path / later)
    assert main(["train", "--resume", str(agent.path)]) == 0
    assert weights(agent) == weights(game)
