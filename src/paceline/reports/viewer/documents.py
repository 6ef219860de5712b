"""What the page asks for, by name, made from a run's files when it is asked: the server and the export give the same.

index           every completion in columns, and what the page is to say of the run
state           a version that changes with the files, and whether the run has ended
previews-B      a line of each of the completions `BLOCK * B` and following
texts-PART      prompts and completions of a part in full, and the names of the prompts' images
image-SHA256    a small copy of an image
tokens-PART     its tokens, each with its numbers
"""

import hashlib
import json
import re
import shlex
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from tokenizers import Tokenizer

from paceline.base_directory import local_path
from paceline.checkpoints.run_directory import IMAGES
from paceline.errors import ModelError
from paceline.metrics.definitions import Record
from paceline.models.places import DIRECTORIES, FINAL
from paceline.reports.images import images_of, thumbnail
from paceline.reports.page.reading import read_lines, read_run, value_at
from paceline.reports.viewer.columns import (
    ENDS,
    GRADE,
    REQUIRED,
    RULES,
    CompletionColumns,
    answer_of,
    columns_of,
    distinctive,
    grouped,
    marks,
    parts_of,
    talks_of,
)

FILE = "tokenizer.json"
MODELS = Path(__file__).parent.parent.parent / "models"
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""Text that decoders give for bytes that are no whole character."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Splits completions into the texts of their tokens; what a token stands for is asked once."""

    decoder: Tokenizer
    _known: dict[int, str] = field(default_factory=dict)

    def split(self, token_ids: Sequence[int]) -> list[str]:
        """One text per token, in order; together they are the completion, special tokens included.

        A character whose bytes are several tokens is the last one's, and the others' text is empty.
        """
        pieces = [self._piece(token) for token in token_ids]
        start = 0
        while start < len(pieces):
            end = start
            while end < len(pieces) and INCOMPLETE in pieces[end]:
                end += 1
            shown = 0
            for at in range(start, end):
                text = self.decoder.decode(token_ids[start : at + 1], skip_special_tokens=False)
                whole = len(text) if at + 1 == end else len(text.rstrip(INCOMPLETE))
                pieces[at], shown = text[shown:whole], max(shown, whole)
            start = max(end, start + 1)
        return pieces

    def is_special(self, token: int) -> bool:
        """Return True if a completion's recorded text leaves this token out."""
        return self.decoder.decode([token], skip_special_tokens=True) == "" != self._piece(token)

    def _piece(self, token: int) -> str:
        if token not in self._known:
            # the second of two, as decoders of the SentencePiece kind strip the space of a text's first token
            single, double = (self.decoder.decode([token] * count, skip_special_tokens=False) for count in (1, 2))
            self._known[token] = INCOMPLETE if INCOMPLETE in double else double[len(single) :]
        return self._known[token]


def load_pieces(run: Path, model: str | None) -> Pieces:
    """What splits the completions of a run into tokens; `model` is what its configuration names.

    Raises:
        ModelError: there is no tokenizer.json, or it cannot be read.
    """
    file = next((path for path in _paths(run, model) if path.is_file()), None)
    if file is None:
        raise ModelError(
            f"no {FILE} was found in final/ and checkpoints/ of the run, nor for its model {model} on this machine; "
            "completions are shown as text, without their tokens"
        )
    try:
        return Pieces(Tokenizer.from_str(file.read_text(encoding="utf-8")))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{file} cannot be read ({str(error)[:200]}); restore it from a copy") from error


def _paths(run: Path, model: str | None) -> Iterator[Path]:
    yield run / FINAL / FILE
    yield from sorted(run.glob(f"checkpoints/step-*/**/{FILE}"), reverse=True)
    if model is not None and model in DIRECTORIES:
        yield MODELS / DIRECTORIES[model] / FILE
    elif model is not None:
        yield local_path(model) / FILE
        with suppress(HFValidationError):  # a path, and no name of the Hub's
            cached = try_to_load_from_cache(model, FILE)
            if isinstance(cached, str):
                yield Path(cached)


LABEL = 160
"""Characters of a prompt in the list."""
DIGITS = 6
"""Decimals of a number in the index; the values of tokens keep all."""

REASONS: Mapping[str, str] = {
    "zero_deviation": "All rewards of its group are equal, so no completion is better than another: the group counts "
    "in the step's averages and has no gradient.",
    "filtered": "The mean of its group lies outside --filter-range: the group is no part of the step.",
    "surplus": "Its group was sampled in excess (--oversampling), and the step was full without it.",
    "no_reward": "No reward function gave it a number, so it is not trained on.",
    "reward_failed": "A reward function failed on it, so its rewards are not known and it is not trained on; a failed "
    "grader is no wrong answer.",
    "environment_failed": "Its environment failed or took too long, so it is not trained on; that is no wrong answer.",
    "truncated": "It was cut at the greatest length, and --mask-truncated leaves such completions out.",
}
"""Reasons why a completion was dropped, in the words of the page."""


def index_of(
    parts: Sequence[CompletionColumns], marks: Sequence[int], updated: Collection[int] = ()
) -> dict[str, object]:
    """What the page lists and filters. `marks` has, of each completion in order, the rules of `RULES` that hold;
    `updated` are the steps whose updates were made."""
    of_groups = [pair for part in parts for pair in zip(part.tasks, part.prompts, strict=True)]
    tasks = {pair: at for at, pair in enumerate(dict.fromkeys(of_groups))}
    # words get numbers from 0 in the order in which they come
    finish = [word for part in parts for word in part.finish]
    finish_words = {word: at for at, word in enumerate(dict.fromkeys(finish))}
    dropped = [word for part in parts for word in part.dropped]
    dropped_words = {word: at for at, word in enumerate(dict.fromkeys(word for word in dropped if word is not None))}
    names = list(dict.fromkeys(name for part in parts for name in part.of_functions))
    return {
        "sets": list(dict.fromkeys(part.part.set_name for part in parts)),
        "parts": [
            {
                "key": part.part.key,
                "set": part.part.set_name,
                "step": part.part.step,
                "groups": len(part.sizes),
                "rows": len(part.rewards),
                "updated": part.is_training and part.part.step in updated,
            }
            for part in parts
        ],
        "tasks": [task for task, _ in tasks],
        # what a template puts around the question is left out; a few of its marks may remain
        "labels": [
            " ".join(text[: 4 * LABEL].split())[:LABEL] for text in distinctive([prompt for _, prompt in tasks])
        ],
        "group_task": [tasks[pair] for pair in of_groups],
        "group_size": [size for part in parts for size in part.sizes],
        "reward": _rounded(value for part in parts for value in part.rewards),
        "advantage": _rounded(value for part in parts for value in part.advantages),
        "tokens": [count for part in parts for count in part.tokens],
        "finish": [finish_words[word] for word in finish],
        "dropped": [-1 if word is None else dropped_words[word] for word in dropped],
        "marks": list(marks),
        "talks": talks_of(parts),
        "functions": {
            name: _rounded(
                value for part in parts for value in part.of_functions.get(name, (None,) * len(part.rewards))
            )
            for name in names
        },
        "finish_words": list(finish_words),
        "dropped_words": list(dropped_words),
        "dropped_reasons": [REASONS.get(word, "") for word in dropped_words],
        "rules": [list(rule) for rule in RULES.items()],
        "unreadable": sum(part.unreadable for part in parts),
    }


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else round(value, DIGITS) for value in values]


def texts_of(records: Sequence[Record]) -> dict[str, object]:
    """Prompts and gold answers by group; by completion its text, what graders noted, and whose weights made it."""
    groups = grouped(records)
    return {
        "prompts": [str(group[0]["prompt"]) for group in groups],
        "answers": [answer_of(group[0]) for group in groups],
        "images": [
            [{"name": f"image-{name}", "tokens": tokens} for name, tokens in images_of(group[0])] for group in groups
        ],
        "completions": [str(record["completion"]) for record in records],
        "notes": [_notes(record) for record in records],
        "versions": [record.get("policy_version") for record in records],
        "episodes": [_shown_episode(record["episode"]) if "episode" in record else None for record in records],
    }


def _shown_episode(episode: Record) -> dict[str, object]:
    """Return an episode with its end in words, and of a context that a turn has of its own only that it has one."""
    turns = [{**turn, "prompt_ids": turn["prompt_ids"] is not None} for turn in episode["turns"]]
    return {**episode, "turns": turns, "end": ENDS[episode["end"]]}


def observed_positions(record: Record) -> list[int]:
    """Return the positions of the tokens of a completion that its environment wrote."""
    positions, start = list[int](), 0
    for turn in record["episode"]["turns"] if "episode" in record else ():
        start += turn["sampled"]
        positions += range(start, start + turn["observed"])
        start += turn["observed"]
    return positions


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
        if not isinstance(token_ids, list) or not all(
            type(token) is int and 0 <= token < 1 << 32 for token in token_ids
        ):
            rows.append(None)
            continue
        texts = pieces.split(token_ids)
        special |= {token: pieces.is_special(token) for token in token_ids if token not in special}
        observed = observed_positions(record)
        left_out, wanted = frozenset(observed), str(record["completion"])
        plain = "".join(text for at, text in enumerate(texts) if at not in left_out and not special[token_ids[at]])
        if observed:  # turns are joined by a newline
            plain, wanted = plain.replace("\n", ""), wanted.replace("\n", "")
        rows.append(
            {
                "ids": token_ids,
                "pieces": [numbers.setdefault(text, len(numbers)) for text in texts],
                "special": [position for position, token in enumerate(token_ids) if special[token]],
                "observed": observed,
                "agrees": plain.strip() == wanted.strip(),
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


BLOCK = 1000
"""Completions whose previews are one document."""
_NAME = re.compile(r"(previews|texts|tokens|image)-([a-z0-9-]+)")


class Documents:
    """The documents of a run, which may still be going on; may be asked from several threads.

    Raises, when it is made:
        CheckpointError: there is no run.
    """

    def __init__(self, path: Path, *, on_part: Callable[[int, int], None] = lambda done, of: None) -> None:
        """`on_part` is called with the number of parts that have been read, and that of all."""
        self._path, self._lock = path, threading.Lock()
        self._columns: dict[str, CompletionColumns] = {}
        self._pieces: Pieces | ModelError | None = None
        self._run = read_run(path)
        self._index: tuple[str, dict[str, object], bytes] | None = None
        self._refresh(on_part)
        self._whole_index()  # before anybody waits for it

    def get(self, name: str) -> dict[str, object] | None:
        """A document, ready for JSON; None: there is no document of this name."""
        with self._lock:
            if name in ("state", "index"):
                self._refresh()
                return self._state() if name == "state" else self._whole_index()
            match = _NAME.fullmatch(name)
            if match is None:
                return None
            kind, key = match[1], match[2]
            if kind == "image":
                return thumbnail(self._path / IMAGES, key) if key in self._images() else None
            if kind == "previews" and key.isdecimal() and len(key) < 8:
                lines = [line for columns in self._columns.values() for line in columns.previews]
                return {"lines": lines[int(key) * BLOCK : (int(key) + 1) * BLOCK]}
            if kind == "previews" or key not in self._columns:
                return None
            records, _ = read_lines(self._columns[key].part.file, required=REQUIRED)
            return texts_of(records) if kind == "texts" else self._tokens(self._columns[key], records)

    def encoded(self, name: str) -> bytes | None:
        """The same as JSON; the index, which is large and asked for first, is not written anew each time."""
        document, index = self.get(name), self._index
        if index is not None and document is index[1]:
            return index[2]
        return None if document is None else _encoded(document)

    def names(self) -> Iterator[str]:
        """Every document but `state`, for a copy that is read without a server."""
        with self._lock:
            columns = list(self._columns.values())
        yield "index"
        rows = sum(len(part.rewards) for part in columns)
        yield from (f"previews-{block}" for block in range(-(-rows // BLOCK)))
        yield from (f"{kind}-{part.part.key}" for part in columns for kind in ("texts", "tokens"))
        yield from (f"image-{name}" for name in self._images())

    def _images(self) -> dict[str, None]:
        """Return the hashes of all images that completions name, in their order."""
        return dict.fromkeys(name for part in self._columns.values() for name in part.images)

    def _refresh(self, on_part: Callable[[int, int], None] = lambda done, of: None) -> None:
        self._run = read_run(self._path)
        parts, columns = parts_of(self._run), dict[str, CompletionColumns]()
        for done, part in enumerate(parts, start=1):
            known = self._columns.get(part.key)
            if known is None or known.part != part:
                # a file that was taken away in the meantime has no completion
                known = columns_of(part, *read_lines(part.file, required=REQUIRED))
            columns[part.key] = known
            on_part(done, len(parts))
        self._columns = columns

    def _state(self) -> dict[str, object]:
        signatures = [(part.part.key, part.part.signature) for part in self._columns.values()]
        finished, broken_off = self._run.has_finished, self._run.broken_off
        files = [signatures, len(self._run.metrics), len(self._run.evals), finished, broken_off]
        version = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
        return {"version": version, "finished": finished}

    def _whole_index(self) -> dict[str, object]:
        state = self._state()
        version = str(state["version"])
        if self._index is None or self._index[0] != version:
            columns, judge = list(self._columns.values()), self._run.grader
            updated = {record["step"] for record in self._run.metrics if value_at(record, "updates")}
            index = index_of(columns, marks(columns, self._run.evals, judge), updated)
            index |= {"block": BLOCK, "grader": judge, "run": self._path.resolve().name}
            index |= {"ending": self._ending()}
            index |= {"run_path": shlex.quote(str(self._path)), **state}
            self._index = version, index, _encoded(index)
        return self._index[1]

    def _ending(self) -> dict[str, object] | None:
        """How a run that did not finish ended; None of another."""
        run = self._run
        if run.broken_off is None:
            return None
        ending = None if run.ending is None or run.ending.is_finished else run.ending
        known = {} if ending is None else asdict(ending)
        return {"status": None, "step": None, "traceback": None, "resume": None} | known | {"sentence": run.broken_off}

    def _tokens(self, columns: CompletionColumns, records: tuple[Record, ...]) -> dict[str, object]:
        if not columns.is_training:
            return {"missing": "Held-out completions are recorded as text, without their tokens.", "rows": []}
        if self._pieces is None:
            model = self._run.config.get("model")
            try:
                self._pieces = load_pieces(self._path, None if model is None else str(model))
            except ModelError as error:
                self._pieces = error
        if isinstance(self._pieces, ModelError):
            return {"missing": str(self._pieces), "rows": []}
        # what `paceline replay --tokens` wrote of the step, and where its numbers come from; only of these rollouts
        file, about, values = columns.part.file, None, list[Record]()
        lines, unreadable = read_lines(self._path / "tokens" / file.name)
        if lines and not unreadable and lines[0].get("sha256") == hashlib.sha256(file.read_bytes()).hexdigest():
            about, *values = lines
        return {**tokens_of(records, self._pieces, values), "about": about, "step": columns.part.step}


def _encoded(document: dict[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
