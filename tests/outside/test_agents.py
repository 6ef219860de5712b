"""Agents as people write them: a client at the head of the file, prints everywhere, a failure, a tool."""

import json

import pytest

pytest.importorskip("openai")

RUN = (
    *("--environment", "harness:agent.py:play", "--eval-reward-func", "play", "--max-steps", 1),
    *("--prompts-per-step", 1, "--num-generations", 2, "--dataset-size", 8, "--eval-size", 2),
    *("--output-dir", "runs/one"),
)
ASK = 'client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Guess a number from 1 to 9."}])'
KEYS = {"OPENAI_API_KEY": "sk-of-the-users-shell", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}


@pytest.mark.long
def test_a_client_made_at_import_asks_the_run_in_a_module_of_the_agents_too(desk):
    desk.write(
        "helpers/clients.py",
        "import os\nfrom openai import OpenAI\nclient = OpenAI()\nKEY = os.environ['OPENAI_API_KEY']\n",
    )
    desk.write(
        "agent.py",
        f"""
        import sys
        from helpers import clients
        from helpers.clients import client

        def play(task, api_key):
            assert clients.KEY == api_key != {KEYS["OPENAI_API_KEY"]!r}
            print("guessing", task["answer"])
            {ASK}
            return 1.0
        """,
    )
    done = desk.paceline("train", "--model", "embedded-agent", *RUN, "--max-completion-length", 64, env=KEYS)
    assert done.returncode == 0, done.stderr
    lines = (desk.path / "runs/one/rollouts/step-000001.jsonl").read_text().splitlines()
    printed = [json.loads(line)["episode"]["printed"] for line in lines]
    assert printed == [[f"guessing {json.loads(lines[0])['answer']}"]] * 2


@pytest.mark.long
def test_what_a_failing_agent_printed_is_in_the_error_and_in_the_directory_without_its_keys(desk):
    desk.write(
        "agent.py",
        f"""
        import os, subprocess, sys
        from openai import OpenAI
        client = OpenAI()

        def play(task):
            subprocess.run(["sh", "-c", "yes | head -c 3000000; echo; echo from a child >&2"])
            os.write(2, b"written by C\\n")
            print("key", os.environ["SHOP_TOKEN"], end="")
            {ASK}
            raise RuntimeError("https://shop.org/buy?token=1 refused " + os.environ["SHOP_TOKEN"])
        """,
    )
    env = KEYS | {"SHOP_TOKEN": "tok-4f9a77aa"}
    done = desk.paceline("train", "--model", "embedded-agent", *RUN, "--max-completion-length", 64, env=env)
    assert done.returncode == 1
    assert (
        "RuntimeError: https://shop.org/buy?(hidden) refused (SHOP_TOKEN)\n    what it printed at last:\n"
        in done.stderr
    )
    assert done.stderr.endswith("    from a child\n    written by C\n    key (SHOP_TOKEN)\n")
    (kept,) = (desk.path / "runs/one/evals").iterdir()
    assert [json.loads(line)["episode"]["end"] for line in kept.read_text().splitlines()] == ["failed"] * 2
    assert "tok-4f9a77aa" not in done.stdout + done.stderr + kept.read_text()
