"""The command line: argv, files and the terminal enter and leave here; the rules live in the packages below.

main.py           commands, errors to exit statuses
arguments.py      argv to named options, and the help made of their docstrings
configuration.py  recipe, configuration file and flags to one `Config`
origins.py        where each of its values came from
preflight.py      what is refused before libraries are loaded that take seconds
libraries.py      these libraries
status.py         exit statuses that are no error's own
machine.py, devices.py, software.py   what `doctor` looks at; hardware.py, without torch, and calibrating.py, its speed
forecast.py       what `plan` says of a cluster; reaching.py, whether one is there
train.py, eval.py, plan.py, explain.py, translate.py, replay.py, rollouts.py, report.py, export.py, audit.py, doctor.py
                  one command each
"""
