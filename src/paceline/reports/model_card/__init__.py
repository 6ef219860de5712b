"""README.md of a trained model: what it was made from, towards what, what came of it, how to load it. Pure.

facts.py    what a card says, as records
header.py   what the Hub reads: YAML between two lines of dashes
loading.py  the program that loads the model and asks it something
papers.py   the paper of the objective
page.py     what a person reads, and the whole file
"""
