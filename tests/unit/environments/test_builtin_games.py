"""The games: rules, rewards and refusals by hand, and the same game for the same seed."""

from collections.abc import Sequence

import pytest

from paceline.environments import AgentTurn, Environment, Observation
from paceline.environments.builtin.games import Guess, Nim, last_number

TASK = {"messages": ({"role": "user", "content": "Play."},)}


def said(text: str, *, is_last: bool = False) -> AgentTurn:
    return AgentTurn(number=0, text=text, content=text, finish_reason="stop", is_last=is_last)


def played(environment: Environment, seed: int, texts: Sequence[str]) -> list[tuple[object, float | None, bool]]:
    """The answers to these turns, with rewards and ends, up to the end of the game."""
    environment.begin(TASK, seed)
    found = list[tuple[object, float | None, bool]]()
    for text in texts:
        observation = environment.observe(said(text))
        assert isinstance(observation, Observation)
        (message,) = observation.messages
        assert message["role"] == "user"
        found.append((message["content"], observation.reward, observation.done))
        if observation.done:
            break
    return found


def seed_of(secret: int, most: int = 20) -> int:
    """A seed whose game has this number."""
    return next(seed for seed in range(10_000) if played(Guess(most), seed, [str(secret)])[0][2])


def test_a_number_is_found_by_higher_and_lower():
    game = Guess()
    answers = played(game, seed_of(13), ["10", "I say 15!", "<think>12? 14?</think>13", "1"])
    assert answers == [("higher", 0.0, False), ("lower", 0.0, False), ("right", 1.0, True)]
    assert game.close() == 1.0


def test_a_number_that_is_not_found_earns_nothing():
    game = Guess(5)
    assert played(game, seed_of(2, 5), ["five", "-7", "9" * 5000, "3"]) == [
        ("Say a number from 1 to 5.", 0.0, False),
        ("higher", 0.0, False),
        ("Say a number from 1 to 5.", 0.0, False),
        ("lower", 0.0, False),
    ]
    assert game.close() == 0.0


def test_a_row_with_a_range_has_the_secret_and_the_rules():
    game = Guess()
    assert game.begin({**TASK, "low": 12, "high": 37, "answer": "30"}, seed=0) is None
    said_to = [game.observe(said(text)).messages[0]["content"] for text in ("24", "31", "None", "30")]
    assert said_to == ["higher", "lower", "Say a number from 12 to 37.", "right"]
    assert game.close() == 1.0


def test_of_several_numbers_the_last_one_counts():
    assert last_number("1 2 3 4 5") == 5
    assert played(Guess(5), seed_of(2, 5), ["1 2 3 4 5"])[0][0] == "lower"


def test_a_last_turn_is_graded():
    game = Guess()
    game.begin(TASK, seed_of(13))
    assert game.observe(said("13", is_last=True)).done
    assert game.close() == 1.0


def test_every_number_is_a_secret_of_some_seed():
    assert {seed_of(secret, 4) >= 0 for secret in (1, 2, 3, 4)} == {True}


@pytest.mark.parametrize(
    ("content", "begun"),
    [
        ("Play.", "\nGuess a number from 1 to 20."),
        ("", "Guess a number from 1 to 20."),
    ],
)
def test_the_rules_stand_on_a_line_of_their_own_behind_a_prompt(content, begun):
    assert Guess().begin({"messages": ({"role": "user", "content": content},)}, 1) == begun


def heap_of(opening: object) -> int:
    return int(str(opening).split()[0])


@pytest.mark.parametrize("seed", range(40))
def test_leaving_a_multiple_of_four_always_wins(seed):
    game = Nim()
    left = heap_of(game.begin(TASK, seed))
    assert 5 <= left <= 15
    assert left % 4
    for _ in range(4):
        observation = game.observe(said(str(left % 4)))
        words = str(observation.messages[0]["content"]).split()
        if observation.done:
            break
        left = int(words[3])
        assert observation.reward == 0.0
    assert observation == Observation(messages=({"role": "user", "content": "You win."},), reward=1.0, done=True)
    assert game.close() == 1.0


def nim_seed(heap: int) -> int:
    return next(seed for seed in range(10_000) if heap_of(Nim().begin(TASK, seed)) == heap)


def test_an_opponent_who_can_take_the_rest_does():
    game = Nim()
    assert played(game, nim_seed(5), ["2"]) == [("I take 3 and win.", 0.0, True)]
    assert game.close() == 0.0


def test_one_turn_without_a_move_is_forgiven_and_the_second_loses():
    game = Nim()
    assert played(game, nim_seed(5), ["4", "none"]) == [
        ("Take 1 to 3 of 5 stones.", 0.0, False),
        ("No move: I win.", 0.0, True),
    ]
    assert game.close() == 0.0
    assert played(Nim(), nim_seed(5), ["0", "2"])[-1] == ("I take 3 and win.", 0.0, True)


@pytest.mark.parametrize("game", [Guess, Nim])
def test_a_seed_gives_the_same_game_alone_and_beside_another(game):
    moves = ["1", "2", "1", "3", "1"]
    alone = [played(game(), seed, moves) for seed in (3, 4)]
    first, second = game(), game()
    openings = [first.begin(TASK, 3), second.begin(TASK, 4)]
    beside = list[list[tuple[object, float | None, bool]]]([[], []])
    for move in moves:
        for index, one in enumerate((first, second)):
            if not (beside[index] and beside[index][-1][2]):
                observation = one.observe(said(move))
                beside[index].append((observation.messages[0]["content"], observation.reward, observation.done))
    assert beside == alone
    assert openings == [game().begin(TASK, 3), game().begin(TASK, 4)]
