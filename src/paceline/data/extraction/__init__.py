"""Extraction of answers and tool calls from text.

Every function here is pure and linear in the length of the text, whatever the text holds.

thinking.py        what is thought and what is said
nouns.py           things that are counted, which say nothing of their number
wording.py         words around a number: which lead to it, which end a statement, which change its value
answers.py         `<answer>...</answer>`, boxes, `####`, and the first of these that a text has
calls.py           tool calls, in the form of each family of models
call_marks.py      where calls begin and end, in each form
call_records.py    tool calls in JSON
call_arguments.py  types of arguments, by the schemas of tools
"""
