"""Attacks reward functions with known cheats and says which ones score, before a model finds out.

subjects.py      a task with all that a cheat can be made of
wrappings.py     the forms in which an answer can be handed in
attempts.py      the record of an attack, and from a subject to completions
completions.py   the cheats that are whole completions
answers.py       the cheats that stand where the answer belongs
programs.py      the cheats for rows with test cases
expectations.py  which built-in functions may score for what, and why
grading.py       completions to scores
measuring.py     what a full score is
running.py       all attacks against one function
findings.py      the record of what came out
describing.py    that record for a person and for a program
"""

from paceline.audit.answers import ANSWER_ATTACKS
from paceline.audit.attempts import Attack
from paceline.audit.completions import COMPLETION_ATTACKS
from paceline.audit.describing import print_audit, record
from paceline.audit.findings import Audit, Finding, Honest
from paceline.audit.programs import PROGRAM_ATTACKS
from paceline.audit.running import ATTACKS, audit
from paceline.audit.subjects import plain_tasks

__all__ = [
    "audit",
    "Audit",
    "Finding",
    "Honest",
    "Attack",
    "ATTACKS",
    "COMPLETION_ATTACKS",
    "ANSWER_ATTACKS",
    "PROGRAM_ATTACKS",
    "plain_tasks",
    "print_audit",
    "record",
]
