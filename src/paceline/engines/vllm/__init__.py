"""vLLM 0.32 as an engine, the only place that knows it. Nothing here imports vLLM before an engine is started.

vLLM schedules, keeps its cache and computes logits; tokens are drawn by our own keys, weights come from our own model.
"""
