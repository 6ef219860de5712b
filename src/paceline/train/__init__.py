"""The loop on one machine.

assembly.py  a configuration to the parts of a run: first all that needs no weights
loop.py      the algorithm: prompts, completions, rewards, update
records.py   what a step writes down and what a person reads before the first
"""

from paceline.train.assembly import has_held_out, make_engine, make_evaluator, prepare
from paceline.train.loop import train

__all__ = ["train", "prepare", "make_engine", "make_evaluator", "has_held_out"]
