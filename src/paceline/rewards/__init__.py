"""Reward functions: from a task and a completion to a number.

function.py    what a reward function is, and what a built-in one is beyond that
builtin/       the built-in ones, each with its score table; resolving.py has their names
maths/         whether an answer equals the gold answer
programs/      tests of a row, and verdicts on what a program made of them
scoring/       a batch of completions to scores, the one place where a grader may fail
judges/        language models that grade by a rubric, behind an OpenAI chat interface
audit/         known cheats against reward functions
resolving.py   from names to functions, and their system message (parameters.py: `cosine(max_length=512)`)
model.py       a sequence-classification model as a reward function (model_files.py: what its files tell without torch)
selecting.py   which functions a row is for, and what a run's functions read in a completion
startup.py     the test before the first step: what functions ask of rows, and a trial of your own
"""
