"""Extraction of answers from text: tags, boxes, and what stands behind `####`.

Every function here is pure and linear in the length of the text, whatever the text holds.

thinking.py  what is thought and what is said
answers.py   `<answer>...</answer>`, boxes, `####`, and the first of these that a text has
"""
