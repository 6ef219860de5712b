"""A running or finished run directory, for people: `write_report` makes a page, `compare` a table."""
