"""The run directory, the public file interface: configuration, metrics, evaluations and every rollout.

    config.yaml            the resolved configuration, under a head that says who wrote it
    identity.json          options, data, model and tokenizer as the run has them, and what changed after which step
    metrics.jsonl          one JSON object per optimiser step
    evals.jsonl            one JSON object per evaluation
    journal.jsonl          one JSON object per step whose rollouts are on disk, with their checksum
    rollouts/step-000001.jsonl        one JSON object per rollout of a step
    evals/SET-step-000000.jsonl       one JSON object per held-out completion (SET percent-encoded)
    kept/step-000001.jsonl            the rollouts of a step that is to be looked at, as they were
    tokens/step-000001.jsonl          what a replay says of a step's tokens, for whoever looks at them
    stuck/TIME/            where every thread stood when nothing happened any more
    summary.json           before, after and the time split, written when the run ends
    timeline.json          with `profile`: what each process did when, as trace events
    aside/after-step-000001/          what followed an older checkpoint that the run went on from: a run of its own
    .lock                  process and host that write here now, or did last: the mark of a run directory

directory.py  the directory as a whole: making, opening, its lock, what is written and read
aside.py      what is kept of later steps
journal.py    which steps' rollouts are committed, and whether they are whole
places.py     what a directory is before a run takes it
lock.py       one writer at a time, and the mark
files.py      lines and whole files on disk
"""

from paceline.rundir.aside import copy_later
from paceline.rundir.directory import RunDir
from paceline.rundir.files import Record, json_line, write_or_explain
from paceline.rundir.journal import Committed
from paceline.rundir.places import holds_work, is_run, refuse_existing_run, refuse_foreign_files, refuse_no_run

__all__ = [
    "Committed",
    "Record",
    "RunDir",
    "copy_later",
    "holds_work",
    "is_run",
    "json_line",
    "refuse_existing_run",
    "refuse_foreign_files",
    "refuse_no_run",
    "write_or_explain",
]
