"""A run's completions on pages that a person searches: filters, groups side by side, tokens in colours.

columns.py    which files hold completions; a file to columns; which completions to look at first, by stated rules
documents.py  all of these by name, as the page asks for them
serving.py    the page: its files in `page/`; on this machine alone, or as a directory that opens without a server
"""
