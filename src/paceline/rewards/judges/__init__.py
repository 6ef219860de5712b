"""Judges: language models behind an OpenAI chat interface that grade completions by a rubric.

prompts.py     what a judge reads, with completions in blocks that they cannot end, and how its verdict is read
settings.py    parameters, the budget, what was spent, and verdicts on disk, so that no request is repeated
own_service.py  a model that the run serves itself: a child process that ends with it
client.py      calls of the service: tries, deadlines, the key
judge.py       completions to requests and verdicts to rewards: alone, in pairs, by rank
"""
