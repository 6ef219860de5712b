"""Setup: everything of a run that needs no weights, so that whatever can be refused is refused first.

Nothing here imports what computes a model, which would take longer than all of this: transformers' tokenizers and
configurations are all that is loaded of it, and a reward model where there is one.

overrides.py    a program's own objects, each instead of what the configuration names
run_inputs.py   what setup gives: tokenizer, functions, tasks, evaluators, plan
preparation.py  tokenizer, tasks, self-test, held-out tasks, steps, one after the other
functions.py    the reward functions
held_out.py     held-out tasks and accuracy from the options
samplers.py     the sampler around an engine
evaluators.py   evaluators of held-out tasks, run between two steps
notices.py      what a person should know before any number is read
"""
