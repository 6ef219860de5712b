"""A configuration to all of a run that needs no weights, and so to everything that can be refused without them.

Nothing here imports what computes a model, which would take longer than all of this: transformers' tokenizers and
configurations are all that is loaded of it, and a reward model where there is one.

overrides.py        objects of a program's own in the place of what the configuration names
run_inputs.py     what comes of it
preparation.py  tokenizer, tasks, self-test, held-out tasks, steps, one after the other
functions.py    the reward functions
held_out.py     held-out tasks and accuracy from the options
samplers.py     the sampler around an engine
evaluators.py    what can be measured between two steps
notices.py      what a person should know before any number is read
"""
