"""A running or finished run directory, for people: `write_report` makes a page, `compare` a table."""

from paceline.report.comparing import compare
from paceline.report.page import write_report

__all__ = ["write_report", "compare"]
