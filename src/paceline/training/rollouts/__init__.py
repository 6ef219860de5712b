"""The sampler: takes tasks, asks an engine for completions, scores them, computes advantages, marks groups.

Knows no process, file or loop. Every completion comes out again, in a group, with its reward or the reason for none.

completing.py  tasks to completions: in one turn, or in conversations with environments
contexts.py   what the model reads before a turn, and how the turn is read
conversations.py  what conversations are held by: environments, limits, tokens between turns
episodes.py   an episode under way, and the completion that it becomes
rounds.py     tasks to scored completions, one round
sampler.py    rounds to a step's groups
grouping.py   scores to groups with advantages
records.py    what a step writes down for readers
restoring.py  the same with all that is needed to make its groups again, and the groups from it
"""
