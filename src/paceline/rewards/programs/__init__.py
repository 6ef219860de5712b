"""Tests of a row, and verdicts on a program's results."""
