"""A run whose processes were started by torchrun, accelerate or Slurm: ranks that all run the same command.

environment.py  which rank a process is, from its environment
meeting.py      where ranks find each other: a process group, and lines between the first of them and every other
lifelines.py    who is still there: the end of one is the end of all, with the culprit named
team.py         the first rank asks all of them; they answer
working.py      what every rank does: samples, trains, saves
resident.py     a copy of the whole model to sample from, where training has it in parts
halves.py       both halves of all ranks as the loop sees them
placing.py      the way in, for the first rank and for the others

Nothing is imported here: `environment` can be had without torch.
"""
