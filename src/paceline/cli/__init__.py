"""The command line: argv, files and the terminal enter and leave here; every rule lives in the rooms below.

main.py           commands, errors to exit statuses
arguments.py      argv to named options, and the help made of their docstrings
configuration.py  recipe, configuration file and flags to one `Config`
machine.py, devices.py, software.py   what `doctor` looks at
train.py, eval.py, plan.py, report.py, audit.py, doctor.py   one command each
"""
