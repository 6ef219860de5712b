"""Requests and responses of OpenAI's interface: one wire for agents in training and for `paceline serve`.

requests.py    what a request may hold, and what is refused
endpoint.py    the HTTP server: requests that wait for their responses
responses.py   turns as bodies and events of responses
"""
