"""`paceline serve` is an endpoint until a signal, and `paceline chat` a conversation, also from a script of lines."""

import io
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from paceline.cli.chat import ENDED, Chat, ChatTools
from paceline.cli.main import main
from paceline.engines import Sampling
from paceline.environments.hosting import Hosts
from paceline.environments.resolving import specs
from tests.support.endpoint_client import Client, user
from tests.support.served import ScriptedEngine, served

QUESTION = "Tom has 3 coins and gets 4 more. How many coins does he have?"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, None])
def test_the_command_answers_until_a_signal_or_the_end_of_its_input(number):
    pytest.importorskip("openai")
    words = [sys.executable, "-m", "paceline", "serve", "--model", "embedded", "--port", "0", "--temperature", "1"]
    words += [] if number else ["--end-with-input"]
    environment = {name: value for name, value in os.environ.items() if name != "PACELINE_API_KEY"}
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        said = []
        while not (said and said[-1].startswith("key: ")):
            said.append(process.stdout.readline())
            assert said[-1], said
        url = re.search(r"http://127\.0\.0\.1:\d+/v1", "".join(said))[0]
        client = Client(url, said[-1].removeprefix("key: ").strip())
        answer = client.chat([user(QUESTION)], max_tokens=20, temperature=0)
        assert answer["model"] == "embedded"
        assert answer["choices"][0]["message"]["content"]
        assert Client(url, "another").ask("/models", b"", method="GET")[0] == 401
        if number:
            process.send_signal(number)
        else:
            process.stdin.close()
        assert process.wait(60) == 0
        assert process.stdout.read().endswith("ended\n")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--port many", "--port must be a whole number from 0 to 65535, got 'many'"),
        ("--stop-grace -1", "--stop-grace must be a number of seconds from 0 on, got '-1'"),
        ("--api-key=", "--api-key must be one line of ASCII text"),
        ("--api-key=two\x7flines", "--api-key must be one line of ASCII text"),
        ("--learning-rate 1", "--learning-rate is no option of `paceline serve`, only of training; leave it out"),
        ("--model ./nowhere", "--model ./nowhere is not a directory"),
    ],
)
def test_a_wrong_option_is_refused(words, sentence, capsys):
    assert main(["serve", *words.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_a_directory_of_a_run_stands_for_the_model_that_it_has_trained(tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    short = "--max-steps 1 --prompts-per-step 2 --num-generations 2 --dataset-size 8 --eval-size 2"
    assert main(["train", "--output-dir", str(run), *short.split()]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("Tom has 3 coins. How many?\n"))
    assert main(["chat", "--model", str(run), "--temperature", "0.1", "--seed", "1"]) == 0
    (run / "final").rename(run / "gone")
    assert main(["chat", "--model", str(run)]) == 2
    assert "is a run's directory without final/" in capsys.readouterr().err


def test_a_script_of_lines_is_a_conversation(capsys, monkeypatch):
    lines = [QUESTION, "/reset", QUESTION, "/help", "/exit", "no", ""]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    assert main(["chat", "--model", "embedded", "--temperature", "0.01"]) == 0
    first, reset, second, told = capsys.readouterr().out.splitlines()
    assert first == second != ""
    assert (reset, told.startswith("(there are /reset and /exit")) == ("(a new conversation)", True)


def test_a_game_is_no_tool(capsys):
    assert main(["chat", "--environment", "guess"]) == 2
    assert "--environment must name tools for a conversation in the terminal, and guess is a game" in (
        capsys.readouterr().err
    )


def chat_on(engine: ScriptedEngine, make_tools=None) -> tuple[Chat, object]:
    model = served(engine, sampling=Sampling(max_completion_length=200))
    model.start()
    return Chat(model, make_tools, system="Be brief.", most_turns=None, seed=3), model


def test_a_model_calls_tools_and_goes_on_with_what_they_say(capsys):
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "17 * 24"}}</tool_call>'
    engine = ScriptedEngine(f"So: {call}", "It is 408.")
    (spec,) = specs(["calculator"]).values()
    with Hosts(step_seconds=30) as hosts:
        chat, model = chat_on(engine, lambda: ChatTools(hosts, spec))
        chat.say("What is 17 * 24?")
    model.generations.break_off(ENDED)
    assert capsys.readouterr().out.splitlines() == [
        "So:",
        "[calculator {'expression': '17 * 24'}]",
        "[-> 408]",
        "It is 408.",
    ]
    prompt = model.tokenizer.decode(engine.taken[1][0])
    assert "Be brief." in prompt
    assert prompt.index("What is 17 * 24?") < prompt.index("So:") < prompt.index("408")


@pytest.mark.usefixtures("heeded_signals")
def test_an_interrupt_stops_an_answer_and_nothing_of_it_is_kept(capsys):
    steps = threading.Semaphore(0)
    engine = ScriptedEngine("x" * 30, "Hello.", steps=steps)
    chat, model = chat_on(engine)

    def interrupt():
        if engine.taken and not engine.cut:
            engine.fails = lambda: None
            signal.raise_signal(signal.SIGINT)

    # in the main thread, where Python calls handlers
    engine.fails = interrupt
    steps.release(5)
    with pytest.raises(KeyboardInterrupt):
        chat.say("Say x.")
    steps.release(1000)
    assert engine.was_cut.wait(30)
    chat.say("Hi.")
    model.generations.break_off(ENDED)
    assert capsys.readouterr().out.splitlines()[-1].endswith("Hello.")
    prompt = model.tokenizer.decode(engine.taken[1][0])
    assert "Say x." not in prompt
