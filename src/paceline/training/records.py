"""Clock of a step, and sentences for the user before the first step and after each."""

from collections.abc import Sequence

import torch

from paceline.config.sections import Config
from paceline.config.vision import VisionConfig
from paceline.data.duplicates import also_trained_on, repeated_prompts
from paceline.engines import TrainedEngine
from paceline.kernels.cpu.compiling import library
from paceline.models.experts import frozen_experts
from paceline.models.gguf import gguf_file
from paceline.models.loaded import Loaded
from paceline.models.loading import bits_hang_on
from paceline.models.places import model_place
from paceline.models.pretrained import is_text_part, text_config
from paceline.models.rope import rope_by_length
from paceline.reports.format import percent_interval
from paceline.training.evaluation import AccuracyResult, EvalResult
from paceline.training.learner.stats import UpdateStats
from paceline.training.plan.batches import service_calls
from paceline.training.rollouts.grouping import OUT_OF_THE_STEP
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.training.setup.held_out import of_graders, of_rows
from paceline.training.setup.inputs import RunInputs
from paceline.training.trainer import Trainer
from paceline.types import Task

MANY_EQUAL = 0.5
"""Share of groups without signal from which a run says before its first step what would help."""
MANY_CORRECTED = 0.2
"""Share of corrected tokens above which a sentence says that engine and trainer disagree."""


def step_warnings(number: int, batch: RolloutBatch, stats: UpdateStats, *, max_refills: int) -> list[str]:
    """Report what went otherwise than the options say, with its numbers."""
    sentences = []
    kept = sum(group.dropped not in OUT_OF_THE_STEP for group in batch.groups)
    # without refills a filter leaves out what it is meant to, and the metrics count it
    if batch.missing > 0 and (max_refills > 0 or kept == 0):
        sentences.append(
            f"step {number} runs on {kept} of {kept + batch.missing} prompts: "
            f"the rest stayed outside --filter-range after {batch.refills} of {max_refills} refills"
        )
    groups = [group for group in batch.groups if group.dropped not in OUT_OF_THE_STEP]
    if groups and all(group.dropped == "no_reward" for group in groups):
        names = ", ".join(map(repr, batch.scores.values))
        sentences.append(f"step {number}: {names} gave no completion a reward, so nothing was learned from it")
    for name, tally in batch.scores.tallies.items():
        if tally.failed_calls:
            calls = "1 call" if tally.failed_calls == 1 else f"{tally.failed_calls} calls"
            sentences.append(
                f"step {number}: {calls} of the {batch.scores.named(name)} failed; the first: "
                f"{batch.scores.first_failures[name].splitlines()[0]}"
            )
        # verdicts that a judge did not give, also where the mean of others made up for them
        lost = {kind.removeprefix("failed_"): n for kind, n in tally.counts.items() if kind.startswith("failed_")}
        if lost:
            kinds = ", ".join(f"{kind} {count:g}" for kind, count in lost.items())
            first = batch.scores.first_failures.get(name, "other verdicts made up for it").splitlines()[0]
            sentences.append(
                f"step {number}: {name} lacks {sum(lost.values()):g} verdicts ({kinds}); the first: {first}"
            )
    corrected = stats.correction_masked_fraction
    if corrected is not None and corrected > MANY_CORRECTED:
        sentences.append(
            f"step {number}: --rollout-correction bounds or masks {corrected:.0%} of the trained tokens; "
            "engine and trainer disagree, see logprob_mismatch_mean"
        )
    return sentences


def step_clock(
    batch: RolloutBatch, *, weights: float, produce: float, wait: float, update: float, total: float
) -> dict[str, float]:
    """Sum up the seconds of a step by phase; the rest is bookkeeping.

    Sampling that overlapped the training of other steps counts in full, so a step's phases may exceed its total.
    """
    phases = {"generate": batch.generate_seconds, "reward": batch.reward_seconds, "update": update}
    tokens = sum(rollout.trajectory.num_sampled for group in batch.groups for rollout in group.rollouts)
    return phases | {
        "other": max(0.0, total - sum(phases.values())),
        "total": total,
        "weights": weights,
        "produce": produce,
        "wait": wait,
        "tokens_per_second": tokens / batch.generate_seconds,
    }


def _of_images(options: VisionConfig) -> str:
    """Describe what reads images in a run whose prompts hold some."""
    if options.lora_vision:
        return "prompts hold images: encoder and projector have the adapter too"
    parts = ("the vision encoder", options.train_vision), ("the projector", options.train_projector)
    trained, frozen = ([name for name, moves in parts if moves is wanted] for wanted in (True, False))
    states = [f"{' and '.join(names)} {verb}" for names, verb in ((trained, "trained"), (frozen, "frozen")) if names]
    return f"prompts hold images: {', '.join(states)}"


def run_sentences(config: Config, inputs: RunInputs, paths: Sequence[str]) -> list[str]:
    """Say what was dropped, what will not be learned, and which `paths` are taken."""
    lines, seen = [*of_rows(inputs.tasks), *of_graders(inputs.functions.values()), *inputs.unmet], tuple[Task, ...]()
    if inputs.conversations is None:  # else tasks of one prompt differ by what their environments do
        seen = inputs.tasks.looked_at
        lines += repeated_prompts(seen)
    lines += [
        f"{name}: at most {calls:,} calls a step, without retries"
        for name, calls in service_calls(config, inputs.functions).items()
    ]
    if inputs.unverified:
        lines.append(f"gold answers that do not score full: {', '.join(inputs.unverified)}; they cannot be learned")
    notes = [
        f"{measured.name}: {note}" for measured in inputs.evaluators for note in measured.notes if note not in lines
    ]
    overlaps = [
        f"{measured.name}: {note}" for measured in inputs.evaluators for note in also_trained_on(measured.tasks, seen)
    ]
    detectable = [measured.detectable for measured in inputs.evaluators if measured.training is None]
    lines += [*notes, *overlaps, *detectable]
    lines += paths
    lines += [] if inputs.conversations is None else inputs.conversations.describe()
    files = model_place(config.model.model)
    if gguf_file(config.model.model) is not None:
        lines.append(f"--model is a GGUF file: its weights are trained dequantised, in float32, from {files.base}")
    model = inputs.objects.model
    if inputs.pictures is not None:
        lines.append(_of_images(config.vision))
    elif is_text_part(config.model) if model is None else text_config(model.config) is not model.config:
        lines.append(
            "the model also reads images or sound: its language model alone is loaded and trained, and is what final/ "
            "and checkpoints hold"
        )
    if config.loss.beta > 0 and files.adapter is not None:
        lines.append(
            f"--model is an adapter: the reference of --beta is its base model {files.base} without it, so the "
            "KL does not begin at 0"
        )
    sampling = config.sampling
    if sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0:
        lines.append(
            "top-p, top-k and min-p are not replayed in the trainer: completions come from a narrower distribution "
            "than the one that is trained, and logprob_mismatch reports by how much"
        )
    return lines


def first_look(config: Config, results: Sequence[EvalResult]) -> list[str]:
    """Say what the first evaluation found, and whether so much is right that completions of a prompt will differ.

    The share p is the one within the accuracy's 95 % interval at which most groups differ. Where every prompt is right
    with probability p, all G completions of one are right or all are wrong with p^G + (1 - p)^G; where prompts differ,
    which that function of p is convex in, it is more.
    """
    sentences = []
    for result in results:
        if not isinstance(result, AccuracyResult):
            continue
        sentences.append(f"{result.name}: {result.reasons()}")
        if config.rewards.names != (config.evaluation.eval_reward_func,):
            continue  # another reward may differ where the verdict does not
        right, size, verdicts = result.accuracy.value, config.sampling.num_generations, result.verdicts()
        # the end of the interval at which most groups differ: few tasks do not say that none will
        likely = min(max(1 / 2, result.accuracy.low), result.accuracy.high)
        equal = likely**size + (1 - likely) ** size
        if equal < MANY_EQUAL:
            continue
        helps = (
            ["harder tasks"] if right > 1 / 2 else ["easier tasks", "a second function that gives part of the score"]
        )
        if right < 1 / 2 and verdicts["cut"] > verdicts["completions"] / 2:
            helps.insert(0, "a greater --max-completion-length")
        if right < 1 / 2 and verdicts["no_answer"] > verdicts["completions"] / 2:
            helps.insert(0, "a reward or system message for the format that the model writes")
        how = "greedy ones" if config.evaluation.eval_temperature == 0 else "those"
        sentences.append(
            f"with {percent_interval(result.accuracy)} right, at least {int(100 * equal)} % of the groups of {size} "
            "completions will have equal rewards and teach nothing, if sampled answers are right as often as "
            f"{how}; what helps: {', '.join(helps)}, more --num-generations"
        )
    return sentences


def engine_sentences(engine: TrainedEngine) -> list[str]:
    """Report where sampling does not take its fastest path, or samples from another distribution than the model's."""
    if engine.path == "float8":
        return [
            "engine: completions are sampled with layers in eight bits (e4m3); --engine-quantization none samples from "
            "the unrounded model"
        ]
    if engine.path == "recomputing":
        return [f"engine: the whole context computed again for each token, far slower ({engine.path_reason})"]
    return [f"engine: plain path, slower ({engine.path_reason})"] if engine.path == "plain" else []


def trainer_sentences(trainer: Trainer) -> list[str]:
    """Report how the model is computed, and where training does not take its fastest path."""
    lines = of_machine(trainer.policy)
    rope = rope_by_length(trainer.policy.model)
    if rope is not None:
        lines.append(rope)
    if trainer.config.model.deterministic:
        lines.append(bits_hang_on(trainer.policy.model.device))
    if trainer.recomputing is not None:
        lines += trainer.recomputing.describe()
    if trainer.learner.runner.forward.kind == "padded":
        lines.append(f"learner: padded rows, slower ({trainer.learner.runner.forward.reason})")
    if trainer.learner.runner.forward.experts:
        lines.append(f"experts: by transformers' own products ({trainer.learner.runner.forward.experts})")
    frozen = frozen_experts(trainer.policy.model)
    if trainer.policy.adapter is not None and frozen:
        lines.append(f"adapter: {frozen:,} weights of experts stay frozen; --lora-parameters all-experts adapts them")
    return lines


def of_machine(policy: Loaded) -> list[str]:
    """Report bfloat16 and missing compiled kernels on a CPU."""
    if policy.model.device.type != "cpu":
        return []
    lines = []
    if policy.compute_dtype == torch.bfloat16:
        lines.append("computing in bfloat16 (--dtype); float32 is more exact")
    if library().functions is None:
        lines.append(f"computing without compiled kernels, slower ({library().reason})")
    return lines
