"""Extraction of answers from text: tags, boxes, `####`, code fences and tool calls.

Every function here is pure and linear in the length of the text, whatever the text holds.

thinking.py  what is thought and what is said
answers.py   `<answer>...</answer>`, boxes, `####`, and the first of these that a text has
fences.py    programs between code fences
actions.py   `Action:` and `Action Input:`, and `<tool_call>...</tool_call>`
"""
