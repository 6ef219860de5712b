"""vLLM as a run's engine: what it is started with, from the options."""

from transformers import PreTrainedTokenizerBase

from paceline.config.sections import Config
from paceline.engines import TakeNewer, TrainedEngine
from paceline.engines.vllm.room import Room
from paceline.models.loaded import Loaded
from paceline.runtime.progress import Progress
from paceline.training.lengths import longest_sequence


def make_vllm_engine(
    config: Config,
    policy: Loaded,
    tokenizer: PreTrainedTokenizerBase,
    eos_token_ids: frozenset[int],
    *,
    take_newer: TakeNewer | None,
    progress: Progress,
) -> TrainedEngine:
    """vLLM in this process, with the policy's weights; a completion ends after any of `eos_token_ids`."""
    from paceline.engines.vllm.engine import VllmEngine

    return VllmEngine(
        policy.model,
        tokenizer,
        compute_dtype=policy.compute_dtype,
        eos_token_ids=eos_token_ids,
        room=room_of(config, policy),
        take_newer=take_newer,
        progress=progress,
    )


def room_of(config: Config, policy: Loaded) -> Room:
    """What vLLM may take: long enough for every prompt and completion of the run, as far as the model reaches."""
    engine = config.engine
    return Room(
        sequences=engine.concurrent_sequences,
        length=longest_sequence(config, policy),
        cache_bytes=None if engine.vllm_cache_gib is None else int(engine.vllm_cache_gib * 2**30),
        gpu_share=engine.vllm_gpu_share,
        tensor_parallel=engine.vllm_tensor_parallel,
        eager=policy.model.device.type == "cpu" if engine.vllm_eager == "auto" else engine.vllm_eager == "true",
    )
