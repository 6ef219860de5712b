"""A run whose processes were started by torchrun, accelerate or Slurm: ranks that all run the same command.

environment.py  which rank a process is, from its environment
secret.py       what only the ranks of a launch know
meeting.py      where ranks find each other: a process group, and lines between the first of them and every other
lifelines.py    who is still there: the end of one is the end of all, with the culprit named
roles.py        which ranks train, and which sample
team.py         the first rank asks them; they answer
seats.py        what a process is among them, and what it computes with
training.py     what a rank does that trains: updates, saves
sampling.py     what a rank does that only samples
working.py      what a rank does that does both
resident.py     a copy of the whole model to sample from, where training has it in parts
handing.py      the trained weights to the ranks that only sample
agreeing.py     whether ranks that should hold the same weights do
halves.py       both halves of all ranks as the loop sees them
placing.py      the way in, for the first rank and for the others

Nothing is imported here: `environment` can be had without torch.
"""
