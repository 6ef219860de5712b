"""From reward functions and completions to scores: the one place where a grader may fail."""
