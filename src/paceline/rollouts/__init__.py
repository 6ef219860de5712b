"""The producer half: takes tasks, asks an engine for completions, scores them, computes advantages, marks groups.

Knows no process, file or loop. Every completion comes out again, in a group, with its reward or the reason for none.

sampling.py    tasks to scored completions, one round
producer.py    rounds to a step's groups
sharing.py     the same by several processes
grouping.py    scores to groups with advantages
regrouping.py  the same again under other options
records.py     what a step writes down for readers
lines.py       the same with all that is needed to make its groups again
restoring.py   the groups from those lines
statistics.py  mean and deviation
"""

from paceline.rollouts.lines import packed_floats, restorable_lines
from paceline.rollouts.producer import Producer, RolloutBatch, Take
from paceline.rollouts.records import rollout_metrics, rollout_records, staleness_metrics
from paceline.rollouts.regrouping import regrouped
from paceline.rollouts.restoring import batch_about, restored_batch, restored_groups
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
    "packed_floats",
    "restorable_lines",
    "restored_batch",
    "restored_groups",
    "rollout_metrics",
    "rollout_records",
    "staleness_metrics",
]
