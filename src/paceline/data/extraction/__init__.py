"""Extraction of answers from text.

Every function here is pure and linear in the length of the text, whatever the text holds.

wording.py   words around a number: which lead to it, which end a statement, which change its value, things counted
answers.py   `<answer>...</answer>`, boxes, `####`, and the first of these that a text has
"""
