"""Interfaces for users of other tools.

trl/       GRPOTrainer and GRPOConfig, in TRL's names
commands/  command lines and scripts of other tools, translated to options
"""
