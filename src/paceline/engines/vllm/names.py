"""Words that the engine and vLLM's workers, which may be other processes, use for the same things."""

BACKEND = "paceline"
"""Name of the weight transfer in vLLM's table."""
EXTENSION = "paceline.engines.vllm.worker.Extension"
KEY = "paceline_key"
"""Argument of a request that seeds its random numbers."""
SAMPLING = "paceline_sampling"
"""Argument of a request that says how its tokens are drawn."""
