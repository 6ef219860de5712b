"""Scores of completions by reward functions: the only place where a grader may fail."""
