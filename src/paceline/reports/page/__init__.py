"""A run directory as one self-contained page: `html.write_report`, whose `render` lists the sections in their order."""
