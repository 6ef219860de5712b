"""One part's completions in full, as the page asks for them: texts to read and search, tokens to colour."""

from collections.abc import Mapping, Sequence

from paceline.reports.page.reading import Record
from paceline.reports.viewer.columns import GRADE, answer_of, grouped
from paceline.reports.viewer.pieces import Pieces


def texts_of(records: Sequence[Record]) -> dict[str, object]:
    """Prompts and gold answers by group; by completion its text, what graders noted, and whose weights made it."""
    groups = grouped(records)
    return {
        "prompts": [str(group[0]["prompt"]) for group in groups],
        "answers": [answer_of(group[0]) for group in groups],
        "completions": [str(record["completion"]) for record in records],
        "notes": [_notes(record) for record in records],
        "versions": [record.get("policy_version") for record in records],
    }


def tokens_of(records: Sequence[Record], pieces: Pieces, values: Sequence[Record]) -> dict[str, object]:
    """Tokens by completion: which of `pieces` each is, and its numbers as the run and `paceline replay` wrote them.

    `values` has, of each completion, what was computed afterwards; none where nothing was. Floats stay packed: little-
    endian in base64 under the name of their type.
    """
    numbers: dict[str, int] = {}
    special: dict[int, bool] = {}
    rows: list[dict[str, object] | None] = []
    for at, record in enumerate(records):
        token_ids = record.get("token_ids")
        if not isinstance(token_ids, list):
            rows.append(None)
            continue
        texts = pieces.split(token_ids)
        special |= {token: pieces.is_special(token) for token in token_ids if token not in special}
        plain = "".join(text for text, token in zip(texts, token_ids, strict=True) if not special[token])
        rows.append(
            {
                "ids": token_ids,
                "pieces": [numbers.setdefault(text, len(numbers)) for text in texts],
                "special": [place for place, token in enumerate(token_ids) if special[token]],
                "agrees": plain.strip() == str(record["completion"]).strip(),
                "engine": record.get("logprobs"),
                **(values[at] if at < len(values) else {}),
            }
        )
    return {"texts": list(numbers), "rows": rows}


def _notes(record: Record) -> Mapping[str, str]:
    notes, note = record.get("notes"), record.get("note")
    if isinstance(notes, dict):
        return {str(name): str(text) for name, text in notes.items()}
    return {} if note is None else {GRADE: str(note)}
