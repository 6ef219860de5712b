"""Answers after `####`, as in the solutions of GSM8K."""


def last_hashes(text: str) -> str | None:
    """Return the line after the last `####`, stripped; None without one.

    >>> last_hashes("12 / 3 = <<12/3=4>>4\\n#### 4\\nDone.")
    '4'
    """
    _, mark, tail = text.rpartition("####")
    lines = tail.strip().splitlines()
    return lines[0].strip() if mark and lines else None


def closing_hashes(text: str) -> str | None:
    """Return the text after the `####` that starts the last line; None if the text does not end so.

    For a gold answer, in which a `####` further up is a heading or part of a drawing.
    """
    last_line = text.strip().rpartition("\n")[2].strip()
    return last_hashes(last_line) if last_line.startswith("####") else None
