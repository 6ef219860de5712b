"""Options as text in, a checked `Config` out, and back: no files, no torch.

sections.py  every option, once: type, default, meaning, rule
objective.py the same for what a step optimises
engine.py    the same for the engine that samples
environments.py  the same for conversations
layout.py    the same for processes: those of a cluster, and how model and samples lie on them
algorithms.py  advantages and bounds of the ratio, with their formulas and papers
presets.py   published objectives as values of these options
rules.py     refusal of an option's value
reading.py   the table of options; one text or value to the option's type
building.py  a flat mapping of names to a `Config`; the rules between options
changing.py  options that a resumed run may change
packages.py  optional packages, and the commands that install them
flat_yaml.py YAML text to a flat mapping; a `Config` to its resolved YAML
"""
