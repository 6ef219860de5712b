"""A run whose processes were started by torchrun, accelerate or Slurm: ranks that all run the same command.

environment.py   rank and size of a process, from its environment
secret.py        the shared secret of a launch
rendezvous.py    where ranks find each other: a store, and channels between the first rank and every other
heartbeats.py    liveness: the end of one rank is the end of all, with the culprit named
roles.py         which ranks train, and which sample
rank_group.py    calls from the first rank to the others, and their answers
rank_context.py  what a process is among the ranks, and what it computes with
training.py      a rank that trains: updates, saves
sampling.py      a rank that only samples
colocated.py     a rank that does both
broadcast.py     trained weights to the ranks that only sample
replicas.py      comparison of weights that ranks hold copies of
backend.py       the backend of all ranks, as the loop on the first one sees it
launch.py        the entry points of the first rank and of the others

Nothing is imported here: `environment` can be had without torch.
"""
