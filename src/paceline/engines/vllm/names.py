"""Words that the engine and vLLM's workers, which may be other processes, use for the same things."""

BACKEND = "paceline"
"""Of the weight transfer, in vLLM's table of them."""
EXTENSION = "paceline.engines.vllm.worker.Extension"
KEY = "paceline_key"
"""Of a request: what its random numbers are made of."""
SAMPLING = "paceline_sampling"
"""Of a request: how its tokens are drawn."""
