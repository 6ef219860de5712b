"""Built-in tools and environments; `environments/parts.py` gives them their names.

calculator.py  arithmetic, exact where it can be
python.py      Python in the sandbox, with variables that stay for the episode
search.py      passages of the documents in a folder
mcp.py         tools of a server that speaks the Model Context Protocol
games.py       two games: a number to guess, and a heap of stones against an opponent
"""
