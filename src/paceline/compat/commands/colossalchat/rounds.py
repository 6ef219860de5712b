"""Batch sizes, processes and staleness: a round of sampling is a step here, its updates are minibatches."""

import math

from paceline.compat.commands.colossalchat.arguments import ZERO_BUBBLE, ColossalChatArguments, ColossalChatCommand
from paceline.compat.commands.colossalchat.batches import groups, prompts_per_round, prompts_per_update
from paceline.compat.commands.translation import Note, Translation

RAY_PORT = 6379
"""Default port of `ray start --head`."""


def updates_per_round(arguments: ColossalChatArguments) -> int:
    """Optimiser steps between two weight transfers."""
    return prompts_per_round(arguments) // prompts_per_update(arguments)


def rounds(read: ColossalChatCommand) -> Translation:
    """Options on batch sizes, processes and staleness."""
    return _sizes(read) + _length(read.arguments) + _processes(read) + _parallel(read.arguments) + _lag(read)


def _sizes(read: ColossalChatCommand) -> Translation:
    one = read.arguments
    prompts, updates = prompts_per_round(one), updates_per_round(one)
    tokens = one.train_microbatch_size * (one.max_prompt_tokens + one.max_new_tokens)
    at_once = one.inference_microbatch_size * one.num_generations
    return Translation(
        options={
            "prompts_per_step": prompts,
            "num_minibatches": updates,
            "num_generations": one.num_generations,
            "micro_batch_tokens": tokens,
            "concurrent_sequences": at_once,
        },
        notes=(
            Note(
                kind="changed",
                about="-ibs -tbs",
                text=f"a step is a round, {one.inference_batch_size} prompts of {one.num_inferencer} producers "
                f"({prompts}), in {updates} update{'s' * (updates > 1)} of {prompts_per_update(one)} "
                f"({one.train_batch_size} of each of {groups(one)} groups of trainers)",
            ),
            Note(
                kind="changed",
                about="-tmbs",
                text=f"memory is bounded in tokens: {one.train_microbatch_size} completions of at most "
                f"{one.max_prompt_tokens} + {one.max_new_tokens} tokens are {tokens:,}, and shorter ones share them",
            ),
            Note(
                kind="changed",
                about="-imbs",
                text=f"of each producer {at_once} completions at a time; as one ends another takes its place",
            ),
            *_portions(read),
        ),
    )


def _portions(read: ColossalChatCommand) -> tuple[Note, ...]:
    if "train_minibatch_size" not in read.given:
        return ()
    return (Note(kind="idle", about="-tMbs", text="a gradient is of the whole update, however it is cut"),)


def _length(one: ColossalChatArguments) -> Translation:
    note = Note(
        kind="mended",
        about="-e",
        text="prompts that did not fill a round were left out of every episode; here rounds go on across episodes and "
        "the last step of the run is shorter",
    )
    return Translation(options={"num_epochs": float(one.num_episodes)}, notes=(note,))


def _processes(read: ColossalChatCommand) -> Translation:
    one, notes = read.arguments, []
    options: dict[str, object] = {
        "cluster": True,
        "num_producers": one.num_inferencer,
    }
    if one.master_address is not None:
        options["ray_address"] = f"{one.master_address}:{RAY_PORT}"
        text = f"Ray's own port at that address, {RAY_PORT}; give --ray-address HOST:PORT where it listens elsewhere"
        notes.append(Note(kind="changed", about="--master-address", text=text))
    if "master_port" in read.given:
        text = "processes that train together find a free port themselves"
        notes.append(Note(kind="idle", about="--master-port", text=text))
    if one.ray_dir is not None:
        text = "where Ray keeps its files is said to `ray start --temp-dir` or by RAY_TMPDIR"
        notes.append(Note(kind="idle", about="--ray-dir", text=text))
    return Translation(options=options, notes=tuple(notes))


def _parallel(one: ColossalChatArguments) -> Translation:
    options: dict[str, object] = {
        "num_consumers": one.num_trainers,
        "tensor_parallel": one.tensor_parallel_size,
        "pipeline_parallel": one.pipeline_parallel_size,
        "zero_stage": one.zero_stage,
    }
    if one.tensor_parallel_size == one.pipeline_parallel_size == 1:
        return Translation(options=options)
    text = (
        "there one group of trainers alone made calls that all had to make, which hung, and a gradient was divided by "
        "the layout; here every layout has the gradient of one process"
    )
    about = f"-tp {one.tensor_parallel_size} -pp {one.pipeline_parallel_size}"
    return Translation(options=options, notes=(Note(kind="mended", about=about, text=text),))


def _lag(read: ColossalChatCommand) -> Translation:
    """Option for the number of steps that sampling may be ahead."""
    one = read.arguments
    if read.script == ZERO_BUBBLE:
        limit = one.data_actor_buffer_size_limit
        limit = limit if limit >= 0 else 2 * one.train_minibatch_size * groups(one)
        steps = max(1, math.ceil(limit / prompts_per_round(one)))
        text = (
            f"a buffer of {limit} prompts is up to {steps} step{'s' * (steps > 1)} of {prompts_per_round(one)}: "
            "sampling is never further ahead, and every step says from which weights it was sampled"
        )
        note = Note(kind="changed", about="-cbsl", text=text)
        end = Note(
            kind="mended",
            about=read.script,
            text="the trainer waited for ever when filtered groups left less than an update at the end of the data; "
            "here the last step runs on what there is",
        )
        return Translation(options={"max_staleness": steps}, notes=(note, end))
    if one.n_behind == 0:
        return Translation()
    text = (
        "groups that waited at the end of an episode were dropped, and the ratio was to the weights that sampled; "
        "here every group is trained on, and --rollout-correction truncate or mask weighs the lag"
    )
    note = Note(kind="mended", about=f"-nb {one.n_behind}", text=text)
    return Translation(options={"max_staleness": one.n_behind}, notes=(note,))
