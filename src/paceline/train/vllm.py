"""vLLM as a run's engine: what it is started with, from the options."""

from transformers import PreTrainedTokenizerBase

from paceline.config import Config
from paceline.engines import TakeNewer, TrainedEngine
from paceline.engines.vllm.room import Room
from paceline.headway import Headway
from paceline.models import Loaded


def make_vllm_engine(
    config: Config,
    policy: Loaded,
    tokenizer: PreTrainedTokenizerBase,
    *,
    take_newer: TakeNewer | None,
    headway: Headway,
) -> TrainedEngine:
    """vLLM in this process, with the policy's weights."""
    from paceline.engines.vllm.engine import VllmEngine

    return VllmEngine(
        policy.model,
        tokenizer,
        compute_dtype=policy.compute_dtype,
        eos_token_ids=policy.eos_token_ids,
        room=room_of(config, policy),
        take_newer=take_newer,
        headway=headway,
    )


def room_of(config: Config, policy: Loaded) -> Room:
    """What vLLM may take: long enough for every prompt and completion of the run, as far as the model reaches."""
    engine, length = config.engine, config.data.max_prompt_length + config.sampling.max_completion_length
    positions = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    return Room(
        sequences=engine.concurrent_sequences,
        length=length if positions is None else min(length, positions),
        cache_bytes=None if engine.vllm_cache_gib is None else int(engine.vllm_cache_gib * 2**30),
        gpu_share=engine.vllm_gpu_share,
        tensor_parallel=engine.vllm_tensor_parallel,
        eager=policy.model.device.type == "cpu" if engine.vllm_eager == "auto" else engine.vllm_eager == "true",
    )
