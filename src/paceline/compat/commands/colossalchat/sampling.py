"""Sampling options: lengths, temperature, stop conditions, engine."""

from paceline.compat.commands.colossalchat.arguments import ColossalChatArguments, ColossalChatCommand
from paceline.compat.commands.translation import Note, Translation

ANNEALED = 0.9
HF_TOP_K = 50
END = "</answer>"
GPU_SHARE = 0.7
"""Share of a producer's device for vLLM."""


def sampling(read: ColossalChatCommand) -> Translation:
    """Options that shape a completion."""
    one = read.arguments
    return _distribution(one) + _end(one) + _engine(one)


def _distribution(one: ColossalChatArguments) -> Translation:
    notes = []
    if one.temperature != ANNEALED:
        text = (
            f"went on to {ANNEALED:g} over the first episode, while trainers went on dividing by {one.temperature:g}; "
            "here one temperature holds for both"
        )
        notes.append(Note(kind="mended", about=f"-temp {one.temperature:g}", text=text))
    top_k = one.top_k
    if top_k is None:
        top_k = HF_TOP_K if one.backend == "transformers" else 0
        if top_k:
            text = f"the transformers backend has {top_k} for its default; --top-k 0 samples what is trained"
            notes.append(Note(kind="changed", about="-topk", text=text))
    options = {
        "max_completion_length": one.max_new_tokens,
        "temperature": one.temperature,
        "top_p": one.top_p,
        "top_k": max(0, top_k),
    }
    return Translation(options=options, notes=tuple(notes))


def _end(one: ColossalChatArguments) -> Translation:
    if one.reward_type != "think_answer_tags":
        return Translation()
    text = (
        f"the end of the text did not end a completion that had no {END}, which then ran to -mnt; here either ends it"
    )
    note = Note(kind="mended", about="-rt think_answer_tags", text=text)
    return Translation(options={"stop": (END,)}, notes=(note,))


def _engine(one: ColossalChatArguments) -> Translation:
    if one.backend == "vllm":
        layers = one.producer_tensor_parallel_size
        options = {"engine": "vllm", "vllm_tensor_parallel": layers, "vllm_gpu_share": GPU_SHARE}
        return Translation(options=options)
    text = "the default backend cannot run; here completions come from the engine in the producers' own processes"
    notes = [Note(kind="mended", about="-b transformers", text=text)]
    if one.producer_tensor_parallel_size > 1:
        text = "without -b vllm a producer is one process with one device, so that the model has to fit it"
        notes.append(Note(kind="missing", about=f"-ptp {one.producer_tensor_parallel_size}", text=text))
    return Translation(notes=tuple(notes))
