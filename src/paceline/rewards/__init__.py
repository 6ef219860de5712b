"""Reward functions: from a task and a completion to a number.

function.py    the interface, the record of a built-in function, parameters in a name: `cosine(max_length=512)`, and
               the functions that a row asks for
builtin/       the built-in ones, each with its score table; resolving.py has their names
maths/         whether an answer equals the gold answer
programs/      tests of a row, and verdicts on what a program made of them
scoring/       a batch of completions to scores, the one place where a grader may fail
judges/        language models that grade by a rubric, behind an OpenAI chat interface
audit/         known cheats against reward functions
resolving.py   from names to functions: the table of the built-in ones, a user's code, judges
model.py       a sequence-classification model as a reward function (model_files.py: checks of its files, no torch)
startup.py     the test before the first step: rows that cannot be graded, and a trial of a user's functions
"""
