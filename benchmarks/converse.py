"""Contenders of bench_conversations.py, each in a process of its own.

python benchmarks/converse.py train KIND DIRECTORY STEPS        steps of the embedded model's own recipe
python benchmarks/converse.py latencies NAME DIRECTORY          episodes whose environments take their time
python benchmarks/converse.py crowd COUNT                       many episodes at once
"""

import paceline  # noqa: I001 - before torch, as the command does: threads that wait are to sleep

import asyncio
import hashlib
import io
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from conversation_work import MOST_TURNS, SETTINGS, drawn_latencies
from materials import SHAPES, write_model
from measuring import Channel
from rich.console import Console

from paceline.config.sampling import EngineConfig
from paceline.config.sections import DataConfig, ModelConfig
from paceline.data.sources import load_rows
from paceline.data.tasks import build_tasks
from paceline.engines import Sampling
from paceline.engines.local import engine as local_engine
from paceline.engines.local.engine import LocalEngine
from paceline.engines.local.scheduling import Scheduler
from paceline.environments import AgentTurn, EnvironmentSpec, Observation, parts
from paceline.environments.hosting import Hosts
from paceline.chat.turns import TurnTokens
from paceline.models.loading import load_model
from paceline.models.pretrained import end_token_ids, load_tokenizer, model_directory
from paceline.episodes.driver import complete
from paceline.episodes.conversations import Conversations, Draws, EpisodeLimits
from paceline.types import Trajectory

SAID = ({"role": "user", "content": "And 2 + 3?"},)
"""What every environment with a latency says."""
SMALLER = {"num_hidden_layers": 2, "max_position_embeddings": 1024}
"""What the setting's model has unlike the shape `30m`: rounds of a tenth of a second would take minutes in all."""
NUM_GENERATIONS = 8
MOST_PROMPT = 64
CROWD_TURNS = 4


# --- the cost of an environment of one turn


class Once:
    """An environment that is done with the first turn; the run's reward function grades it."""

    has_reward = False

    def begin(self, task: Mapping[str, Any], seed: int) -> None:
        """Add nothing to the prompt."""

    def observe(self, turn: AgentTurn) -> Observation:
        """Be done."""
        return Observation(done=True)

    def close(self) -> None:
        """Give no reward."""


def part(address: str, argument: str | None, sandbox: str, *, is_instant: bool) -> parts.AddressPart:
    """Return the environment as one that is built in."""
    return parts.AddressPart(address=address, name=address, environment=Once, is_instant=is_instant)


def model_of(name: str, directory: str) -> str:
    """Return the address of the embedded model, or write one of the same tokenizer that is larger."""
    if name == "embedded":
        return name
    place = Path(directory) / f"model-{name}"
    write_model(SHAPES["30m"] | SMALLER, place)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(Path(model_directory("embedded")) / file, place)
    return str(place)


def train(kind: str, name: str, directory: str, steps: str) -> None:
    """One step of a run for each request; at last the hash of its weights."""
    channel, model = Channel.open(), model_of(name, f"{directory}-model")
    parts.BUILT_IN |= {name: partial(part, is_instant=name == "instant") for name in ("instant", "thread")}  # type: ignore[operator]
    address = f"{Path(__file__)}:Once" if kind == "process" else kind
    environment = {} if kind == "plain" else {"environment": [address], "max_turns": 1}
    with paceline.Session(
        config=Path(model_directory("embedded")) / "recipe.yaml",
        model=model,
        max_prompt_length=192,  # transformers gives the larger model's architecture a tokenizer class of its own
        output_dir=directory,
        max_steps=int(steps),
        save_steps=0,
        eval_steps=0,
        eval_size=1,
        console=Console(file=io.StringIO()),
        **environment,
    ) as session:
        started = None
        for _ in session:
            # the step before is over once it is written down, which comes before the next begins
            channel.reply({} if started is None else {"seconds": time.perf_counter() - started})
            channel.request()
            started = time.perf_counter()
            session.update(session.sample())
        assert started is not None
        channel.reply({"seconds": time.perf_counter() - started})
    weights = (Path(directory) / "final" / "model.safetensors").read_bytes()
    channel.reply({"weights": hashlib.sha256(weights).hexdigest()})


# --- environments that take their time


class Late:
    """An environment that responds when its time has come, and tells when it was asked and when it responded."""

    def __init__(self, number: int, latencies: Sequence[float], moments: list[tuple[int, float, float]]) -> None:
        self._number, self._left, self._moments = number, list(latencies), moments

    async def _wait(self) -> None:
        asked = time.perf_counter()
        await asyncio.sleep(self._left.pop(0))
        self._moments.append((self._number, asked, time.perf_counter()))

    async def begin(self, task: Mapping[str, Any], seed: int) -> None:
        """Begin late."""
        await self._wait()

    async def observe(self, turn: AgentTurn) -> Observation:
        """Observe late; be done with the last latency."""
        await self._wait()
        return Observation(messages=SAID, done=not self._left)

    async def close(self) -> None:
        """Give no reward."""


class WatchedScheduler(Scheduler):
    """A scheduler that says who holds its rows."""

    last: "WatchedScheduler"

    def __post_init__(self) -> None:
        WatchedScheduler.last, self.over = self, set[int]()
        tell = self.on_ended
        assert tell is not None

        def noted(ended: list[tuple[int, list[int]]]) -> list[bool]:
            self.over |= {number for number, _ in ended}
            return tell(ended)

        self.on_ended = noted
        super().__post_init__()

    def seen(self) -> dict[str, int]:
        """Rows at work, rows of conversations that wait for an answer, and ready ones that might have a row."""
        held = [number for number in self._rows.sequence.tolist() if number >= 0]
        ready = sum(len(job.sequences) for job in self._waiting)
        sleeping = sum(number in self.over for number in held)
        return {
            "rows": self._rows.alive,
            "sleeping": sleeping,
            "kept_out": min(ready, self.concurrent_sequences - self._rows.alive),
        }


class Scene:
    """A model with its engine, and episodes whose environments take their time."""

    def __init__(self, model: str, *, rows: int, turn_tokens: int, most_turns: int) -> None:
        policy, tokenizer = load_model(ModelConfig(model=model)), load_tokenizer(ModelConfig(model="embedded"))
        ends = end_token_ids(tokenizer, policy.model.generation_config, policy.model.config)
        self.engine = LocalEngine(
            policy.model,
            tokenizer,
            concurrent_sequences=rows,
            compute_dtype=policy.compute_dtype,
            eos_token_ids=ends,
        )
        self.moments = list[tuple[int, float, float]]()
        """Episode, when its environment was asked, when it responded."""
        self._tokenizer, self._turn_tokens, self._most_turns = tokenizer, turn_tokens, most_turns
        self._tokens = TurnTokens(tokenizer, stop_ids=ends, history="append")
        self._glue = len(self._tokens.observed([], SAID, message=SAID[0], earlier=SAID, most=None).ids)

    def hold(self, episodes: int, latencies: Callable[[int], Sequence[float]]) -> list[Trajectory]:
        """Hold so many episodes, eight of each prompt, with these latencies by the number of the episode."""
        numbers = count()

        def reserve() -> Callable[[], Late]:
            number = next(numbers)
            return lambda: Late(number, latencies(number), self.moments)

        conversations = Conversations(
            specs={"late": EnvironmentSpec(name="late", make=_never, reserve=reserve)},
            tokens={"late": self._tokens},
            hosts=Hosts(step_seconds=60.0),
            limits=EpisodeLimits(
                turns=None,
                turn_tokens=self._turn_tokens,
                message_tokens=None,
                prompt_tokens=MOST_PROMPT,
                episode_seconds=600.0,
            ),
        )
        rows = load_rows("arithmetic", split="train", size=episodes // NUM_GENERATIONS)
        tasks = build_tasks(rows, self._tokenizer, DataConfig(dataset="arithmetic"), system=None).tasks
        sampling = Sampling(max_completion_length=self._most_turns * (self._turn_tokens + self._glue))
        draws = Draws(seed=0, purpose="train", num_generations=NUM_GENERATIONS)
        with conversations.hosts:
            completed = complete(self.engine, [(task, 0) for task in tasks], sampling, draws, conversations)
        return [one for group in completed for one in group.trajectories]


def _turn_lengths(trajectory: Trajectory) -> list[tuple[int, int]]:
    """Sampled tokens of each turn, and those that the model read behind it."""
    lengths = list[tuple[int, int]]()
    for span in trajectory.spans:
        if span.by == "policy":
            lengths.append((len(span.tokens), 0))
        elif span.by == "environment":
            lengths[-1] = (lengths[-1][0], len(span.tokens))
    return lengths


def _never() -> Late:
    raise AssertionError("environments are made by what is reserved")


def latencies(name: str, directory: str) -> None:
    """Episodes of a setting, once: what they did and when, and who held the engine's rows."""
    channel, setting = Channel.open(), SETTINGS[name]
    model = model_of(setting.model, directory)
    scene = Scene(model, rows=setting.rows, turn_tokens=setting.turn_tokens, most_turns=MOST_TURNS)
    local_engine.Scheduler = WatchedScheduler  # type: ignore[misc]
    decoder, rounds, prompts = scene.engine._decoder, list[dict[str, float]](), list[tuple[int, float]]()
    draw_next, admit = decoder.draw_next, decoder.admit

    def timed_draw(*given: Any) -> Any:
        seen = WatchedScheduler.last.seen()
        started = time.perf_counter()
        drawn = draw_next(*given)
        rounds.append({**seen, "seconds": time.perf_counter() - started})
        return drawn

    def timed_admit(of_prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Any:
        started = time.perf_counter()
        logits = admit(of_prompts, rows)
        prompts.append((len(of_prompts), time.perf_counter() - started))
        return logits

    decoder.draw_next, decoder.admit = timed_draw, timed_admit  # type: ignore[method-assign]
    channel.reply({"threads": torch.get_num_threads(), "path": scene.engine.path})
    for request in channel.requests():
        for taken in (scene.moments, rounds, prompts):
            taken.clear()
        started = time.perf_counter()
        completions = scene.hold(request["episodes"], drawn_latencies)
        seconds = time.perf_counter() - started
        turns = [_turn_lengths(one) for one in completions if one.environment is not None]
        moments = [(number, asked - started, answered - started) for number, asked, answered in scene.moments]
        channel.reply(
            {
                "seconds": seconds,
                "turns": turns,
                "moments": moments,
                "rounds": rounds,
                "prompts": prompts,
                "ends": sorted({one.end for one in completions if one.environment is not None}),
                "tokens": hashlib.sha256(repr([one.completion_ids for one in completions]).encode()).hexdigest(),
            }
        )


# --- many episodes at once


class Weighed:
    """The most bytes of an engine's cache: storage of the rows at work, and contexts of conversations that wait."""

    def __init__(self, scene: Scene) -> None:
        self.rows, self.parked = 0, 0
        local_engine.Scheduler = WatchedScheduler  # type: ignore[misc]
        decoder = scene.engine._decoder
        draw_next = decoder.draw_next

        def weighed(*given: Any) -> Any:
            layers = decoder._attention._layers  # type: ignore[attr-defined]
            self.rows = max(self.rows, sum(stored.nbytes for layer in layers for stored in layer))
            self.parked = max(self.parked, WatchedScheduler.last.parked._bytes)
            return draw_next(*given)

        decoder.draw_next = weighed  # type: ignore[method-assign]


def crowd(number: str) -> None:
    """Hold that many episodes at once: memory before and after, and the cache's part of it."""
    channel, episodes = Channel.open(), int(number)
    scene = Scene("embedded", rows=EngineConfig().concurrent_sequences, turn_tokens=24, most_turns=CROWD_TURNS)
    weighed = Weighed(scene)
    scene.hold(NUM_GENERATIONS, lambda number: (0.0,) * (CROWD_TURNS + 1))  # libraries that are first needed now
    channel.reply({"weights_mib": sum(one.nbytes for one in scene.engine._model.parameters()) / 2**20})
    for _ in channel.requests():
        started = time.perf_counter()
        completions = scene.hold(episodes, lambda number: drawn_latencies(number)[:1] * (CROWD_TURNS + 1))
        channel.reply(
            {
                "seconds": time.perf_counter() - started,
                "episodes": len(completions),
                "turns": sum(len(one.turns) for one in completions if one.environment is not None),
                "tokens": sum(len(one.completion_ids) for one in completions),
                "rows_mib": weighed.rows / 2**20,
                "parked_mib": weighed.parked / 2**20,
                "failed": sum(one.failure is not None for one in completions),
            }
        )


if __name__ == "__main__":
    {"train": train, "latencies": latencies, "crowd": crowd}[sys.argv[1]](*sys.argv[2:])
