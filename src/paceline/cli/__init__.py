"""The command line: argv, files and the terminal enter and leave here; the rules live in the packages below.

main.py           commands, errors to exit statuses
arguments.py      argv to named options, and the help made of their docstrings
libraries.py      loading of slow libraries
machine.py        what `doctor` looks at
train.py, eval.py, plan.py, explain.py, translate.py, replay.py, rollouts.py, report.py, export.py, audit.py, doctor.py,
serve.py, chat.py one command each
"""
