"""Options as text in, a checked `Config` out, and back: no files, no torch.

sections.py  every option, once: type, default, meaning, rule
objective.py the same for what a step optimises
sampling.py  the same for sampling, conversations and the engine
vision.py    the same for images, and the part of a model that reads them
layout.py    the same for processes: those of a cluster, and the grid on which model and samples lie
algorithms.py  advantages and bounds of the ratio, with their formulas and papers
presets.py   published objectives as values of these options
rules.py     bounds beside the fields, and the refusal of a value
reading.py   the table of options; one text or value to the option's type
building.py  a flat mapping of names to a `Config`; the rules between options
changing.py  options that a resumed run may change
packages.py  optional packages, and the commands that install them
flat_yaml.py YAML text to a flat mapping; a `Config` to its resolved YAML
"""
