"""Environments of other packages: games played by hand, their seeds, ends and wrong moves, and what is refused."""

import random
from importlib.metadata import PackageNotFoundError

import pytest
import reasoning_gym
import skyrl_gym
from reasoning_gym.factory import DATASETS

from paceline.config.building import build_config, tasks_of
from paceline.data.sources import load_rows
from paceline.environments import AgentTurn
from paceline.environments.adapters import reasoning_gym as gym_tasks
from paceline.environments.adapters.gymnasium import coloured
from paceline.environments.hosting import Hosts
from paceline.environments.resolving import specs
from paceline.errors import ConfigError, DataError, EnvironmentFailure
from tests.unit.environments.test_hosting import Asked, ask, content, turn

pytestmark = pytest.mark.long

TIMES = " \N{MULTIPLICATION SIGN} "
TASK = {"messages": ({"role": "user", "content": "Play."},)}


def spec_of(address):
    (spec,) = specs([address]).values()
    return spec


def played(environment, *texts, counts=True):
    """Text, reward, end and wrong moves of each answer."""
    found = []
    for text in texts:
        said = environment.observe(AgentTurn(number=0, text=text, content=text, finish_reason="stop", is_last=False))
        (message,) = said.messages
        found.append((message["content"], said.reward, said.done, said.failed_calls))
        assert said.calls == int(counts)
    return found


def begun(address, episode_seed=0, **columns):
    environment = spec_of(address).make()
    return environment, environment.begin({**TASK, **columns}, episode_seed)


def entry(name, answer, **metadata):
    return {"question": "?", "answer": answer, "metadata": {"source_dataset": name, **metadata}}


# --- all of them


@pytest.mark.parametrize(
    ("address", "name", "package"),
    [
        ("reasoning_gym:chain_sum(max_terms=3, attempts=2)", "chain_sum", "reasoning-gym"),
        ("gymnasium:tabular/Blackjack-v0", "Blackjack-v0", "gymnasium"),
        ("textarena:TowerOfHanoi-v0", "TowerOfHanoi-v0", "textarena"),
    ],
)
def test_an_environment_has_its_name_its_package_and_a_process(address, name, package):
    spec = spec_of(address)
    assert (spec.name, spec.own_process, spec.has_reward, spec.tools) == (name, True, True, ())
    assert spec.package.split() == [package, spec.package.split()[1]]
    assert spec.settings == {
        spec.settings.copy().popitem()[0]: f"of {spec.package}, in a process for each conversation"
    }


@pytest.mark.parametrize(
    ("address", "refusal"),
    [
        ("gymnasium:FrozenLak-v1", r"FrozenLak-v1: Environment `FrozenLak` doesn't exist. Did you mean: `FrozenLake`"),
        ("gymnasium:FrozenLake-v1(size=4)", "unexpected keyword argument 'size'"),
        ("gymnasium:CartPole-v1", "no rendering as text, and an observation of Box"),
        ("gymnasium:Pendulum-v1", "its actions are of the space Box"),
        ("gymnasium:Blackjack-v1(actions=stay)", "actions must name each of 2 actions by a word of its own, got 1"),
        ("textarena:GuesTheNumber-v0", "there is no game 'GuesTheNumber-v0' among .*; nearest: GuessTheNumber-v0"),
        ("textarena:TicTacToe-v0", r"it cannot begin \(AssertionError: The number of players has to be 2"),
        ("textarena:TwentyQuestions-v0", "asks a model on a server"),
        ("skyrl_gym:lcb", "'lcb' is refused: it runs the model's programs without isolation"),
        ("skyrl_gym:gsm9k", "there is no environment 'gsm9k'; there are aime, gsm8k, gsm8k_multi_turn, and your own"),
        ("reasoning_gym:chain_sm", "there is no task 'chain_sm' among .*; nearest: chain_sum"),
        ("reasoning_gym:chain_sum(digits=2)", "the parameters of 'chain_sum' do not go together"),
        ("reasoning_gym:chain_sum(attempts=0)", r"attempts must be a whole number within \[1, 20\], got 0"),
        ("reasoning_gym:simple_integration", "is refused: its scorer evaluates the answer as Python code"),
    ],
)
def test_what_cannot_be_played_is_refused_before_the_run_begins(address, refusal):
    state = random.getstate()
    with pytest.raises(ConfigError, match=refusal) as caught:
        spec_of(address).check()
    assert str(caught.value).startswith(f"--environment {address}")
    assert random.getstate() == state


def test_an_address_without_a_name_says_what_is_missing():
    with pytest.raises(ConfigError, match="it needs a name: reasoning_gym:NAME; for example reasoning_gym:chain_sum"):
        specs(["reasoning_gym"])


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(
        ConfigError, match=r"gcd needs the package reasoning-gym; `pip install 'reasoning-gym>=0.1.25'`"
    ):
        specs(["reasoning_gym:gcd"])


def test_word_lists_are_looked_for_here_and_never_downloaded(monkeypatch):
    import nltk

    monkeypatch.setattr(nltk.data, "path", [])
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a server was asked"))
    with pytest.raises(ConfigError, match="NLTK's data 'words', which is not on this machine; run: python -m nltk"):
        spec_of("textarena:Hangman-v0").check()


def test_an_environment_that_makes_its_own_tasks_needs_no_dataset():
    given = {"model": "m", "max_steps": 1, "output_dir": "o"}
    assert build_config({**given, "environment": ["gymnasium:FrozenLake-v1"]}).data.dataset == "seeds"
    assert tasks_of("lake=textarena:X-v0(size=3)") == "seeds"
    assert tasks_of("reasoning_gym:chain_sum(attempts=2)") == "reasoning_gym:chain_sum"
    assert tasks_of("guess:5") is tasks_of("gymnasium") is None
    with pytest.raises(ConfigError, match="missing --dataset"):
        build_config({**given, "environment": ["gymnasium:FrozenLake-v1", "guess"]})


def test_seeds_of_the_two_splits_have_none_in_common():
    train, test = (load_rows("seeds", split=split, size=3) for split in ("train", "test"))
    assert [row.columns["seed"] for row in train] == [0, 1, 2]
    assert [row.columns["seed"] for row in test] == [1_000_000_000, 1_000_000_001, 1_000_000_002]
    with pytest.raises(DataError, match="splits 'train' and 'test', got 'dev'"):
        load_rows("seeds", split="dev", size=1)


# --- reasoning-gym


def test_a_wrong_answer_gets_another_attempt():
    game, said = begun("reasoning_gym:chain_sum", reasoning_gym=entry("chain_sum", "42"))
    assert said == "\nAnswer as <answer>...</answer>. You have 3 attempts."
    assert played(game, "<answer>41</answer>", "<think>42</think>", "6 * 7 = <answer>42</answer>") == [
        ("Wrong. 2 more attempts.", 0.0, False, 0),
        ("Not an answer. 1 more attempt.", 0.0, False, 1),
        ("Right.", 1.0, True, 0),
    ]
    assert game.close() == 1.0


def test_rewards_of_attempts_add_up_to_the_score_of_the_last():
    # the package gives half for factors with the right product, and a hundredth for others
    game, _ = begun("reasoning_gym:prime_factorization", reasoning_gym=entry("prime_factorization", TIMES.join("223")))
    answers = played(game, TIMES.join("43"), "7", "ab")
    assert [reward for _, reward, _, _ in answers] == pytest.approx([0.5, -0.49, -0.01])
    assert answers[-1] == ("Not an answer.", answers[-1][1], True, 1)
    assert game.close() == 0.0


def test_without_a_row_of_the_package_the_seed_draws_the_question():
    address = "reasoning_gym:chain_sum(min_terms=2, max_terms=2, attempts=1)"
    (game, said), (_, again), (_, other) = (begun(address, seed) for seed in (7, 7, 8))
    drawn = reasoning_gym.create_dataset("chain_sum", seed=7, size=1, min_terms=2, max_terms=2)[0]
    assert said == again != other
    assert said == f"\n{drawn['question']}\nAnswer as <answer>...</answer>. You have 1 attempt."
    assert played(game, drawn["answer"]) == [("Right.", 1.0, True, 0)]


def test_an_entry_of_another_task_or_with_a_wrong_answer_is_no_question():
    with pytest.raises(EnvironmentFailure, match="of the task 'gcd', but the environment is 'chain_sum'"):
        begun("reasoning_gym:chain_sum", reasoning_gym=entry("gcd", "3"))
    with pytest.raises(EnvironmentFailure, match=r"own answer '3 \* 4' does not score 1; remove the row"):
        begun("reasoning_gym:countdown", reasoning_gym=entry("countdown", "3 * 4", numbers=[3, 4, 5], target=17))


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("3 * 4 + 5", 1.0),
        ("(3+4)*5", 0.05),
        ("9**9**9**9", None),
        ("9* *9", None),
        ("print(5)", None),
        ("__import__('os').system('touch evaluated')", None),
        ("1+" * 400 + "1", None),
    ],
)
def test_an_answer_reaches_a_scorer_that_evaluates_only_as_plain_arithmetic(answer, score, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = entry("countdown", "3 * 4 + 5", numbers=[3, 4, 5], target=17)
    game, _ = begun("reasoning_gym:countdown", reasoning_gym=row)
    ((_, reward, _, wrong),) = played(game, f"<answer>{answer}</answer>")
    assert (reward, wrong) == (score or 0.0, int(score is None))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(gym_tasks.ONLY))
def test_right_answers_hold_nothing_but_what_a_scorer_that_evaluates_is_shown(name):
    tasks = reasoning_gym.create_dataset(name, seed=1, size=3)
    for task in map(tasks.__getitem__, range(3)):
        game, _ = begun(f"reasoning_gym:{name}", reasoning_gym=task)
        assert played(game, f"<answer>{task['answer']}</answer>") == [("Right.", 1.0, True, 0)]


def test_every_task_whose_file_evaluates_text_has_been_read():
    evaluating = {*gym_tasks.ONLY, *gym_tasks.OWN_TEXT, *gym_tasks.REFUSED} - {"game_of_life_halting", "composite"}
    found = {name for name in DATASETS if name != "composite" and gym_tasks.evaluates(name)}
    assert found == evaluating


def test_a_new_task_that_evaluates_text_is_refused(monkeypatch):
    monkeypatch.setattr(gym_tasks, "OWN_TEXT", ())
    with pytest.raises(ConfigError, match="nobody has read yet whether answers are among it"):
        spec_of("reasoning_gym:basic_arithmetic").check()


# --- Gymnasium

LAKE = "gymnasium:FrozenLake-v1(is_slippery=false)"


def test_a_frozen_lake_is_crossed_in_words():
    game, said = begun(LAKE)
    assert said.startswith("\nFrozen lake involves crossing a frozen lake from start to goal")
    assert said.endswith("<red>S</red>FFF\nFHFH\nFFFH\nHFFG\nActions: left, down, right, up.")
    answers = played(game, "right", "I go <think>up</think> Right!", "jump", "down", "down", "down", "right")
    assert answers[0] == ("  (Right)\nS<red>F</red>FF\nFHFH\nFFFH\nHFFG", 0.0, False, 0)
    assert answers[2] == ("That is no action. Actions: left, down, right, up.", 0.0, False, 1)
    assert answers[-1] == ("  (Right)\nSFFF\nFHFH\nFFFH\nHFF<red>G</red>\nTerminated.", 1.0, True, 0)
    assert game.close() == 1.0


def test_a_limit_of_steps_truncates_and_keeps_the_rewards():
    game, _ = begun("gymnasium:CliffWalking-v1(max_episode_steps=2)")
    first, second = played(game, "up", "up")
    assert first[1:] == (-1.0, False, 0)
    assert second[0].endswith("\nTruncated: the limit of steps is reached.")
    assert second[1:] == (-1.0, True, 0)
    assert game.close() == -2.0


def test_actions_that_are_possible_now_are_told():
    # seed 5: the taxi stands at Y, with a wall to its right
    game, said = begun("gymnasium:Taxi-v4", seed=5)
    assert said.endswith("Actions: south, north, east, west, pickup, dropoff. Possible now: north.")
    assert played(game, "pickup")[0][1:] == (-10.0, False, 0)


def test_an_observation_without_a_picture_is_told_in_numbers():
    game, said = begun("gymnasium:Blackjack-v1(actions=stay/take)", seed=5)
    assert said.endswith("(21, 9, 1)\nActions: stay, take.")
    assert played(game, "take") == [("(18, 9, 0)", 0.0, False, 0)]


def test_the_row_decides_the_game_where_it_has_a_seed():
    cards = [begun("gymnasium:Blackjack-v1", seed, **columns)[1] for seed, columns in [(5, {}), (6, {"seed": 5})]]
    assert cards[0] == cards[1]


def test_colours_in_colours_become_tags():
    assert coloured("\x1b[35m\x1b[43mY\x1b[0m\x1b[0m|\x1b[34;1mR\x1b[0m") == (
        "<magenta><yellow>Y</yellow></magenta>|<blue>R</blue>"
    )


# --- TextArena


def test_a_tower_is_moved_to_the_end():
    game, said = begun("textarena:TowerOfHanoi-v0(num_disks=2)")
    assert said.startswith("\nYou are playing Tower of Hanoi with 2 disks.")
    answers = played(game, "[A B]", "A C", "<think>[A B]</think>[B C]")
    assert answers[0] == ("You moved disk 1 from A to B.\nCurrent Board: \nA: [2]\nB: [1]\nC: []\n.", 0.0, False, 0)
    assert answers[-1][0].endswith("Congratulations! You solved the Tower of Hanoi puzzle.")
    assert answers[-1][1:] == (1.0, True, 0)
    assert game.close() == 1.0


def test_one_invalid_move_is_forgiven_and_the_second_ends_the_game():
    game, _ = begun("textarena:TowerOfHanoi-v0")
    answers = played(game, "[B C]", "[A C]", "[A C]", "hm")
    assert [answer[1:] for answer in answers] == [(0.0, False, 1), (0.0, False, 0), (0.0, False, 1), (0.0, True, 1)]
    assert answers[0][0].startswith(
        "You attempted an invalid move. Reason: You tried to move a disk from an empty tower."
    )
    assert answers[-1][0] == "Invalid Move: You did not respond with valid '[source] [target]'."


def test_a_game_that_swaps_reason_and_reward_of_a_wrong_move_tells_and_counts_both():
    # of the three cups one has the ball, so nothing is gained by then
    game, _ = begun("textarena:ThreeCardMonte-v0")
    (first, second) = played(game, "left", "left")
    assert first[0].startswith("You attempted an invalid move. Reason: Bad action. Use `[k]`. Please resubmit")
    assert (first[1:], second[1:]) == ((0.0, False, 1), (0.0, True, 1))
    assert second[0] == "Invalid Move: Bad action. Use `[k]`."


def test_a_game_that_is_not_over_is_worth_nothing():
    game, _ = begun("textarena:GuessTheNumber-v0(max_number=5)", seed=1)
    assert game.close() == 0.0


def test_games_are_the_same_alone_and_beside_others():
    # TextArena draws from Python's global generator, at the start and during a game
    spec = spec_of("textarena:2048-v0")
    moves = ("[up]", "[left]", "[down]", "[right]", "[up]", "[left]")
    with Hosts(step_seconds=600) as hosts:

        def together(*seeds):
            games = [hosts.open(spec) for _ in seeds]
            begun = [Asked(game, "begin", TASK, seed) for game, seed in zip(games, seeds, strict=True)]
            said = [[one.outcomes.get(timeout=600).value] for one in begun]
            for move in moves:
                for game, heard in zip(games, said, strict=True):
                    heard.append(content(ask(game, "observe", turn(move))))
            return said

        (alone,) = together(3)
        assert together(3, 4, 3) == [alone, said_of_another := together(4)[0], alone]
    assert alone != said_of_another


# --- SkyRL-Gym

ECHO = """
import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv

class Echo(BaseTextEnv):
    def __init__(self, env_config, extras):
        super().__init__()
        self.word = env_config["word"] * extras["times"]

    def init(self, prompt):
        return [*prompt, {"role": "user", "content": self.word}], {}

    def step(self, action):
        return {"observations": [{"role": "user", "content": action}], "reward": 0.5, "done": False, "metadata": {},
                "postprocessed_action": action[:3]}

skyrl_gym.register(id="Echo", entry_point="echoing:Echo")
"""


def test_a_problem_is_answered_over_several_turns():
    # the package gives 0.2, shared by the turns, for a wrong answer of the right form
    game, said = begun("skyrl_gym:gsm8k_multi_turn(max_turns=2)", answer="72")
    assert said is None
    ((text, *first),) = played(game, "48 + 24 #### 71", counts=False)
    assert (text, first) == (
        "Now provide only the final numeric answer in the exact format: '#### ANSWER'.", [0.1, False, 0],
    )  # fmt: skip
    last = game.observe(AgentTurn(number=1, text="#### 72", content="#### 72", finish_reason="stop", is_last=False))
    assert (last.messages, last.reward, last.done) == ((), 1.0, True)
    assert game.close() == pytest.approx(1.1)


def test_an_environment_that_replaces_the_models_words_fails(tmp_path, monkeypatch):
    (tmp_path / "echoing.py").write_text(ECHO)
    monkeypatch.syspath_prepend(tmp_path)
    spec_of("skyrl_gym:echoing:Echo(word=tea)").check()
    game, said = begun("skyrl_gym:echoing:Echo(word=tea)", answer=None, times=2)
    assert said == [{"role": "user", "content": "teatea"}]
    assert played(game, "abc", counts=False) == [("abc", 0.5, False, 0)]
    with pytest.raises(EnvironmentFailure, match="puts other words in the place of the model's"):
        played(game, "abcd")
    skyrl_gym.envs.deregister("Echo")
