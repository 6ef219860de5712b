"""Names and units of a run's numbers, and conclusions from them. Pure arithmetic on floats.

definitions.py  every metric with its unit and meaning
statistics.py   mean, variance and standard deviation; avg@k, pass@k, maj@k
intervals.py    confidence intervals of shares and means
comparisons.py  differences between evaluations, paired by task
alarms.py       rules that warn when a number leaves its range
learning.py     whether a run has learnt, and by how much
"""
