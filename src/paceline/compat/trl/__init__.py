"""TRL's Python API around the same sampler, trainer and loop.

grpo_fields.py      a row for each field of GRPOConfig that TRL or Paceline adds: default, help, meaning
training_fields.py  a row for each field that transformers has
fields.py           reads the rows: refuses, converts, says what has no effect; options by the names of fields
batches.py          batches counted in completions, durations counted in updates, as steps; both counts for a person
translation.py      a GRPOConfig with its keywords to a Config, the objective among them
config.py           GRPOConfig: these fields around transformers' TrainingArguments; the process and its layout on ranks
datasets.py         datasets as TRL takes them, to tasks; row loaders for scripts
rewards.py          reward functions of TRL's kind as ours
images.py           images of datasets: how they are read, and what cannot be done with them
environments.py     tools and environments as TRL takes them, as ours
slots.py            objects of environments, each with a thread, used by one episode after another
rollouts.py         a rollout_func in place of the engine
arguments.py        the trainer's arguments: read, and refused before anything is loaded
notes.py            sentences before the first step; the learning rate as transformers schedules it
building.py         a run from the trainer's arguments
generate.py         sampling by a program: a generate on its model, and TRL's `_generate`
history.py          metrics under TRL's names, for the log, a person and the trackers
surface.py          names of TRL's trainer: what a program may override, set, read, call or change late
scripts.py          what scripts ask of a trainer beside training; accelerate's interface; calls of all ranks
checkpoints.py      the files of a run: its start, transformers' names of checkpoints, the card, the upload
observer.py         a run around the loop, which the trainer observes: callbacks, best model, last numbers
trainer.py          GRPOTrainer
"""
