"""The loop on one machine, and what lies around it.

given.py      objects of a program's own in the place of what the configuration names
assembly.py   a configuration to the parts of a run: first all that needs no weights
consumer.py   the consumer half: how a step updates the policy, what is saved and exported
held_out.py   held-out tasks and accuracy from the options
measuring.py  what can be measured between two steps
feed.py       which tasks a step takes
replaying.py  a step again under another objective
exporting.py  a checkpoint to the directory that a finished run has
card.py       the card beside that model, from the run's records
rates.py      learning rates that a torch scheduler sets
notices.py    what a person should know before any number is read
observing.py  who watches a run and what they may ask for
produced.py   what the producer half hands over
journal.py    rollouts on their way to disk, and those that are there already
halves.py     both halves of a step behind one border, and the two in this process
guards.py     what is skipped, told or stopped when a step's numbers go wrong
loop.py       the algorithm: prompts, completions, rewards, update
records.py    what a step writes down and what a person reads
identity.py   what a run is, held to when it is gone on with
session.py    run directory, checkpoints, trackers, final model: the command line's way into the loop
"""

from paceline.train.assembly import (
    Parts,
    Prepared,
    assemble,
    configured_functions,
    make_engine,
    prepare,
    with_reward_models,
)
from paceline.train.card import card_facts, write_card
from paceline.train.consumer import ConsumerHalf, Extent, make_consumer, updates_per_step
from paceline.train.exporting import export_checkpoint
from paceline.train.feed import Feed, prompts_of_step
from paceline.train.footprint import Footprint, refuse_no_room
from paceline.train.given import Given
from paceline.train.halves import (
    Halves,
    OneProcess,
    Place,
    Placed,
    in_this_process,
    make_feed,
)
from paceline.train.held_out import has_held_out, make_evaluators
from paceline.train.journal import Journal
from paceline.train.loop import Run, evaluate, run_steps, save, save_last, tell
from paceline.train.measuring import (
    Measurement,
    Meter,
    RewardMeasurement,
    reward_meter,
    training_producer,
    training_sampler,
)
from paceline.train.observing import Observer, Wishes
from paceline.train.produced import SHARED, Handover, Produced
from paceline.train.records import consumer_sentences, engine_sentences, of_machine, run_sentences
from paceline.train.replaying import Replay, replay
from paceline.train.session import directory_sentences, finish, last_checkpoint, make_run, run_trackers, train

__all__ = [
    "train",
    "Given",
    "Prepared",
    "Parts",
    "prepare",
    "configured_functions",
    "with_reward_models",
    "assemble",
    "ConsumerHalf",
    "Footprint",
    "refuse_no_room",
    "Extent",
    "make_consumer",
    "updates_per_step",
    "make_engine",
    "make_evaluators",
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
    "Handover",
    "SHARED",
    "Journal",
    "Run",
    "make_run",
    "make_feed",
    "run_steps",
    "evaluate",
    "save",
    "save_last",
    "tell",
    "engine_sentences",
    "consumer_sentences",
    "run_sentences",
    "of_machine",
    "finish",
    "card_facts",
    "write_card",
    "export_checkpoint",
    "Replay",
    "replay",
    "run_trackers",
    "directory_sentences",
    "last_checkpoint",
]
