"""Attacks reward functions with known cheats and lists those that score, before a model finds them.

subjects.py     a task with the material for cheats; the completions of an attack
cheats.py       cheats that are whole completions, and cheats in the place of the answer
programs.py     cheats for rows with test cases
running.py      all attacks against one function: what they earn, what a full score is, which may score it; in words
"""
