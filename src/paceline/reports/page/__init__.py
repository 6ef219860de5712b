"""A run directory as a page (`html.write_report`), and several runs as a table (`comparing.compare`)."""
