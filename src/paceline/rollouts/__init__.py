"""The producer half: takes tasks, asks an engine for completions, scores them, computes advantages, marks groups.

Knows no process, file or loop. Every completion comes out again, in a group, with its reward or the reason for none.

sampling.py    tasks to scored completions, one round
producer.py    rounds to a step's groups
sharing.py     the same by several processes
grouping.py    scores to groups with advantages
regrouping.py  the same again under other options
records.py     what a step writes down for readers
restoring.py   the same so that its groups can be made again
statistics.py  mean and deviation
"""

from paceline.rollouts.producer import Producer, RolloutBatch, Take
from paceline.rollouts.records import rollout_metrics, rollout_records, staleness_metrics
from paceline.rollouts.regrouping import regrouped
from paceline.rollouts.restoring import batch_about, restorable_records, restored_batch, restored_groups
from paceline.rollouts.sampling import Drawn, EngineSampler, Round, Sampler, merge_rounds
from paceline.rollouts.sharing import SamplingWorkers, SharedEngine, SharedSampler, even_shares

__all__ = [
    "Drawn",
    "EngineSampler",
    "Producer",
    "RolloutBatch",
    "Round",
    "Sampler",
    "SamplingWorkers",
    "SharedEngine",
    "SharedSampler",
    "Take",
    "batch_about",
    "even_shares",
    "merge_rounds",
    "regrouped",
    "restorable_records",
    "restored_batch",
    "restored_groups",
    "rollout_metrics",
    "rollout_records",
    "staleness_metrics",
]
