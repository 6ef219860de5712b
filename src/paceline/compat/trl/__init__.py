"""TRL's Python API around the same sampler, trainer and loop.

grpo_fields.py      a row for each field of GRPOConfig that TRL or Paceline adds: default, help, meaning
training_fields.py  a row for each field that transformers has
former.py           arguments and fields of earlier versions, with what is written today
fields.py           reads the rows: refuses, converts, says what has no effect
config.py           GRPOConfig: these fields around transformers' TrainingArguments
batches.py          batches counted in completions, durations counted in updates, as steps; both counts for a person
objective.py        the fields of the objective as options
schedule.py         the learning rate's schedule as one option
layout.py           how a model lies on ranks: DeepSpeed's, FSDP's and accelerate's settings as options
translation.py      a GRPOConfig with its keywords to a Config; errors about options in the names of fields
models.py           a model as the keywords of `from_pretrained` say: a revision, 4 bits
datasets.py         datasets as TRL takes them, to tasks; row loaders for scripts
processes.py        this process among others, as scripts ask accelerate for it
rewards.py          reward functions of TRL's kind as ours
environments.py     tools and environments as TRL takes them, as ours
slots.py            objects of environments, each with a thread, lent to one episode after another
rollouts.py         a rollout_func in the place of the engine
building.py         a run from the trainer's arguments; the learning rate as transformers schedules it
generate.py         sampling by a program: a generate on its model, and TRL's `_generate`
checks.py           the trainer's arguments; refusals of them, of what a program overrides, and of late changes
history.py          metrics under TRL's names, for the log, a person and the trackers
script_methods.py   what scripts ask of a trainer beside training: rows, counts, callbacks, environments
surface.py          names of TRL's trainer: what a program may override, set, read or call
ranks.py            a trainer on ranks: which of its methods all ranks call together
checkpoints.py      the start of a run, and transformers' names of checkpoints
observer.py         a trainer as the observer of its loop: transformers' callbacks, best model, last numbers
running.py          a run around the loop: its start, its steps, its end
publishing.py       the model's card and the Hub
trainer.py          GRPOTrainer
"""
