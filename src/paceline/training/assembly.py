"""The engine around a policy's weights, and how long its sequences can be."""

import torch
from transformers import PreTrainedTokenizerBase

from paceline.config.sections import Config
from paceline.engines import TakeNewer, TrainedEngine
from paceline.engines.local.engine import LocalEngine
from paceline.engines.vllm.starting import Room
from paceline.models.loaded import Loaded
from paceline.models.pretrained import end_token_ids, positions_in
from paceline.models.rope import fix_rope


def make_engine(
    config: Config,
    policy: Loaded,
    tokenizer: PreTrainedTokenizerBase,
    *,
    take_newer: TakeNewer | None = None,
    for_training: bool = True,
) -> TrainedEngine:
    """The engine on the policy's own weights, or on vLLM's copy of them; its completions may be trained on or not."""
    fix_lengths(config, policy)
    ends = end_token_ids(tokenizer, policy.model.generation_config, policy.model.config)
    options = config.engine
    if options.engine == "local":
        return LocalEngine(
            policy.model,
            tokenizer,
            concurrent_sequences=options.concurrent_sequences,
            compute_dtype=policy.compute_dtype,
            eos_token_ids=ends,
            take_newer=take_newer,
            quantization=options.engine_quantization,
            notes_routes=for_training and replays_routes(config, policy.compute_dtype),
            vision=policy.vision,
        )
    from paceline.engines.vllm.engine import VllmEngine

    room = Room(
        sequences=options.concurrent_sequences,
        length=longest_sequence(config, policy),
        cache_bytes=options.vllm_cache_bytes,
        gpu_share=options.vllm_gpu_share,
        tensor_parallel=options.vllm_tensor_parallel,
        eager=policy.model.device.type == "cpu" if options.vllm_eager == "auto" else options.vllm_eager == "true",
    )
    return VllmEngine(
        policy.model,
        tokenizer,
        compute_dtype=policy.compute_dtype,
        eos_token_ids=ends,
        room=room,
        take_newer=take_newer,
    )


def replays_routes(config: Config, compute_dtype: torch.dtype) -> bool:
    """Return whether a model with experts is trained through those that the engine's routers chose."""
    replay = config.engine.router_replay
    is_possible = config.engine.engine == "local" and config.parallel.pipeline_parallel == 1
    return replay == "true" or (replay == "auto" and is_possible and compute_dtype.itemsize == 2)


def longest_sequence(config: Config, policy: Loaded) -> int:
    """Tokens of a prompt with its completion, at most: by the options, as far as the model reaches."""
    length = config.data.max_prompt_length + config.sampling.max_completion_length
    positions = positions_in(policy.model.config)
    return length if positions is None else min(length, positions)


def fix_lengths(config: Config, policy: Loaded) -> None:
    """Make rotary frequencies the same for every sequence of the run, in engine and learner."""
    fix_rope(policy.model, longest_sequence(config, policy))
