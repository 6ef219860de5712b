"""The first table of the page: one line per workload, against the fastest variant of each peer."""

from collections.abc import Iterable, Mapping, Sequence

INTRODUCTION = """
The factor by which Paceline is faster than the fastest variant of each peer. Memory is the step's peak relative to
TRL's.

| workload | generation: `generate` | continuous batching | vLLM | step: TRL | peak memory of the step |
|---|--:|--:|--:|--:|--:|"""


def headline(results: Iterable[Mapping]) -> list[str]:
    """The table's lines; none where there is no result."""
    measured: dict[str, dict[str, Mapping]] = {}
    for result in results:
        for name, workload in result["workloads"].items():
            measured.setdefault(name, {})[result["benchmark"]] = workload
    if not measured:
        return []
    return [INTRODUCTION, *(_line(name, parts) for name, parts in measured.items()), ""]


def _line(name: str, parts: Mapping[str, Mapping]) -> str:
    generation, step = parts.get("generate"), parts.get("step")
    cells = [_factor(generation, peer) for peer in ("generate", "continuous", "vllm")]
    memory = (step or {}).get("memory_of_fastest", {}).get("trl")
    return _row([f"`{name}`", *cells, _factor(step, "trl"), "" if memory is None else f"{memory:.2f} of TRL's"])


def _factor(workload: Mapping | None, peer: str) -> str:
    if workload is None or peer not in workload["fastest"]:
        return ""
    return f"{workload['paceline_faster_by'][workload['fastest'][peer]]:.1f}x"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
