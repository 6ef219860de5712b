"""The command line: reads argv and files, writes to the terminal; everything else is in the packages below.

main.py           commands, errors to exit statuses
arguments.py      argv to named options, and the help made of their docstrings
libraries.py      loading of slow libraries
machine.py        what `doctor` checks of the machine
train.py, eval.py, plan.py, explain.py, translate.py, replay.py, rollouts.py, report.py, export.py, audit.py, doctor.py,
serve.py, chat.py one command each
"""
