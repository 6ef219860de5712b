"""The Python door: TRL's names for the same sampler, trainer and loop.

config.py       GRPOConfig: every field with its default
grpo_fields.py  its fields that TRL and Paceline add
training_fields.py  its fields that transformers has, for who does not wait for transformers
fields.py       which fields become options, which the trainer reads
refused.py      which are refused, and which are accepted without effect
choices.py      fields that are one of a few words
batches.py      batches counted in completions
lengths.py      lengths counted in updates, as steps
numbers.py      text that says a number
schedule.py     the learning rate as transformers schedules it
objective.py    the fields of the objective as options
keywords.py     fields that hold keywords for other libraries
translation.py  a GRPOConfig to a Config
datasets.py     datasets as TRL takes them, to tasks
stand_ins.py    what scripts expect of a trainer: row loaders, an accelerator
rewards.py      reward functions of TRL's kind as ours
best.py         the number that chooses the best model
building.py     arguments to the parts of a run; what they alone show to be refused
callbacks.py    transformers' callbacks as an observer of the loop
history.py      numbers under TRL's names
checkpoints.py  where a run begins, and checkpoints under the names that transformers gives them
running.py      a run around the loop, and TRL's counts beside ours
display.py      the log, completions and metrics for a person
publishing.py   the model's card and the Hub
changes.py      arguments that were changed after a trainer was made from them
overriding.py   what a subclass or a callback may override
trainer.py      GRPOTrainer
"""
