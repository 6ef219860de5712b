"""Attacks reward functions with known cheats and says which ones score, before a model finds out.

subjects.py     a task with all that a cheat can be made of; from an attack to its completions
cheats.py       the cheats that are whole completions, and those that stand where the answer belongs
programs.py     the cheats for rows with test cases
measuring.py    completions to scores, and what a full score is
running.py      all attacks against one function, which may score, and the record of what came out
describing.py   that record for a person and for a program
"""
