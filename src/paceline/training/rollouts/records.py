"""What a step's rollouts leave behind: numbers for the metrics, one object per completion for the run directory."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from paceline.metrics.statistics import mean_and_std
from paceline.rewards.judges.settings import spending_metrics
from paceline.training.rollouts.grouping import OUT_OF_THE_STEP
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.types import RolloutGroup, Task, Trajectory, Turn

TURN_FIELDS = tuple(Turn.__dataclass_fields__)
EPISODE_FIELDS = ("environment", "end", "reward", "failure", "notes", "printed")
"""Fields of a trajectory that its record has under `episode`, beside the turns."""


def rollout_metrics(batch: RolloutBatch) -> dict[str, object]:
    """The step's numbers that rollouts alone decide; names and units are those of `metrics.METRICS`."""
    rollouts = [rollout for group in batch.groups for rollout in group.rollouts]
    dropped = [group.dropped for group in batch.groups]
    lengths = [rollout.trajectory.num_sampled for rollout in rollouts]
    mean, std = mean_and_std([rollout.reward for rollout in rollouts])
    within = [mean_and_std([rollout.reward for rollout in group.rollouts])[1] for group in batch.groups]
    in_loss = [
        rollout.advantage
        for group in batch.groups
        if group.dropped not in OUT_OF_THE_STEP
        for rollout in group.rollouts
        if rollout.dropped is None
    ]
    scores = batch.scores
    formed = [float(has_format) for has_format in scores.formed if has_format is not None]
    of_functions = {}
    for name, values in scores.values.items():
        mean_of_function, std_of_function = mean_and_std(values)
        tally = asdict(scores.tallies[name])
        counts = tally.pop("counts")
        of_functions[name] = {
            "mean": mean_of_function,
            "std": std_of_function,
            "count": sum(value is not None for value in values),
            "failures": len(scores.failed[name]),
            **tally,
            **({"judge": spending_metrics(counts)} if counts else {}),
            "seconds": scores.seconds[name],
        }
    return {
        "prompts": len(batch.groups),
        "rollouts": len(rollouts),
        "reward_mean": mean,
        "reward_std": std,
        "reward_std_within": mean_and_std(within)[0],
        "advantage_mean": mean_and_std(in_loss)[0],
        "sample_utilization": len(in_loss) / len(rollouts),
        **({"format_accuracy": sum(formed) / len(formed)} if formed else {}),
        "rewards": of_functions,
        "completion_length_mean": sum(lengths) / len(lengths),
        "completion_length_max": max(lengths),
        "truncated_fraction": sum(r.trajectory.finish_reason == "length" for r in rollouts) / len(rollouts),
        "groups_zero_deviation": dropped.count("zero_deviation"),
        "groups_no_reward": dropped.count("no_reward"),
        "groups_filtered": dropped.count("filtered"),
        "groups_surplus": dropped.count("surplus"),
        "groups_missing": batch.missing,
        "refills": batch.refills,
        "rollouts_without_reward": sum(rollout.reward is None for rollout in rollouts),
        "rollouts_masked": sum(rollout.dropped == "truncated" for rollout in rollouts),
        "tokens_generated": sum(lengths),
        **_of_images(batch.groups),
        **_of_episodes(batch.groups),
        **({"turns_without_sibling": alone} if (alone := _turns_without_sibling(batch.groups)) is not None else {}),
    }


def _of_images(groups: Sequence[RolloutGroup]) -> dict[str, object]:
    """Return the numbers of the images of a step's prompts; nothing where there are none."""
    images = [image for group in groups for image in group.task.media]
    if not images:
        return {}
    tokens = sum(len(group.task.prompt_ids) for group in groups)
    return {"images": len(images), "image_tokens_share": sum(image.length for image in images) / tokens}


def _of_episodes(groups: Sequence[RolloutGroup]) -> dict[str, object]:
    """Return the numbers of a step's conversations; nothing where there are none."""
    pairs = [(group.task, rollout.trajectory) for group in groups for rollout in group.rollouts]
    pairs = [(task, episode) for task, episode in pairs if episode.environment is not None]
    if not pairs:
        return {}
    episodes = [episode for _, episode in pairs]
    turns = [turn for episode in episodes for turn in episode.turns]
    begins_apart = [bool(episode.turns) and episode.prompt_ids != task.prompt_ids for task, episode in pairs]
    return {
        "turns_mean": len(turns) / len(episodes),
        "turns_max": max(len(episode.turns) for episode in episodes),
        "observed_tokens": sum(
            len(span.tokens) for episode in episodes for span in episode.spans if span.by == "environment"
        ),
        "branches": sum(begins_apart) + sum(len(episode.rows) - 1 for episode in episodes),
        "tool_calls": sum(len(cast(Sequence[Any], turn.message.get("tool_calls", ()))) for turn in turns),
        "malformed_calls": sum(turn.malformed is not None for turn in turns),
        "environment_seconds": math.fsum(turn.seconds for turn in turns),
        "episode_ends": dict(Counter(episode.end for episode in episodes)),
    }


def _turns_without_sibling(groups: Sequence[RolloutGroup]) -> int | None:
    """Count the turns that one episode of its group alone reached; None where turns are not credited."""
    if all(rollout.turn_advantages is None for group in groups for rollout in group.rollouts):
        return None
    alone = 0
    for group in groups:
        is_in_step = group.dropped not in OUT_OF_THE_STEP
        compared = [rollout.trajectory for rollout in group.rollouts if rollout.reward is not None and is_in_step]
        turns = [1 if trajectory.environment is None else len(trajectory.turns) for trajectory in compared]
        second, most = sorted([0, 0, *turns])[-2:]
        alone += most - second
    return alone


def rollout_records(groups: Sequence[RolloutGroup]) -> list[dict[str, object]]:
    """One object per rollout for the run directory: whoever reads it needs nothing else."""
    return [rollout_record(group, sample) for group in groups for sample in range(len(group.rollouts))]


def rollout_record(group: RolloutGroup, sample: int) -> dict[str, object]:
    """Return the record of one rollout of a group; samples count from 0."""
    task, rollout = group.task, group.rollouts[sample]
    trajectory = rollout.trajectory
    return {
        "task_id": task.task_id,
        "sample": sample,
        "prompt": task.prompt,
        "answer": task.answer,
        "completion": trajectory.text,
        "prompt_tokens": len(task.prompt_ids),
        "completion_tokens": trajectory.num_sampled,
        "rewards": dict(rollout.rewards),
        "reward": rollout.reward,
        "notes": dict(rollout.notes),
        "advantage": rollout.advantage,
        "finish_reason": trajectory.finish_reason,
        "policy_version": trajectory.policy_version,
        "weight_changes": [asdict(change) for change in trajectory.weight_changes],
        "dropped": rollout.dropped or group.dropped,
        **(image_record(task) if sample == 0 else {}),
        **({} if trajectory.environment is None else {"episode": episode_record(trajectory, task)}),
        **({} if rollout.turn_advantages is None else {"turn_advantages": rollout.turn_advantages}),
    }


def image_record(task: Task) -> dict[str, object]:
    """Return the hash and place of each image of a prompt, under `images`; nothing for a prompt without any."""
    return {"images": [asdict(image) for image in task.media]} if task.media else {}


def episode_record(trajectory: Trajectory, task: Task) -> dict[str, object]:
    """Return the record of an episode.

    A turn has, beside the fields of `Turn`, the number of its `sampled` tokens, of those `observed` between it and the
    next, and as `prompt_ids` its whole context where the history was rewritten or did not begin with the task's prompt.
    """
    # no copies of messages, as asdict makes them: they would cost more than all else of a short episode
    turns = [{name: getattr(turn, name) for name in TURN_FIELDS} for turn in trajectory.turns]
    after, prompt_ids = iter(turns), None
    record = dict[str, Any]()
    for number, span in enumerate(trajectory.spans):
        if span.by == "prompt":
            prompt_ids = span.tokens if number or span.tokens != task.prompt_ids else None
        elif span.by == "policy":
            record = next(after)
            record |= {"sampled": len(span.tokens), "observed": 0, "prompt_ids": prompt_ids}
            prompt_ids = None
        else:
            record["observed"] = len(span.tokens)
    return {**{name: getattr(trajectory, name) for name in EPISODE_FIELDS}, "turns": turns}


def staleness_metrics(groups: Sequence[RolloutGroup], *, policy_version: int) -> dict[str, float | int]:
    """How many updates the weights that sampled a token lie behind those of this version, which it trains."""
    ages = [
        (policy_version - version, tokens)
        for group in groups
        for rollout in group.rollouts
        for version, tokens in rollout.trajectory.tokens_by_version
        if tokens  # an episode that could not begin is of no weights
    ]
    total, count = sum(age * tokens for age, tokens in ages), sum(tokens for _, tokens in ages)
    return {
        "staleness_mean": total / count if count else 0.0,
        "staleness_max": max((age for age, _ in ages), default=0),
    }
