"""What a run amounts to, in TRL's counts and in Paceline's: a few lines for its start. Pure text."""

from collections.abc import Iterator

from paceline.compat.trl.batches import batches_of
from paceline.compat.trl.config import GRPOConfig
from paceline.compat.trl.refused import accepted_without_effect
from paceline.config.sections import Config


def describe_plan(args: GRPOConfig, config: Config) -> str:
    """TRL's counts beside ours, then everything that is computed otherwise than the fields may suggest."""
    return "\n".join([*_counts(args), *_length(args, config), *_notes(args, config)])


def _counts(args: GRPOConfig) -> Iterator[str]:
    batches, micro = batches_of(args), args.per_device_train_batch_size
    per_update = batches.completions_per_step // batches.num_minibatches
    yield (
        f"completions per update: {per_update} (TRL: per_device_train_batch_size {micro} * "
        f"gradient_accumulation_steps {args.gradient_accumulation_steps})"
    )
    yield f"prompts per update: {_number(per_update / args.num_generations)} (num_generations {args.num_generations})"
    yield (
        f"updates per rollout batch: {batches.updates_per_step} = {batches.num_minibatches} part"
        f"{'s' if batches.num_minibatches > 1 else ''} * num_iterations {batches.num_iterations}"
    )
    yield (
        f"completions per rollout batch: {batches.completions_per_step} of {batches.prompts_per_step} prompts "
        f"(TRL: generation_batch_size {args.generation_batch_size}{_joined(args)})"
    )


def _joined(args: GRPOConfig) -> str:
    """TRL samples several times for one update where an update is longer than a generation."""
    times = args.gradient_accumulation_steps // args.steps_per_generation
    return f", {times} of them per update, sampled together here" if times > 1 else ""


def _length(args: GRPOConfig, config: Config) -> Iterator[str]:
    updates, steps = batches_of(args).updates_per_step, config.loop.max_steps
    if steps is None:
        yield f"length: {_number(config.loop.num_epochs)} epochs; global_step counts {updates} per rollout batch"
        return
    rounded = f", rounded up from max_steps {args.max_steps}" if steps * updates != args.max_steps else ""
    yield f"length: {steps} rollout batches, {steps * updates} updates (global_step){rounded}"


def _notes(args: GRPOConfig, config: Config) -> Iterator[str]:
    yield (
        f"micro-batches: cut by micro_batch_tokens {config.optim.micro_batch_tokens or '(by device)'}, not by count; "
        "averages are over the whole update, so the cut does not change the gradient"
    )
    if config.model.dtype == "bfloat16":
        yield "precision: computes in bfloat16, weights and optimiser state stay float32"
    if config.loss.bound == "cispo" and args.epsilon_high is None:
        yield (
            f"cispo: a ratio weighs at most {config.loss.cispo_max_ratio} (TRL would take epsilon, {args.epsilon}, and "
            "hold every weight there); epsilon_high sets it"
        )
    if args.push_to_hub:
        yield "push_to_hub: the model is uploaded once, when training ends (hub_strategy every_save does not say more)"
    accepted = accepted_without_effect(args)
    if accepted:
        yield accepted


def _number(value: float) -> str:
    return f"{value:g}"
