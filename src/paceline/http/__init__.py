"""HTTP, once: one server for endpoints, `paceline serve` and the viewer, and one client for judges and services.

server.py   who may ask, within which bounds, and responses
events.py   responses whose events are still being made, and refusals
client.py   one call with its deadline, past proxies where they cannot help
"""
