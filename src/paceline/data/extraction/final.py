"""The final answer of a text, in whichever style it is marked."""

from paceline.data.extraction.boxes import last_boxed, unboxed
from paceline.data.extraction.hashes import last_hashes
from paceline.data.extraction.plain import plain_answer
from paceline.data.extraction.tags import last_answer_tag


def final_answer(text: str, *, plain: bool = False) -> str | None:
    r"""The answer of a visible text: last `<answer>`, else last `\boxed{}`, else what follows the last `####`.

    `plain`: else what the last line states (`plain_answer`).
    """
    for find in (last_answer_tag, last_boxed, last_hashes, *((plain_answer,) if plain else ())):
        answer = find(text)
        if answer is not None:
            return unboxed(answer)
    return None
