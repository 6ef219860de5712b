"""Messages to tokens and back: the one place that knows what a chat is.

messages.py        messages and tools in one form, whoever writes them
templates.py       what a chat template writes of them, and what it leaves out
tools.py           schemas of tools, from functions; tools where a template has no words for them
thinking.py        what is thought and what is said
calls.py           tool calls in a model's text, in the form of each family
call_marks.py      where calls begin and end, in each form
call_records.py    tool calls in JSON; types of arguments, by the schemas of tools
escaping.py        what an environment says, read as text whatever it holds
frames.py          what a template writes between turns, and the proofs that it may be appended
requests.py        what a model is asked for, the context that it reads for it, and the turn that it samples
turns.py           tokens between the turns of a conversation
"""
