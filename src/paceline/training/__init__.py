"""The loop on one machine, and everything around it.

loop.py             the algorithm: sample, compare, update, record; one step, for a loop of a program's own too
run.py              a run under way: what happens around and between its steps, and when it is stopped
session.py          around the loop, for every entry point: run directory, start point, watchdog, signals, final model
setup/              everything of a run that needs no weights
rollouts/           the sampler: tasks to scored completions in groups
learner/            the trainer: groups to new weights
plan/               what a configuration amounts to before anything is loaded
backend.py          sampler and trainer behind one interface, and the backend with both in this process
assembly.py         the engine around a policy's weights
trainer.py          policy, optimiser and learning rate: update, save, export
rollout_journal.py  rollouts committed to disk, and read back after a crash
evaluation.py       accuracy on held-out tasks
measuring.py        the same outside a run
records.py          what a step writes down
identity.py         what a run is, compared when it is resumed
observing.py        the command line's observer of a run, and the page of a running run
replaying.py        a step again under another objective
card.py             the card beside that model, from the run's records
memory.py           what the options about memory come to
"""
