"""The file of a program finds an endpoint in its environment while it is loaded, and never the user's own key."""

import os
import sys

import pytest

from paceline.environments.agent_program import VARIABLES, AgentProgram
from paceline.errors import ConfigError

OWN = dict.fromkeys(VARIABLES, "the user's own")


@pytest.fixture
def write(tmp_path, monkeypatch):
    for name, value in OWN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)

    def write(name, text):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return f"{file}:play"

    yield write
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_a_file_that_reads_a_variable_is_loaded_again_with_its_modules(write, monkeypatch):
    write("neighbour_of_agent/clients.py", "import os\nSEEN = dict(os.environ)\n")
    target = write("agent.py", "from neighbour_of_agent import clients\ndef play(): return clients.SEEN\n")
    program = AgentProgram(target, flag="--environment")
    seen = program.function()
    assert seen["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
    assert all(seen[name] != OWN[name] for name in VARIABLES)
    assert {name: os.environ[name] for name in VARIABLES} == OWN
    monkeypatch.setenv("OPENAI_API_KEY", "of the episode")
    assert program.load()()["OPENAI_API_KEY"] == "of the episode"


def test_a_file_that_reads_none_is_loaded_once(write):
    program = AgentProgram(
        write("agent.py", "import os\nHOME = os.environ.get('HOME')\ndef play(): pass\n"), flag="--x"
    )
    assert program.load() is program.function


def test_what_a_file_writes_into_the_variables_is_not_taken(write):
    target = write(
        "agent.py",
        "import os\nos.environ['OPENAI_API_KEY'] = 'sk-of-a-file'\n"
        "KEY = os.environ['OPENAI_API_KEY']\ndef play(): return KEY\n",
    )
    assert AgentProgram(target, flag="--x").function() not in ("sk-of-a-file", OWN["OPENAI_API_KEY"])


def test_a_file_that_asks_while_it_is_loaded_is_refused_with_what_to_do(write):
    ask = (
        "import os, urllib.request as r\nk = {'Authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']}\n"
        'b = b\'{"messages": [{"role": "user", "content": "hi"}]}\'\n'
        "q = r.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', b, k)\n"
        "try:\n    r.urlopen(q)\nexcept r.HTTPError as e:\n    raise RuntimeError(e.read().decode())\n"
    )
    with pytest.raises(ConfigError, match="ask the model within the function"):
        AgentProgram(write("agent.py", ask), flag="--environment")


def test_whatever_a_file_raises_is_a_sentence(write):
    with pytest.raises(ConfigError, match=r"the file cannot be loaded \(Odd: no key\)"):
        AgentProgram(write("agent.py", "class Odd(Exception): pass\nraise Odd('no key')\n"), flag="--environment")
