"""The Python door: TRL's names for the same halves and the same loop.

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
plan.py         TRL's counts beside ours
datasets.py     datasets as TRL takes them, to tasks
loaders.py      loaders of rows, for programs that look at them
rewards.py      reward functions of TRL's kind as ours
adapters.py     what a peft_config alone shows to be refused
best.py         the number that chooses the best model
building.py     arguments to the parts of a run
callbacks.py    transformers' callbacks as an observer of the loop
history.py      numbers under TRL's names
completions.py  a step's completions as a table
starting.py     where a run begins: an empty place, or a checkpoint
running.py      a run around the loop
links.py        checkpoints under the names that transformers gives them
printing.py     the log on screen
results.py      numbers for a person and for a file
publishing.py   the model's card and the Hub
changes.py      arguments that were changed after a trainer was made from them
overriding.py   what a subclass or a callback may override
process.py      what scripts ask an accelerator for
trainer.py      GRPOTrainer
"""
