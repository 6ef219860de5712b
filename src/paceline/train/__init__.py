"""The loop on one machine, and what lies around it.

assembly.py   a configuration, or objects in its place, to the parts of a run: first all that needs no weights
held_out.py   held-out tasks and accuracy from the options
measuring.py  what can be measured between two steps
feed.py       which tasks a step takes
rates.py      learning rates that a torch scheduler sets
notices.py    what a person should know before any number is read
observing.py  who watches a run and what they may ask for
halves.py     both halves of a step behind one border, and the two in this process
loop.py       the algorithm: prompts, completions, rewards, update
records.py    what a step writes down and what a person reads
session.py    run directory, checkpoints, trackers, final model: the command line's way into the loop
"""

from paceline.train.assembly import Given, Parts, Prepared, assemble, make_engine, prepare, restore, updates_per_step
from paceline.train.feed import Feed, prompts_of_step
from paceline.train.halves import Halves, OneProcess, Place, Placed, Produced, in_this_process, make_feed
from paceline.train.held_out import has_held_out, make_evaluator
from paceline.train.loop import Run, evaluate, run_steps, save, tell
from paceline.train.measuring import (
    Measurement,
    Meter,
    RewardMeasurement,
    reward_meter,
    training_producer,
    training_sampler,
)
from paceline.train.observing import Observer, Wishes
from paceline.train.records import of_machine, path_sentences, run_sentences
from paceline.train.session import directory_sentences, finish, make_run, run_trackers, train

__all__ = [
    "train",
    "Given",
    "Prepared",
    "Parts",
    "prepare",
    "assemble",
    "restore",
    "updates_per_step",
    "make_engine",
    "make_evaluator",
    "has_held_out",
    "Feed",
    "prompts_of_step",
    "training_sampler",
    "training_producer",
    "Meter",
    "Measurement",
    "RewardMeasurement",
    "reward_meter",
    "Observer",
    "Wishes",
    "Halves",
    "OneProcess",
    "Place",
    "in_this_process",
    "Placed",
    "Produced",
    "Run",
    "make_run",
    "make_feed",
    "run_steps",
    "evaluate",
    "save",
    "tell",
    "path_sentences",
    "run_sentences",
    "of_machine",
    "finish",
    "run_trackers",
    "directory_sentences",
]
