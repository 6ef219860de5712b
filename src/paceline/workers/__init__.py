"""A run whose samplers and trainers are other processes: actors of Ray, or the ranks that a launcher started.

processes.py       where a run is: this process, a cluster, or the ranks of a launch
group.py           workers of one kind: asked together, given shares of the work, replaced when they are lost
worker.py          the two kinds of processes: a trainer's with updates and checkpoints, a sampler's with rewards
weight_sync.py     trained weights to the samplers, with fingerprints
schedule.py        which step is sampled next and from which weights, as arithmetic; the thread that keeps to it
backend.py         the backend as the loop sees it, and the two ways of weights that it knows
placement.py       what actors take of a cluster, whether they have room, and where they are
ray.py             workers that are actors of Ray
torchrun/          workers that are ranks of torchrun, accelerate or Slurm
"""
