"""TRL's Python API around the same sampler, trainer and loop.

config.py       GRPOConfig: every field with its default
grpo_fields.py  its fields that TRL and Paceline add
training_fields.py  its fields that transformers has, without loading transformers
fields.py       fields that become options, and fields that the trainer reads
refused.py      fields that are refused, and fields accepted without effect
choices.py      fields with a fixed set of words
batches.py      batches counted in completions
lengths.py      lengths counted in updates, as steps
numbers.py      numbers given as text
schedule.py     the learning rate as transformers schedules it
objective.py    the fields of the objective as options
keywords.py     fields that hold keywords for other libraries
translation.py  a GRPOConfig to a Config
datasets.py     datasets as TRL takes them, to tasks
stand_ins.py    what scripts expect of a trainer: row loaders, an accelerator
rewards.py      reward functions of TRL's kind as ours
best.py         the metric that chooses the best model
building.py     a run from the trainer's arguments, with every early refusal
callbacks.py    transformers' callbacks as an observer of the loop
history.py      metrics under TRL's names
checkpoints.py  the start of a run, and transformers' names of checkpoints
running.py      a run around the loop, and TRL's counts beside ours
display.py      the log, completions and metrics for a person
publishing.py   the model's card and the Hub
changes.py      arguments changed after a trainer was built
overriding.py   checks of what a subclass or a callback overrides
trainer.py      GRPOTrainer
"""
