"""The sampler: takes tasks, asks an engine for completions, scores them, computes advantages, marks groups.

Knows no process, file or loop. Every completion comes out again, in a group, with its reward or the reason for none.

rounds.py     tasks to scored trajectories, one round
sampler.py    tasks in the data order, and rounds to a step's groups
grouping.py   scores to groups with advantages
records.py    what a step writes down for readers
restoring.py  the same with all that is needed to make its groups again, and the groups from it
"""
