"""Images of requests: from data URIs to places among the tokens of a prompt; nothing is fetched for a client."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

from paceline.data.pictures import Picture, PictureStore, Placeholders
from paceline.data.row_images import bare_parts, expanded, image_parts, media_of
from paceline.errors import DataError
from paceline.openai_api.requests import Refusal
from paceline.types import Media, Message

REQUEST = "of the request"
"""What stands for the name of a row in sentences of the functions that rows are read with."""


class RequestImages:
    """Images of the requests under way by hash. Each lives as long as the pictures of a request that holds it."""

    def __init__(self) -> None:
        self._stores = WeakValueDictionary[str, PictureStore]()
        self._reading = threading.Lock()

    def read(self, image: str) -> Picture:
        """Read an image from its data URI; raises a DataError."""
        picture = PictureStore().add(image)
        with self._reading:
            return replace(picture, store=self._stores.setdefault(picture.sha256, picture.store))

    def pixels(self, sha256: str) -> Any:
        """Return the pixels of an image, as an object of the caller's own."""
        return self._stores[sha256].pixels(sha256)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedPrompt:
    """A prompt as the engine takes it."""

    ids: tuple[int, ...]
    media: tuple[Media, ...] = ()
    pictures: tuple[Picture, ...] = ()
    """Whoever holds them keeps the images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePrompts:
    """How prompts of one model hold images."""

    placeholders: Placeholders
    most: int
    """Images of a prompt, at most."""
    images: RequestImages = field(default_factory=RequestImages)

    def read(self, messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Picture, ...]]:
        """Return messages with a bare part for each image, and the pictures in their order; raises Refusal."""
        found = image_parts(messages)
        if len(found) > self.most:
            problem = f"the messages hold {len(found)} images, and a prompt may have {self.most}"
            raise Refusal(f"{problem}; send fewer (the server's --max-images-per-prompt)", "messages")
        pictures = list[Picture]()
        for number, image in enumerate(found, start=1):
            try:
                pictures.append(self.images.read(str(image["image"])))
            except DataError as error:
                raise Refusal(f"image {number} of the messages {error}", "messages") from error
        bare = tuple(
            {**message, "content": bare_parts(message["content"])} if "content" in message else message
            for message in messages
        )
        return bare, tuple(pictures)

    def prompt(self, text: str, pictures: tuple[Picture, ...], encode: Any) -> ServedPrompt:
        """Return the prompt of a rendered text, in which `encode` makes tokens of text; raises Refusal."""
        try:
            whole, _ = expanded(text, pictures, self.placeholders, REQUEST)
            ids = tuple(encode(whole))
            return ServedPrompt(ids=ids, media=media_of(ids, pictures, self.placeholders, REQUEST), pictures=pictures)
        except DataError as error:
            raise Refusal(str(error).removeprefix(f"row {REQUEST}: "), "messages") from error
