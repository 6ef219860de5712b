"""Names and units of a run's numbers, and conclusions from them. Pure arithmetic on floats.

definitions.py  every metric with its unit and meaning
statistics.py   mean, variance and standard deviation
intervals.py    confidence intervals of shares and means
comparisons.py  differences between evaluations, paired by task
pass_at_k.py    the chance that one of k completions is right
alarms.py       rules that warn when a number leaves its range
learning.py     whether a run has learnt, and by how much
"""
