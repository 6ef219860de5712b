"""The producer half: takes tasks, asks an engine for completions, scores them, computes advantages, marks groups.

Knows no process, file or loop. Every completion comes out again, in a group, with its reward or the reason for none.

producer.py    sampling, scoring, refilling
grouping.py    scores to groups with advantages
records.py     what a step writes down
statistics.py  mean and deviation
"""

from paceline.rollouts.producer import Producer, RolloutBatch, Take
from paceline.rollouts.records import rollout_metrics, rollout_records

__all__ = ["Producer", "RolloutBatch", "Take", "rollout_metrics", "rollout_records"]
