"""A training loop of one's own: sample, compare by a rule of one's own, update.

    python examples/own_loop.py

The advantage of a completion is its reward minus the mean of the others of its prompt, and prompts that the model
already solves every time are left out. The embedded model learns to add, in half a minute on a CPU.
"""

from dataclasses import replace
from statistics import mean

import paceline
from paceline.types import RolloutGroup


def leave_one_out(group: RolloutGroup) -> RolloutGroup:
    """Compare each completion with the mean of the others of its prompt."""
    rewards = [rollout.reward or 0.0 for rollout in group.rollouts]
    others = [mean(rewards[:at] + rewards[at + 1 :]) for at in range(len(rewards))]
    rollouts = zip(group.rollouts, rewards, others, strict=True)
    return replace(group, rollouts=tuple(replace(one, advantage=reward - other) for one, reward, other in rollouts))


def main(**options: object) -> paceline.TrainedRun:
    """Train the embedded model; `options` are those of the command line."""
    with paceline.Session(model="embedded", dataset="arithmetic", **options) as session:
        for step in session:
            groups = [leave_one_out(group) for group in session.sample()]
            stats = session.update(group for group in groups if any(one.advantage for one in group.rollouts))
            print(f"step {step}: gradient norm {stats.grad_norm:.3f}")
    return session.run


if __name__ == "__main__":
    print(main().evals[-1].accuracy)
