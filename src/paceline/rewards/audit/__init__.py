"""Attacks reward functions with known cheats and says which ones score, before a model finds out.

subjects.py     a task with all that a cheat can be made of; from an attack to its completions
cheats.py       the cheats that are whole completions, and those that stand where the answer belongs
programs.py     the cheats for rows with test cases
running.py      all attacks against one function: what they earn, what a full score is, and which may score it
describing.py   that record for a person and for a program
"""
