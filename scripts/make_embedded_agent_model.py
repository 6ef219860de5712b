"""Make the third model that ships with the package, which plays a game over several turns, the same each time.

    python scripts/make_embedded_agent_model.py [DIRECTORY]

The result is a base model for reinforcement learning on the dataset `guess` with the environment of that name: it
knows how to halve what is left of a range, and rarely does. Three parts:

1. a byte-level tokenizer with one token per number and per word of the game;
2. stage 1, supervised: in any position of a game, the range that is left and its middle, until both are right;
3. stage 2, supervised: games of a player who mostly counts or guesses at random, without a word about the range.

About four minutes of one core. Prints what the player achieves after each stage and the digest of the weights.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

import torch
from small_models import (
    END,
    Lesson,
    Stage,
    batches,
    knowledge,
    make_model,
    make_tokenizer,
    prompt_of,
    save,
    solve,
    supervise,
)
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from paceline.data.generated import LARGEST_NUMBER, GuessingGame, games
from paceline.environments import AgentTurn, Observation
from paceline.environments.builtin.games import Guess

DIRECTORY = Path(__file__).parents[1] / "src" / "paceline" / "models" / "embedded" / "agent"

# A word takes the space before it, and the one after it when a number follows; so does a sign with the one after it.
PRE_TOKEN = r" ?[A-Za-z]+(?: (?=\d))?|\d{1,2}|\s+| ?[^\sA-Za-z\d]+(?: (?=\d))?"

STAGE_1 = Stage(steps=1200, learning_rate=4e-3, seed=1)
STAGE_2 = Stage(steps=300, learning_rate=1e-3, seed=2)
# How often a turn of stage 1 is one to learn. The others are there to lead into positions of every kind.
LEARNT = 0.5
# How often a turn of stage 2 says what is left, and how often it then takes the middle of that.
THOROUGH, HALVES = 0.15, 0.6
# Else: how often it counts on from the last number, up or down as it was told. It forgets what it was told in the rest.
COUNTS = 0.85
CHAT_TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{% set function = tool['function'] %}"
    "{{ function['name'] }}({{ ((function['parameters'] or {})['properties'] or {}) | join(', ') }}): "
    "{{ function['description'] or '' }}\n{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ 'user' if message['role'] == 'tool' else message['role'] }}|>"
    "{{ message['content'] }}{% for call in message['tool_calls'] or [] %}<tool_call>"
    """{"name": "{{ call['function']['name'] }}", "arguments": {{ call['function']['arguments'] | tojson }}}"""
    "</tool_call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""A tool takes a line with its name, its arguments and what it does: its JSON schema would leave no room to talk."""
TURNS = 5
MAX_TURN_LENGTH = 8
EVAL_SIZE = 600

Play = Callable[["Position", Random], tuple[str, bool]]
"""What is written in a turn, and True if it is to be learnt."""


class Position:
    """Where a game stands: the numbers that are left."""

    def __init__(self, game: GuessingGame) -> None:
        self.game, self.low, self.high = game, game.low, game.high
        self.told = ""
        """The last answer."""

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    def play(self, written: str) -> bool:
        """Take a turn; returns True if it has found the number."""
        guess, number = int(written.split()[-1]), int(self.game.answer)
        if guess < number:
            self.low, self.told = max(self.low, guess + 1), "higher"
        elif guess > number:
            self.high, self.told = min(self.high, guess - 1), "lower"
        return guess == number


def thorough_turn(position: Position, guess: int) -> str:
    return f"From {position.low} to {position.high}: {guess}"


def counted(position: Position) -> str:
    return str(position.high if position.told == "lower" else position.low)


def taught(position: Position, rng: Random) -> tuple[str, bool]:
    """The middle of what is left; between such turns others of all kinds, which are not learnt."""
    if rng.random() < LEARNT:
        return thorough_turn(position, position.middle), True
    guess = rng.randint(position.low, position.high)
    return rng.choice([thorough_turn(position, guess), str(guess), counted(position)]), False


def hasty(position: Position, rng: Random) -> tuple[str, bool]:
    """Mostly a bare number: the next one, or any of the range that the game began with."""
    if rng.random() < THOROUGH:
        guess = position.middle if rng.random() < HALVES else rng.randint(position.low, position.high)
        return thorough_turn(position, guess), True
    if rng.random() < COUNTS:
        return counted(position), True
    return str(rng.randint(position.game.low, position.game.high)), True


def lessons(stage: Stage, play: Play) -> Iterator[Lesson]:
    rng, train = Random(stage.seed), games("train")
    while True:
        yield transcript(rng.choice(train), play, rng)


def transcript(game: GuessingGame, play: Play, rng: Random) -> Lesson:
    """A game of five turns at most, as the chat template writes it."""
    position, texts = Position(game), [(prompt_of(game.question), False)]
    for _ in range(TURNS):
        written, is_learnt = play(position, rng)
        texts.append((written + END, is_learnt))
        if position.play(written):
            break
        texts.append((prompt_of(position.told), False))
    return texts


@torch.no_grad()
def achieved(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, temperature: float) -> str:
    """Share of held-out games that are won, and their mean number of turns."""
    chosen = games("test")[:EVAL_SIZE]
    environments = [Guess() for _ in chosen]
    for environment, game in zip(environments, chosen, strict=True):
        environment.begin({"low": game.low, "high": game.high, "answer": game.answer}, seed=0)
    texts = {index: prompt_of(game.question) for index, game in enumerate(chosen)}
    turns = 0
    for number in range(TURNS):
        turns += len(texts)
        written = solve(model, tokenizer, list(texts.values()), temperature=temperature, max_length=MAX_TURN_LENGTH)
        for index, text in zip(list(texts), written, strict=True):
            turn = AgentTurn(number=number, text=text, content=text, finish_reason="stop", is_last=False)
            observation = environments[index].observe(turn)
            texts[index] += text + END + prompt_of(said(observation))
            if observation.done:
                del texts[index]
    won = sum(environment.close() for environment in environments)
    return f"{100 * won / len(chosen):.1f} % won, {turns / len(chosen):.2f} turns"


def said(observation: Observation) -> str:
    return str(observation.messages[0]["content"])


def positions(count: int) -> Sequence[Lesson]:
    """Held-out games in which only the last turn is asked for, in positions of every kind."""
    rng, found = Random(0), []
    for game in games("test"):
        texts = transcript(game, taught, rng)
        last = max((place for place, (_, is_learnt) in enumerate(texts) if is_learnt), default=None)
        if last is not None:
            found.append([*((text, False) for text, _ in texts[:last]), texts[last]])
    return found[:count]


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    corpus = ["".join(text for text, _ in lesson) for lesson in islice(lessons(STAGE_2, hasty), 10_000)]
    numbers = [str(number) for number in range(LARGEST_NUMBER + 1)]
    tokenizer = make_tokenizer(corpus, pre_token=PRE_TOKEN, tags=(), pieces=numbers)
    model = make_model(tokenizer, num_layers=2)
    print(f"{len(tokenizer)} tokens, {model.num_parameters():,} parameters")
    supervise(model, batches(tokenizer, lessons(STAGE_1, taught)), STAGE_1)
    print(f"stage 1: greedy {achieved(model, tokenizer, temperature=0.0)}")
    led = knowledge(model, tokenizer, positions(EVAL_SIZE), left_out=())
    print(f"stage 1: {100 * led:.1f} % of turns right in positions of every kind")
    supervise(model, batches(tokenizer, lessons(STAGE_2, hasty)), STAGE_2)
    print(f"stage 2: greedy {achieved(model, tokenizer, temperature=0.0)}")
    print(f"stage 2: sampled {achieved(model, tokenizer, temperature=1.0)}")
    tokenizer.chat_template = CHAT_TEMPLATE
    save(model, tokenizer, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
