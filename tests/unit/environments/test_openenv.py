"""Environments of OpenEnv: steps in words and by tools, on a server or served here; failures with their turns."""

import random

import pytest

pytest.importorskip("openenv.core", reason="`make test-adapters` installs openenv-core")

from paceline.config.building import tasks_of
from paceline.environments import AgentTurn, ToolCall
from paceline.environments.adapters.openenv import ActionForm, OpenEnvSession, ServedApplication
from paceline.environments.hosting import Hosts
from paceline.environments.resolving import specs
from paceline.errors import ConfigError, EnvironmentFailure
from tests.unit.environments.test_adapters import TASK, begun, spec_of
from tests.unit.environments.test_hosting import Asked, ask, turn
from tests.unit.training.test_conversations import DictatedEngine, conversations, held, number_of, task

GAME = "openenv:tests.support.openenv_games:guessing"
TOLD = "Action: a whole number, number: a guess from 1 to 20"


def digits(number):
    return sum(map(int, str(number)))


def played(environment, *texts):
    """Text, reward, end and wrong actions of each answer."""
    found = []
    for text in texts:
        said = environment.observe(AgentTurn(number=0, text=text, content=text, finish_reason="stop", is_last=False))
        (message,) = said.messages
        found.append((message["content"], said.reward, said.done, said.failed_calls))
    return found


def called(environment, *calls, is_last=False):
    return environment.observe(
        AgentTurn(number=0, text="", content="", calls=calls, finish_reason="stop", is_last=is_last)
    )


def test_a_number_is_guessed_on_a_server_of_the_episodes_own():
    game, said = begun(GAME, episode_seed=7)
    secret = random.Random(7).randint(1, 20)  # 11
    assert said == f"\nGuess a number from 1 to 20; the sum of its digits is {digits(secret)}.\n{TOLD}"
    assert played(game, "<think>20?</think> 1", "say", "25", f"It is {secret}.") == [
        ("hint: higher\nleft: 4", -0.125, False, 0),
        (f"That is no action. {TOLD}", 0.0, False, 1),
        (f"That is no action. {TOLD}", 0.0, False, 1),  # the server says so
        ("right", 1.0, True, 0),
    ]
    assert game.close() == 0.875


def opening(address, episode_seed, **columns):
    game, said = begun(address, episode_seed, **columns)
    game.close()
    return said


def test_parameters_and_the_seed_reach_the_reset():
    said = [opening(f"{GAME}(most=1000)", seed) for seed in (3, 3, 4)]
    assert said[0] == said[1] != said[2]
    assert "from 1 to 1000" in said[0]


def test_a_row_decides_the_game_where_it_has_a_seed():
    assert opening(GAME, 5) == opening(GAME, 6, seed=5)


def test_one_of_some_words_is_an_action():
    game, said = begun("openenv:tests.support.openenv_games:line")
    assert said == "\n0\nActions: left, right."
    assert played(game, "up", "not left but Right", "right") == [
        ("That is no action. Actions: left, right.", 0.0, False, 1),
        ("1", 0.0, False, 0),
        ("2", 1.0, True, 0),
    ]
    game.close()


def test_tools_are_told_and_each_call_is_a_step():
    spec = spec_of("openenv:tests.support.openenv_games:counter")
    assert [one["function"]["name"] for one in spec.tools] == ["add", "break_it"]
    assert spec.tools[0]["function"]["description"].startswith("Add to the count.")
    assert spec.tools[0]["function"]["parameters"]["properties"]["number"]["type"] == "integer"
    game = spec.make()
    assert game.begin(TASK, 0) is None
    add = ToolCall(name="add", arguments={"number": 1})
    two = called(game, add, ToolCall(name="take", arguments={}))
    assert [one["content"] for one in two.messages] == [
        "1",
        "Error: there is no tool 'take'; the tools are add, break_it",
    ]
    assert (two.reward, two.done, two.calls, two.failed_calls) == (0.0, False, 2, 1)
    (said,) = called(game, ToolCall(name="break_it", arguments={})).messages
    assert said["content"].startswith("Error: break_it failed: ")
    assert "it is broken" in said["content"]
    last = called(game, add, add)
    assert ([one["content"] for one in last.messages], last.reward, last.done) == (["2", "3"], 1.0, True)
    game.close()


def test_a_turn_without_a_call_is_the_end_and_the_last_one_calls_nothing():
    game, _ = begun("openenv:tests.support.openenv_games:counter")
    assert called(game).done
    add = ToolCall(name="add", arguments={"number": 1})
    assert called(game, add, is_last=True).messages == ()
    (said,) = called(game, add).messages
    assert said["content"] == "1"
    game.close()


def test_a_failure_on_the_server_is_named_with_its_turn():
    (spec,) = specs([GAME]).values()
    engine = DictatedEngine(lambda request, at: ("2", "13")[min(number_of(request), 1)])
    ((_, group),) = held(engine, conversations(spec), task())
    for one in group:
        assert one.end == "failed"
        assert one.failure == (
            "environment 'guessing' failed in turn 2: Server error: the board is gone (code: EXECUTION_ERROR)"
        )
        assert one.reward is None


def test_rewards_of_the_turns_add_up():
    (spec,) = specs([GAME]).values()
    with Hosts(step_seconds=60) as hosts:
        games = [hosts.open(spec) for _ in range(3)]
        openings = [Asked(game, "begin", TASK, 7) for game in games]
        assert len({one.outcome().value for one in openings}) == 1
        for number in range(5):
            outcomes = [Asked(game, "observe", turn("1", number)) for game in games]
            assert [one.outcome().value.done for one in outcomes] == [number == 4] * 3
        assert [ask(game, "close").value for game in games] == [-0.625] * 3


# --- on a server


@pytest.fixture(scope="module")
def url():
    """Address of a server with room for one session, as most have."""
    from tests.support import openenv_games

    server = ServedApplication(openenv_games.guessing)
    yield server.url
    server.close()


def test_an_environment_is_played_at_its_address(url):
    spec = spec_of(f"openenv:{url}")
    assert (spec.name, spec.own_process, spec.has_reward, spec.tools) == ("openenv", True, True, ())
    spec.check()
    game, said = begun(f"openenv:{url}(most=9)", episode_seed=1)
    assert said.endswith(TOLD)
    assert played(game, f"{random.Random(1).randint(1, 9)}") == [("right", 1.0, True, 0)]
    game.close()


def test_a_server_without_a_free_place_says_what_to_do(url):
    first, _ = begun(f"openenv:{url}")
    with pytest.raises(EnvironmentFailure, match="; give it room for all conversations of a step"):
        begun(f"openenv:{url}")
    first.close()


def test_a_server_that_is_gone_fails_the_episode():
    from tests.support import openenv_games

    server = ServedApplication(openenv_games.line)
    session = OpenEnvSession(server.url)
    session.ask("reset")
    server.close()
    with pytest.raises(EnvironmentFailure):
        session.ask("step", {"way": "left"})
    session.close()


@pytest.mark.parametrize(
    ("address", "refusal"),
    [
        ("openenv:no_such_env", "its application no_such_env.server.app:app: the module cannot be imported"),
        ("openenv:tests.support.openenv_games:maze", "there is no 'maze' in tests.support.openenv_games"),
        ("openenv:ftp://127.0.0.1", "must begin with http:// or https://"),
        ("openenv:http://127.0.0.1:9", "the server http://127.0.0.1:9 does not say what an action is"),
    ],
)
def test_what_cannot_be_played_is_refused_before_the_run_begins(address, refusal):
    with pytest.raises(ConfigError) as caught:
        spec_of(address)
    assert str(caught.value).startswith(f"--environment {address}: ")
    assert refusal in str(caught.value)


def test_a_game_that_no_seed_decides_is_refused():
    with pytest.raises(ConfigError, match="it begins differently each time for the same seed"):
        spec_of("openenv:tests.support.openenv_games:forgetful").check()


def test_an_environment_gets_its_seeds():
    assert tasks_of("openenv:http://localhost:8000(most=5)") == "seeds"


# --- what is an action

TEXT = {"type": "string", "description": "what to say"}


@pytest.mark.parametrize(
    ("fields", "required", "told", "said", "action"),
    [
        ({"text": TEXT}, ["text"], "Action: a text, text: what to say", "say hello", {"text": "say hello"}),
        ({"text": TEXT, "loud": {"type": "boolean"}}, ["text"], "Action: a text, text: what", "a", {"text": "a"}),
        ({"x": {"type": "number"}}, [], "Action: a number, x.", "from -1 to 2.5", {"x": 2.5}),
        ({"on": {"type": "boolean"}}, ["on"], "Action: a JSON object with on (boolean).", 'so {"on": 1}', {"on": 1}),
        ({"a": TEXT, "b": TEXT}, ["a", "b"], "Action: a JSON object with a (string: what to say), b (str", "a", None),
        ({"w": {"enum": ["up", "up left"]}}, ["w"], "Actions: up, up left.", "go up left", {"w": "up left"}),
        ({"text": TEXT}, ["text"], "Action: a text", "", None),
        ({"x": {"type": "number"}}, [], "Action: a number, x.", "2 or -1.5e3", {"x": -1500.0}),
        ({"x": {"type": "number"}}, [], "Action: a number, x.", "9" * 400, None),  # no float
        ({"a": TEXT, "b": TEXT}, [], "Action: a JSON object", '{"a": ' * 3000, None),  # deeper than Python reads
    ],
)  # fmt: skip
def test_an_action_is_read_by_its_form(fields, required, told, said, action):
    form = ActionForm({"properties": fields, "required": required})
    assert form.instruction.startswith(told)
    assert form.read(said) == action
