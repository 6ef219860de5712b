"""Starts vLLM in this process from a loaded model's configuration, with dummy weights; the real ones are sent later."""

import contextlib
import copy
import os
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from paceline.engines.vllm.asking import BACKEND, EXTENSION
from paceline.engines.vllm.weight_transfer import PROBE_LENGTH, widening
from paceline.models.families import layer_plans

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # scheduler and model in this process: weights are handed over as they are
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the V2 runner does not sample through the class that `KeyedSampler` replaces
    "VLLM_NO_USAGE_STATS": "1",
}
DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # its warnings are of settings that are made on purpose
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # `auto` reserves a core for a process that does not exist here
}
"""Environment variables that are set unless they already are."""
BLOCK = 128
"""Tokens of a block of vLLM's cache on a CPU; a sequence may fill its last block in part."""
MOST_BYTES = 4 << 30
"""Largest default size of the cache on a CPU, unless two sequences need more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Sizes that vLLM is started with; by default it would take nearly all of a machine's memory."""

    sequences: int
    """Completions computed at the same time, at most."""
    length: int
    """Tokens of a prompt and its completion, at most."""
    cache_bytes: int | None = None
    """Bytes of the cache of keys and values; None: on a CPU `wanted_cache`, on CUDA what is left of `gpu_share`."""
    gpu_share: float = 0.45
    """CUDA: share of a device's memory for weights, cache and activations together."""
    tensor_parallel: int = 1
    """Processes that each layer is spread over."""
    eager: bool = True
    """Run the model without compilation and, on CUDA, without graphs."""


def wanted_cache(config: Any, room: Room, dtype: torch.dtype) -> int:
    """Return bytes for all concurrent sequences at their greatest length, at most `MOST_BYTES`, at least two sequences.

    `config` is of the model's text part, `dtype` the precision of keys and values.
    """
    token = sum(2 * plan.key_value_heads * plan.head_dim for plan in layer_plans(config)) * dtype.itemsize
    sequence: int = token * BLOCK * (-(-room.length // BLOCK) + 1)
    return max(2 * sequence, min(room.sequences * sequence, MOST_BYTES))


def start(model: PreTrainedModel, dtype: torch.dtype, room: Room) -> Any:
    """Start an `LLMEngine` of vLLM with the model's architecture, dummy weights and `KeyedSampler`.

    The process's random state, threads and inherited environment are restored afterwards.
    """
    is_cpu = model.device.type == "cpu"
    # vLLM reads these when it is imported
    os.environ.update(ENVIRONMENT)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if is_cpu:
        # vLLM compiles small helpers at the first request, which takes longer than most tests; Dynamo may be imported
        # already, and then reads its setting, not the variable
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        torch._dynamo.config.disable = True
    from vllm import EngineArgs, LLMEngine
    from vllm.config import WeightTransferConfig

    import paceline.engines.vllm.worker  # noqa: F401  # registers the transfer that the arguments name

    # the model's configuration as its config.json would have it, with heads as wide as vLLM's CPU build supports
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    text = config.get_text_config()
    factor = widening(text, model.device.type)
    if factor > 1:
        text.head_dim = layer_plans(text)[0].head_dim * factor
    size = room.cache_bytes or (wanted_cache(text, room, dtype) if is_cpu else None)
    with TemporaryDirectory() as directory, _process_as_it_was():
        config.save_pretrained(directory)
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=directory,
                skip_tokenizer_init=True,
                load_format="dummy",
                generation_config="vllm",  # vLLM's defaults, not those of generation_config.json
                dtype=str(dtype).removeprefix("torch."),
                enforce_eager=room.eager,
                max_model_len=max(room.length, PROBE_LENGTH),
                max_num_seqs=room.sequences,
                kv_cache_memory_bytes=size,
                gpu_memory_utilization=room.gpu_share,
                tensor_parallel_size=room.tensor_parallel,
                distributed_executor_backend=_executor(room),
                enable_prefix_caching=True,
                enable_sleep_mode=not is_cpu,
                disable_log_stats=True,
                weight_transfer_config=WeightTransferConfig(backend=BACKEND),
                worker_extension_cls=EXTENSION,
            )
        )
    engine.collective_rpc("draw_by_keys")
    if is_cpu and room.tensor_parallel > 1:
        engine.collective_rpc("leave_no_files")
    return engine


def _executor(room: Room) -> str:
    """Return the name of vLLM's executor. On a rank it uses the existing process group and this rank's device."""
    if room.tensor_parallel > 1:
        return "mp"
    index = torch.cuda.current_device() if torch.cuda.is_available() else 0
    if not dist.is_initialized() and index == 0:
        return "uni"
    # vLLM's worker reads its device from torchrun's variables, for which some launchers have other names
    os.environ["LOCAL_RANK"] = str(index)
    if dist.is_initialized():
        os.environ["RANK"] = str(dist.get_rank())
    else:  # a rank that only samples is in no process group: vLLM makes a group of this rank alone
        port = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    return "external_launcher"


@contextlib.contextmanager
def _process_as_it_was() -> Iterator[None]:
    """Restore random state, threads and environment after the context.

    vLLM seeds every generator. On a CPU it makes `torch.set_num_threads` do nothing, and preloads two libraries into
    every child process, programs in a sandbox included.
    """
    set_num_threads, python, numpy = torch.set_num_threads, random.getstate(), np.random.get_state()
    environment = dict(os.environ)
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch, about vLLM's use of it
            yield
    finally:
        torch.set_num_threads = set_num_threads
        random.setstate(python)
        np.random.set_state(numpy)
        of_vllm = {name: value for name, value in os.environ.items() if name.startswith("VLLM_")}
        os.environ.clear()
        os.environ.update(environment | of_vllm)
