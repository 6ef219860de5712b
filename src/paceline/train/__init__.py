"""The loop on one machine, and what lies around it.

assembly.py   a prepared run to its parts
consumer.py   the consumer half: how a step updates the policy, what is saved and exported
feed.py       which tasks a step takes
replaying.py  a step again under another objective
exporting.py  a checkpoint to the directory that a finished run has
card.py       the card beside that model, from the run's records
rates.py      learning rates that a torch scheduler sets
observing.py  who watches a run and what they may ask for
produced.py   what the producer half hands over
journal.py    rollouts on their way to disk, and those that are there already
halves.py     both halves of a step behind one border, and the two in this process
guards.py     what is skipped, told or stopped when a step's numbers go wrong
loop.py       the algorithm: prompts, completions, rewards, update
records.py    what a step writes down and what a person reads
identity.py   what a run is, held to when it is gone on with
footprint.py  what models will take on a disk
memory.py     what the options about memory come to
lengths.py    how long a sequence can be, and what is fixed by that
vllm.py       what vLLM is started with
reporting.py  the page of a run that still runs
session.py    run directory, checkpoints, trackers, final model: the command line's way into the loop
"""

from paceline.train.assembly import Parts, assemble, make_engine
from paceline.train.card import card_facts, write_card
from paceline.train.consumer import ConsumerHalf, make_consumer, updates_per_step
from paceline.train.exporting import export_checkpoint
from paceline.train.feed import Feed, prompts_of_step
from paceline.train.footprint import Footprint, refuse_no_room
from paceline.train.halves import (
    Halves,
    OneProcess,
    Place,
    Placed,
    in_this_process,
    make_feed,
)
from paceline.train.journal import Journal
from paceline.train.loop import Run, evaluate, run_steps, save, save_last, tell
from paceline.train.observing import Observer, Wishes
from paceline.train.produced import SHARED, Handover, Produced
from paceline.train.records import consumer_sentences, engine_sentences, of_machine, run_sentences
from paceline.train.replaying import Replay, replay
from paceline.train.session import (
    directory_sentences,
    finish,
    last_checkpoint,
    make_run,
    run_trackers,
    set_later_aside,
    train,
)

__all__ = [
    "train",
    "Parts",
    "assemble",
    "ConsumerHalf",
    "Footprint",
    "refuse_no_room",
    "make_consumer",
    "updates_per_step",
    "make_engine",
    "Feed",
    "prompts_of_step",
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
    "set_later_aside",
    "directory_sentences",
    "last_checkpoint",
]
