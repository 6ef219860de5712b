"""Two reward functions of one's own: lists with one entry per completion in, one number or None each out."""

import re


def shows_its_work(completions: list[str], **columns: object) -> list[float]:
    """0.1 for every line with an equation, 0.5 at most: an answer from nowhere earns nothing here."""
    equation = re.compile(r"\d\s*[-+*/=]\s*\d")
    lines = [sum(bool(equation.search(line)) for line in text.splitlines()) for text in completions]
    return [min(0.5, 0.1 * count) for count in lines]


async def names_the_unit(completions: list[str], question: list[str], **columns: object) -> list[float | None]:
    """0.2 where a price is answered in dollars; None, which is not 0, where the question is about something else.

    `question` is a column of the dataset. An `async` function may wait for a service: those of a step run together.
    """
    return [
        None if "$" not in asked and "dollar" not in asked else 0.2 * ("$" in text or "dollar" in text)
        for asked, text in zip(question, completions, strict=True)
    ]
