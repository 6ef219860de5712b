"""Requests and responses of OpenAI's interface: one wire for agents in training and for `paceline serve`.

requests.py    what a request may hold, and what is refused
responses.py   turns as bodies and events of responses
"""
