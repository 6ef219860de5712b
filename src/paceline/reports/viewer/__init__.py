"""A run's completions on pages that a person searches: filters, groups side by side, tokens in colours.

parts.py       which files hold completions
columns.py     a file to columns
suspicion.py   which completions to look at first, by stated rules
index.py       all columns to one object
pieces.py      token ids to the texts of tokens
vocabulary.py  the tokenizer of a run
documents.py   all of these by name, as the page asks for them
pages.py       the page itself: its files in `page/`, and what it may do
serving.py     the page on this machine alone
exporting.py   the page as a directory that opens without a server
"""
