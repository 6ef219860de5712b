"""A run whose processes were started by torchrun, accelerate or Slurm: ranks that all run the same command.

environment.py  rank and size of a process, from its environment
rendezvous.py   where ranks find each other: a store, a secret, and channels between the first rank and every other
heartbeats.py   liveness: the end of one rank is the end of all, with the culprit named
rank.py         what a rank is and does, and how the first one calls it
launch.py       ranks as one program sees them: they meet, and do together what the first one leads

Nothing is imported here: `environment` can be had without torch.
"""
