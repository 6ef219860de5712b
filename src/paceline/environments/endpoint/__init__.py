"""An endpoint by OpenAI's interface, so that a program that brings its own loop is trained as it is.

The program asks for turns when it likes, and an episode's driver answers: to the driver the program is an environment.

harness.py    the environment: runs the program, finds the turn that a request goes on from
program.py    loads the program's file where the endpoint is in the environment
"""
