"""Setup: everything of a run that needs no weights, in two stages, so that whatever can be refused is refused first.

The cheap stage, `checks.check`, takes a second and loads no torch. The second one, `preparation.prepare`, goes on from
it. Nothing here imports what computes a model: transformers' tokenizers and configurations are all that is loaded of
it, and a reward model where there is one. Ranks of a launcher load everything first: they meet before one of them
prepares, so that a refusal reaches all of them.

configuration.py  recipe, configuration file and given options to one `Config`
file_names.py   names of files in options, and the directory that a run's names stand in
run_request.py  a new run, or one to resume, as an entry point asks for it
named_code.py   code that a run directory names: what may run, and what this user has run
checks.py       the cheap stage: files, names and rows
inputs.py       objects beside the options, and what setup makes of both: tokenizer, functions, tasks, evaluators, plan
preparation.py  tokenizer, tasks, self-test, held-out tasks, steps, one after the other
images.py       how images of prompts are read, and what is refused with them or without
held_out.py     held-out tasks and their evaluators
samplers.py     the sampler around an engine
"""
