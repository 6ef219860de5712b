"""The run directory, the public file interface: configuration, metrics, evaluations and every rollout.

    config.yaml            the resolved configuration; its presence makes a directory a run directory
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
    .lock                  process and host that write here now

directory.py  the directory as a whole: making, opening, its lock, what is written and read
journal.py    which steps' rollouts are committed, and whether they are whole
files.py      lines and whole files on disk
"""

from paceline.rundir.directory import RunDir, holds_work, refuse_existing_run
from paceline.rundir.files import Record, json_line, write_or_explain
from paceline.rundir.journal import Committed

__all__ = ["Committed", "Record", "RunDir", "holds_work", "json_line", "refuse_existing_run", "write_or_explain"]
