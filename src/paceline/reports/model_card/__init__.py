"""README.md of a trained model: what it was made from, towards what, what came of it, how to load it. Pure.

facts.py   what a card says, as records
page.py    the whole file: what the Hub reads, and what a person reads
"""
