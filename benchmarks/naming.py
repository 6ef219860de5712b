"""Contenders as the page calls them."""

WHOLE = {
    "paceline": "**Paceline**",
    "paceline-fp8": "**Paceline**, `--engine-quantization fp8`",
    "paceline-recomputing": "**Paceline**, `--gradient-checkpointing true`",
    "paceline-lora": "**Paceline**, an adapter of rank 16",
    "before": "Paceline before",
    "math-verify": "math-verify, one by one",
    "process": "a process per program, not isolated",
    "vllm": "vLLM",
}
PEERS = {
    "generate": "transformers `generate`",
    "continuous": "transformers continuous batching",
    "vllm": "vLLM",
    "trl": "TRL `GRPOTrainer`",
}
BACKENDS = {"generate": "`generate`", "continuous": "continuous batching", "vllm": "vLLM in its process"}
KINDS = {"lora": "an adapter of rank 16"}


def title(name: str) -> str:
    """A contender's name in words.

    >>> title("continuous-float32-64")
    'transformers continuous batching, float32, 64 tokens a batch'
    >>> title("trl-generate-bfloat16-4-checkpointing")
    'TRL `GRPOTrainer`, `generate`, bfloat16, 4 rows a micro-batch, checkpointing'
    """
    if name in WHOLE:
        return WHOLE[name]
    peer, *parts = name.split("-")
    if peer == "trl":
        backend, dtype, rows, *others = parts
        parts = [BACKENDS[backend], dtype, f"{rows} rows a micro-batch", *(KINDS.get(one, one) for one in others)]
    elif peer == "continuous":
        dtype, tokens = parts
        parts = [dtype, f"{tokens} tokens a batch"]
    elif parts[1:] == ["1", "thread"]:
        parts = [parts[0], "1 thread"]
    return ", ".join([PEERS[peer], *parts])
