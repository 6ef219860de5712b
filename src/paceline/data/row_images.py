"""Images of a row: in its columns and the parts of its messages, put where its text asks for them.

| images | where they stand in the prompt |
|---|---|
| a part of a message that holds one | there |
| a column `image` or `images`, and parts of type `image` without one (TRL) | in these parts, in order |
| such a column, and `<image>` in texts (ms-swift, verl) | in the place of each `<image>`, in order |
| such a column alone | before the text of the user's first message |

As many images as places for them, or the row is refused; so is one whose text holds what stands for an image to the
model. A family's rule says what that is (`Placeholders`): each mark of the chat template becomes the text for an image
of that size, and the tokens of the whole say where each image is. In the columns of a row, which reward functions read,
a `Picture` stands in the place of each image.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from paceline.chat.messages import is_empty, is_image_part, plain_value, texts_in, written_value
from paceline.data.pictures import Picture, PictureStore, Placeholders, is_pil
from paceline.data.rows import Row
from paceline.errors import DataError, ModelError
from paceline.types import Media, Message

IMAGE_COLUMNS = ("image", "images")
OTHER_MEDIA_COLUMNS = ("video", "videos", "audio", "audios")
MARK = "<image>"
"""Text that stands for an image in rows of ms-swift's and of verl's kind."""
GROUNDING_MARKS = ("<ref-object>", "<bbox>")
"""Texts that stand for values of ms-swift's column `objects`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageInput:
    """What images of rows are read with."""

    pictures: PictureStore
    placeholders: Callable[[], Placeholders] | None
    """Reads the rule of the model's family, once a row has an image; None: the model is not known yet, or reads text
    alone."""
    max_images_per_prompt: int


def has_images(row: Row) -> bool:
    """Return True for a row with an image, in a column or in the messages of its prompt, usable or not."""
    if any(_listed(row.columns.get(column)) for column in IMAGE_COLUMNS):
        return True
    prompts = (plain_value(row.columns.get(column)) for column in ("prompt", "messages"))
    return any(map(has_image_parts, prompts))


def has_image_parts(messages: object) -> bool:
    """Return True for messages of which one has a part of type image."""
    return any(map(is_image_part, _parts(messages)))


def image_parts(messages: object) -> list[Mapping[str, object]]:
    """Return the parts of messages that are images or say where one stands, in order."""
    return [part for part in _parts(messages) if isinstance(part, Mapping) and is_image_part(part)]


def _parts(messages: object) -> Iterator[object]:
    """Yield the parts of all messages whose content has some."""
    for message in messages if isinstance(messages, list | tuple) else [messages]:
        content = plain_value(message.get("content")) if isinstance(message, Mapping) else None
        yield from content if isinstance(content, list | tuple) else ()


def refuse_other_media(row: Row) -> None:
    """Refuse a row with video or sound; raises a DataError."""
    for column in OTHER_MEDIA_COLUMNS:
        if not is_empty(row.columns.get(column)):
            raise DataError(
                f"row {row.row_id}: has a column {column!r}; models of text and images are trained here, remove the "
                "column"
            )


def column_images(row: Row) -> list[object]:
    """Return the images in the columns of a row.

    Raises:
        DataError: two columns have some.
    """
    filled = [column for column in IMAGE_COLUMNS if _listed(row.columns.get(column))]
    if len(filled) > 1:
        raise DataError(f"row {row.row_id}: has images in the columns 'image' and 'images'; keep one of the two")
    return [image for column in filled for image in _listed(row.columns.get(column))]


def _listed(value: object) -> list[object]:
    """Return the images in a cell: of a list, perhaps as text, or the single one."""
    value = plain_value(value)
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = written_value(value)
        except ValueError:
            return [value]
    listed = value if isinstance(value, list | tuple) else [value]
    return [image for image in map(plain_value, listed) if not _is_missing(image)]


def _is_missing(image: object) -> bool:
    """Return True for a cell without an image; tables fill an object with nulls."""
    if isinstance(image, Mapping):
        return all(map(is_empty, image.values()))
    return image is None or (isinstance(image, str | float) and is_empty(image))


def pictures_in(value: object) -> Iterator[Picture]:
    """Yield the pictures in a value of a row's columns, however deep."""
    if isinstance(value, Picture):
        yield value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for item in items:
        yield from pictures_in(item)


def with_pictures(row: Row, column: str, images: ImageInput) -> Row:
    """Return a row whose images were read: its pictures, its prompt with an image part for each, and its columns with
    pictures.

    Args:
        row: a row with its prompt, whose parts may hold images.
        column: name of the column that the prompt was read from.
        images: what they are read with.

    Raises:
        DataError: places and images do not match, there are too many, or one cannot be read.
    """
    messages, values = _placed(row, column_images(row))
    if not values:
        return row
    if len(values) > images.max_images_per_prompt:
        raise DataError(
            f"row {row.row_id}: has {len(values)} images, above --max-images-per-prompt "
            f"{images.max_images_per_prompt}; raise it, or remove the row"
        )

    def read(image: object, number: int) -> Picture:
        try:
            return images.pictures.add(image, row.folder)
        except DataError as error:
            raise DataError(f"row {row.row_id}: image {number} {error.message}", remedies=error.remedies) from error

    pictures = tuple(read(image, number) for number, image in enumerate(values, start=1))
    columns = _pictured_columns(row.columns, column, row, images.pictures)
    passed = None if row.passed is None else _pictured_columns(row.passed, column, row, images.pictures)
    return replace(row, prompt=messages, pictures=pictures, columns=columns, passed=passed)


def _pictured_columns(
    columns: Mapping[str, object], prompt: str, row: Row, store: PictureStore
) -> Mapping[str, object]:
    """Return columns with pictures in the place of images: in columns of images, in the prompt's messages, and in the
    place of each object of PIL anywhere."""

    def of_cell(name: str, cell: object) -> object:
        if name in IMAGE_COLUMNS:
            held = [store.add(image, row.folder) for image in _listed(cell)]
            is_list = isinstance(plain_value(cell), list | tuple) or str(cell).lstrip().startswith("[")
            return (held if is_list else held[0]) if held else cell
        if isinstance(cell, Mapping) and row.passed is not None and row.passed.keys() >= cell.keys():
            return _pictured_columns(cell, prompt, row, store)  # the whole row, passed beside its columns
        return _pictured(cell, row, store, has_parts=name == prompt)

    return {name: of_cell(name, cell) for name, cell in columns.items()}


def _pictured(value: object, row: Row, store: PictureStore, *, has_parts: bool) -> object:
    """Return a value with pictures in the place of images; `has_parts`: its parts of type image hold images too."""
    if is_pil(value):
        return store.add(value)
    value = plain_value(value)
    if isinstance(value, Mapping):
        if has_parts and is_image_part(value):
            held = [(key, image) for key, image in value.items() if key != "type" and not _is_missing(image)]
            return {"type": value["type"], **{key: store.add(image, row.folder) for key, image in held}}
        return {key: _pictured(inner, row, store, has_parts=has_parts) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_pictured(inner, row, store, has_parts=has_parts) for inner in value]
    return value


def _placed(row: Row, listed: Sequence[object]) -> tuple[str | list[Message], list[object]]:
    """Return the prompt with a bare part for each image, and the images in the order of these parts."""
    prompt, row_id = row.prompt, row.row_id
    if isinstance(prompt, str):
        if listed:
            raise DataError(
                f"row {row_id}: its prompt is plain text, which shows the model no images; make it a list of messages"
            )
        return prompt, []
    if "objects" in row.columns and any(mark in text for text in texts_in(prompt) for mark in GROUNDING_MARKS):
        raise DataError(
            f"row {row_id}: its text holds {' or '.join(GROUNDING_MARKS)}, whose values in the column 'objects' are "
            "not written into it here; write them into the text"
        )
    messages = prompt if has_image_parts(prompt) or not listed else _with_parts(prompt, len(listed), row_id)
    parts = image_parts(messages)
    places = sum("image" not in part for part in parts)
    if places != len(listed):
        raise DataError(
            f"row {row_id}: has {_counted(len(listed), 'image')} in its columns and {_counted(places, 'place')} for "
            f"them in its prompt ({MARK}, or parts of type image); give as many of the one as of the other"
        )
    waiting = iter(listed)
    values = [part["image"] if "image" in part else next(waiting) for part in parts]
    bare: list[Message] = [{**message, "content": bare_parts(message["content"])} for message in messages]
    return bare, values


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def bare_parts(content: object) -> object:
    """Return the content of a message with a bare part in the place of each image."""
    if not isinstance(content, list):
        return content
    return [{"type": "image"} if is_image_part(part) else part for part in content]


def _with_parts(messages: Sequence[Message], count: int, row_id: str) -> list[Message]:
    """Return messages of text with a part for each `<image>`; without one, `count` parts before the user's first."""
    if any(MARK in str(message["content"]) for message in messages):
        return [{**message, "content": _split(str(message["content"]))} for message in messages]
    first = next((index for index, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        raise DataError(f"row {row_id}: no message of its prompt is the user's, where images stand; add one")
    text = {"type": "text", "text": messages[first]["content"]}
    front = {**messages[first], "content": [*({"type": "image"} for _ in range(count)), text]}
    return [*messages[:first], front, *messages[first + 1 :]]


def _split(text: str) -> str | list[dict[str, object]]:
    """Return a text with an image part in the place of each mark; without one as it is."""
    if MARK not in text:
        return text
    parts = list[dict[str, object]]()
    for index, piece in enumerate(text.split(MARK)):
        parts += [{"type": "image"}] * (index > 0)
        parts += [{"type": "text", "text": piece}] * bool(piece)
    return parts


def refuse_reserved(texts: Sequence[str], placeholders: Placeholders, row_id: str) -> None:
    """Refuse texts of a row that hold what stands for an image to the model; raises a DataError."""
    for reserved in (placeholders.mark, *placeholders.reserved):
        if any(reserved in text for text in texts):
            raise DataError(
                f"row {row_id}: its text holds {reserved!r}, which stands for an image to the model, and has no image "
                "for it; give the row one, or change the text"
            )


def expanded(text: str, pictures: Sequence[Picture], placeholders: Placeholders, row_id: str) -> tuple[str, str]:
    """Return a rendered prompt with the text for each image in the place of its mark, and one to show in its place.

    Raises:
        DataError: the chat template has not written a mark for each image, or an image's size cannot be read.
    """
    most = placeholders.most_images
    if most is not None and len(pictures) > most:
        raise DataError(
            f"row {row_id}: has {len(pictures)} images, and the model reads {_counted(most, 'image')} of a prompt, at "
            "most; remove the row, or name another model"
        )
    pieces = text.split(placeholders.mark)
    if len(pieces) != len(pictures) + 1:
        raise DataError(
            f"row {row_id}: has {_counted(len(pictures), 'image')}, and the model's chat template writes "
            f"{placeholders.mark!r} {len(pieces) - 1} times; take a model whose template shows images"
        )
    whole, shown = [pieces[0]], [pieces[0]]
    for number, (picture, piece) in enumerate(zip(pictures, pieces[1:], strict=True), start=1):
        try:
            whole += [placeholders.text(picture.width, picture.height), piece]
        except (DataError, ModelError) as error:
            raise DataError(f"row {row_id}: image {number}: {error.message}", remedies=error.remedies) from error
        shown += [f"<image {number}: {placeholders.num_features(picture.width, picture.height)} tokens>", piece]
    return "".join(whole), "".join(shown)


def media_of(
    ids: Sequence[int], pictures: Sequence[Picture], placeholders: Placeholders, row_id: str
) -> tuple[Media, ...]:
    """Return where each image is among the tokens of a prompt, from its first to its last image token.

    Raises:
        DataError: there are more or fewer image tokens than the images have features.
    """
    counts = [placeholders.num_features(picture.width, picture.height) for picture in pictures]
    indices = [index for index, token in enumerate(ids) if token == placeholders.image_token_id]
    if len(indices) != sum(counts):
        raise DataError(
            f"row {row_id}: its prompt has {len(indices)} image tokens and its images take {sum(counts)}; remove from "
            "its text what the tokenizer reads as one"
        )
    waiting = iter(indices)
    runs = [list(islice(waiting, count)) for count in counts]
    return tuple(
        Media(sha256=picture.sha256, start=run[0], length=run[-1] - run[0] + 1)
        for picture, run in zip(pictures, runs, strict=True)
    )
