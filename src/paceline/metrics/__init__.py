"""Names and units of a run's numbers, and conclusions from them. Pure arithmetic on floats.

definitions.py  every metric with its unit and meaning
statistics.py   mean, variance, confidence intervals; avg@k, pass@k, maj@k
comparisons.py  differences between evaluations, paired by task
alarms.py       rules that warn when a number leaves its range
learning.py     whether a run has learnt, and by how much
"""
