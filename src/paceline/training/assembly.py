"""Sampler, engine and trainer around one set of weights."""

from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.checkpoints.finding import Checkpoint
from paceline.config.sections import Config
from paceline.engines import TakeNewer, TrainedEngine
from paceline.engines.local.engine import LocalEngine
from paceline.engines.vllm.room import Room
from paceline.models.loaded import Loaded
from paceline.runtime.progress import NULL_PROGRESS, Progress
from paceline.training.lengths import fix_lengths, longest_sequence
from paceline.training.rollouts.sampler import Sampler
from paceline.training.setup.overrides import Overrides
from paceline.training.setup.run_inputs import RunInputs
from paceline.training.setup.samplers import training_rounds, training_sampler
from paceline.training.trainer import Trainer, make_trainer


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """A sampler and a trainer that share one set of weights."""

    trainer: Trainer
    engine: TrainedEngine
    sampler: Sampler


def make_engine(
    config: Config,
    policy: Loaded,
    tokenizer: PreTrainedTokenizerBase,
    *,
    take_newer: TakeNewer | None = None,
    progress: Progress = NULL_PROGRESS,
) -> TrainedEngine:
    """The engine on the policy's own weights, or on vLLM's copy of them."""
    fix_lengths(config, policy)
    ends = end_token_ids(policy.model, tokenizer)
    if config.engine.engine == "vllm":
        return make_vllm_engine(config, policy, tokenizer, ends, take_newer=take_newer, progress=progress)
    return LocalEngine(
        policy.model,
        tokenizer,
        concurrent_sequences=config.engine.concurrent_sequences,
        compute_dtype=policy.compute_dtype,
        eos_token_ids=ends,
        take_newer=take_newer,
        progress=progress,
    )


def end_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every token that ends a completion: what the tokenizer, the generation settings or the configuration names.

    They differ where a fine-tuning has changed one of them: its template ends turns with the tokenizer's token, say,
    and generation_config.json still has the base model's.
    """
    sources = (tokenizer, model.generation_config, model.config.get_text_config())
    named = [getattr(source, "eos_token_id", None) for source in sources]
    ids = [token for ids in named for token in (ids if isinstance(ids, list | tuple) else [ids])]
    return frozenset(token for token in ids if token is not None and token >= 0)  # -1 is none in some files


def assemble(
    config: Config, inputs: RunInputs, overrides: Overrides | None = None, *, checkpoint: Checkpoint | None = None
) -> Parts:
    """Build sampler, engine and trainer in this process; `make_trainer` reads the weights."""
    progress = inputs.progress
    trainer = make_trainer(
        config, inputs.tokenizer, inputs.run_size, overrides, checkpoint=checkpoint, progress=progress
    )
    engine = make_engine(config, trainer.policy, inputs.tokenizer, progress=progress)
    if checkpoint is not None:
        engine.take_weights(trainer.policy_version)
    sampler = training_sampler(config, training_rounds(config, engine, inputs.functions, progress=progress))
    return Parts(trainer=trainer, engine=engine, sampler=sampler)


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
