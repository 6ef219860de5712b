"""The answer after `####`, as the solutions of GSM8K give it."""


def last_hashes(text: str) -> str | None:
    """The line after the last `####`, stripped; None without one.

    >>> last_hashes("12 / 3 = <<12/3=4>>4\\n#### 4\\nDone.")
    '4'
    """
    _, mark, tail = text.rpartition("####")
    lines = tail.strip().splitlines()
    return lines[0].strip() if mark and lines else None


def closing_hashes(text: str) -> str | None:
    """What follows the `####` that starts the last line; None where the text does not end so.

    For a gold answer, in which a `####` further up is a heading or part of a drawing.
    """
    last_line = text.strip().rpartition("\n")[2].strip()
    return last_hashes(last_line) if last_line.startswith("####") else None
