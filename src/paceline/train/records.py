"""What a step writes down, and what a person should know before the first one."""

from paceline.checkpoint import Checkpoint, Progress
from paceline.data import length_histogram
from paceline.learner import UpdateStats
from paceline.metrics import check_record
from paceline.plan import describe
from paceline.rollouts import RolloutBatch, rollout_metrics
from paceline.train.assembly import Parts, Prepared


def step_record(
    progress: Progress,
    batch: RolloutBatch,
    stats: UpdateStats,
    *,
    num_tasks: int,
    learning_rate: float,
    clock: dict[str, float],
) -> dict[str, object]:
    """The step's line in `metrics.jsonl`; names and units are those of `metrics.METRICS`."""
    updates = {name: getattr(stats, name) for name in stats.__slots__}
    if stats.kl is None:
        del updates["kl"]
    record = {
        "step": progress.step,
        "epoch": progress.position / num_tasks,
        "policy_version": progress.policy_version,
        "learning_rate": learning_rate,
        **rollout_metrics(batch),
        **updates,
        "clock": clock,
    }
    check_record(record)
    return record


def step_clock(batch: RolloutBatch, *, update_seconds: float, total: float) -> dict[str, float]:
    """Seconds of a step by phase; what is left over is bookkeeping."""
    phases = {"generate": batch.generate_seconds, "reward": batch.reward_seconds, "update": update_seconds}
    tokens = sum(len(rollout.completion.token_ids) for group in batch.groups for rollout in group.rollouts)
    return phases | {
        "other": total - sum(phases.values()),
        "total": total,
        "tokens_per_second": tokens / batch.generate_seconds,
    }


def opening_sentences(prepared: Prepared, parts: Parts, checkpoint: Checkpoint | None) -> list[str]:
    """The batch plan, prompt lengths, what was dropped, which paths the model takes, where the run goes on."""
    tasks = prepared.tasks
    lines = [describe(prepared.plan), length_histogram(tasks.lengths)]
    if tasks.dropped or tasks.truncated:
        lines.append(f"prompts above --max-prompt-length: {tasks.dropped} dropped, {tasks.truncated} truncated")
    if prepared.unverified:
        lines.append(f"gold answers that do not score full: {', '.join(prepared.unverified)}; they cannot be learned")
    if parts.engine.path == "plain":
        lines.append(f"engine: plain path, slower ({parts.engine.path_reason})")
    if parts.learner.forward.kind == "padded":
        lines.append(f"learner: padded rows, slower ({parts.learner.forward.reason})")
    sampling = parts.producer.sampling
    if sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0:
        lines.append(
            "top-p, top-k and min-p are not replayed in the trainer: completions come from a narrower distribution "
            "than the one that is trained, and logprob_mismatch reports by how much"
        )
    if prepared.evaluator is None:
        lines.append("no held-out tasks: give --eval-dataset to see accuracy before and after")
    if checkpoint is not None:
        lines.append(f"going on after step {checkpoint.progress.step} from {checkpoint.path}")
    return lines
