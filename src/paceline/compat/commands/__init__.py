"""Other tools' command lines to Paceline's options: pure functions, text in, options and notes out.

command.py       splits variables and launcher from a command, and calls the reader of its tool
translation.py   records of a command, its translation and a tool's reader; a translation as text
colossalchat/    ColossalChat's `rl_example.py`
swift/           ms-swift's `swift rlhf --rlhf_type grpo`
trl.py           TRL's `trl grpo`, its files, and scripts that take its flags
fields.py        the fields of TRL's trainer, by the tables of `paceline.compat.trl`
flags.py         flags as transformers' parser reads them
launching.py     env, srun, torchrun, accelerate, deepspeed in front of a command, and variables with the same meaning
shell.py         shell scripts with such a command: read, never run
evaluating.py    a shell's tests and arithmetic, where the script alone decides the result
layouts.py       other tools' names for parallel layouts, and the processes that sample and train
"""
