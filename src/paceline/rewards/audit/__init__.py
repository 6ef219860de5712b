"""Attacks reward functions with known cheats and says which ones score, before a model finds out.

subjects.py      a task with all that a cheat can be made of
wrappings.py     the forms in which an answer can be handed in
attempts.py      the record of an attack, and from a subject to completions
completions.py   the cheats that are whole completions
answers.py       the cheats that stand where the answer belongs
programs.py      the cheats for rows with test cases
grading.py       completions to scores
measuring.py     what a full score is
running.py       all attacks against one function, and which may score
findings.py      the record of what came out
describing.py    that record for a person and for a program
"""
