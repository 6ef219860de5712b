"""Features of images, and their places among tokens.

A frozen encoder's features are constants of the run: they are computed once per image, without a graph, and kept as far
as memory allows. Those of a trained one are computed once per image and call, with a graph where gradients are enabled.
Each image is encoded alone, so that nothing depends on the images beside it. Features replace the embeddings of tokens
in recorded runs only: the image token elsewhere, such as a sampled one, is an ordinary token.

M tokens, A axes of positions, F features of all images, H width of the language model.
"""

import importlib
import json
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import PROCESSOR_NAME
from transformers.utils.hub import cached_file

from paceline.errors import ModelError
from paceline.models.head import decoder_of
from paceline.models.rows import take_rows
from paceline.models.vision.families import Reading, VisionFamily, parts_of
from paceline.models.vision.placeholders import known_family
from paceline.objective.micro_batches import MicroBatch, PaddedRows
from paceline.types import Media

CACHE_BYTES = 1 << 30
"""Bytes of frozen features that are kept."""


class Pictures(Protocol):
    """Decoded images by their hashes."""

    def pixels(self, sha256: str) -> Any:
        """Return an image of Pillow's, in RGB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFeatures:
    """What the language model is given of one image: one row per image token."""

    rows: Float[Tensor, "f H"]
    levels: tuple[Float[Tensor, "f H"], ...] = ()
    """What is added to the states behind each of the first layers."""

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return sum(tensor.nbytes for tensor in (self.rows, *self.levels))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedImages:
    """Tokens end to end, with images in the place of their embeddings."""

    embeddings: Float[Tensor, "M H"]
    positions: Int[Tensor, "A M"]
    feature_of: Int[Tensor, " M"]
    """Row of the features that each token takes, -1 for an ordinary token."""
    levels: tuple[Float[Tensor, "F H"], ...]
    """What features add to the states behind each of the first layers."""
    per_layer: Float[Tensor, "M ..."] | None
    """What each layer is given of each token besides, in Gemma 4; None: nothing."""

    @property
    def is_image(self) -> Bool[Tensor, " M"]:
        """True for each token that takes a feature."""
        return self.feature_of >= 0

    def packed(self) -> dict[str, Any]:
        """Return the arguments of a language model for all tokens as one row."""
        return {
            "inputs_embeds": self.embeddings[None],
            "position_ids": self._axes(self.positions[:, None]),
            **self._deep(self.feature_of[None]),
            **({} if self.per_layer is None else {"per_layer_inputs": self.per_layer[None]}),
        }

    def rows(self, index: Int[Tensor, "S L"], real: Bool[Tensor, "S L"]) -> dict[str, Any]:
        """Return the arguments of a language model for rows of these tokens, padding where `real` is false."""
        return {
            "inputs_embeds": take_rows(self.embeddings, index),
            "attention_mask": real.long(),
            "position_ids": self._axes(self.positions[:, index]),
            **self._deep(self.feature_of[index].where(real, -1)),
            **({} if self.per_layer is None else {"per_layer_inputs": take_rows(self.per_layer, index)}),
        }

    def _axes(self, positions: Tensor) -> Tensor:
        return positions if len(positions) > 1 else positions[0]

    def _deep(self, feature_of: Tensor) -> dict[str, Any]:
        if not self.levels:
            return {}
        is_image = feature_of >= 0
        taken = [take_rows(level, feature_of[is_image]) for level in self.levels]
        return {"visual_pos_masks": is_image, "deepstack_visual_embeds": taken}


class Vision:
    """The part of a model that reads images, and the images themselves."""

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        pictures: Pictures,
        processor: Any,
        compute_dtype: torch.dtype,
        source: str = "",
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """`model` is the whole model, as `Loaded.model`; `processor` transformers' for its images, of Pillow's kind.

        `source`: directory or Hub name with the settings of the original model; empty: there is none.
        """
        self.model, self.pictures, self.processor = model, pictures, processor
        self.compute_dtype, self.source, self.cache_bytes = compute_dtype, source, cache_bytes
        self.family: VisionFamily = known_family(model.config, "the model")
        self.counts: dict[str, float] = {"encoded": 0, "reused": 0, "seconds": 0.0}
        """Images that were encoded, those whose features were there already, and how long encoding took; on a GPU,
        which goes on by itself, only how long it took to begin it."""
        self._kept: OrderedDict[str, ImageFeatures] = OrderedDict()
        self._kept_bytes = 0
        self._grids: dict[str, Tensor] = {}

    def of(self, model: PreTrainedModel, **changed: Any) -> "Vision":
        """Return the same for another model, such as a reference, or with other images or another precision."""
        same = {
            "pictures": self.pictures,
            "processor": self.processor,
            "compute_dtype": self.compute_dtype,
            "source": self.source,
            "cache_bytes": self.cache_bytes,
        }
        return Vision(model=model, **(same | changed))

    @property
    def body(self) -> Any:
        """The module of encoder, projector and language model, without the output embedding."""
        return self.model.base_model

    @property
    def image_token_id(self) -> int:
        """Token that takes a feature where a run is recorded."""
        return Reading(config=self.model.config, processor=self.processor, tokenizer=None).image_token_id

    @property
    def is_causal(self) -> bool:
        """True if every token sees earlier ones alone; false: those of an image see each other."""
        return not self.family.blocks(self.model.config)

    @property
    def is_trained(self) -> bool:
        """True if any parameter of encoder or projector takes a gradient, so that features change."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of encoder and projector."""
        return [parameter for _, parameter in parts_of(self.model, (*self.family.encoder, *self.family.projector))]

    def forget(self) -> None:
        """Drop all features that are kept, as after a step that changed encoder or projector."""
        self._kept.clear()
        self._kept_bytes = 0

    def features(self, hashes: Iterable[str]) -> dict[str, ImageFeatures]:
        """Return the features of images, each computed once: kept ones, or with a graph while the encoder trains."""
        hashes = dict.fromkeys(hashes)
        has_graph = torch.is_grad_enabled() and self.is_trained
        features = dict[str, ImageFeatures]()
        for sha256 in hashes:
            if not has_graph and sha256 in self._kept:
                self._kept.move_to_end(sha256)
                self.counts["reused"] += 1
                features[sha256] = self._kept[sha256]
                continue
            started = time.perf_counter()
            with torch.set_grad_enabled(has_graph), self._precision():
                features[sha256] = self._encoded(sha256)
            self.counts["encoded"] += 1
            self.counts["seconds"] += time.perf_counter() - started
            if not has_graph:
                self._keep(sha256, features[sha256])
        return features

    def positions(self, prompt_ids: Sequence[int], media: Sequence[Media]) -> tuple[Int[Tensor, "A L"], int]:
        """Return each token's position in a prompt, by the model's own function, and that of the token behind it.

        Later tokens count on from there, the same on all axes.
        """
        length, axes = len(prompt_ids), self.family.axes
        plain = torch.arange(length).expand(axes, length)
        if axes == 1 or not media:
            return plain, length
        ids = torch.tensor(prompt_ids)
        kinds = torch.zeros(1, length, dtype=torch.int)
        for image in media:
            run = slice(image.start, image.start + image.length)
            kinds[0, run] = ids[run] == self.image_token_id
        grids = torch.cat([self.grid(image.sha256) for image in media])
        positions, shift = self.body.get_rope_index(ids[None], mm_token_type_ids=kinds, image_grid_thw=grids)
        return positions[-axes:, 0], length + int(shift)

    def grid(self, sha256: str) -> Int[Tensor, "1 3"]:
        """Return frames, rows and columns of an image's patches."""
        if sha256 not in self._grids:
            self._grids[sha256] = self.tensors(sha256)["image_grid_thw"].cpu()
        return self._grids[sha256]

    def placed(self, model: PreTrainedModel, batch: MicroBatch) -> PlacedImages:
        """Return a micro-batch's tokens with its images; `model` embeds the tokens, this one or a reference."""
        positions = batch.position_ids[None]
        if self.family.axes > 1:
            ids, start, shifts = batch.input_ids.tolist(), 0, list[int]()
            positions = positions.repeat(self.family.axes, 1)
            for length in batch.prompt_lengths:
                of_prompt = [image for image in batch.media if start <= image.start < start + length]
                of_tokens, behind = self.positions(ids[start : start + length], _moved(of_prompt, -start))
                positions[:, start : start + length] = of_tokens.to(positions)
                shifts.append(behind - length)
                start += length
            lengths = torch.tensor(batch.input_lengths)
            shift = torch.tensor(shifts)[list(batch.prompt_of_sample)].repeat_interleave(lengths)
            positions[:, start:] += shift.to(positions.device)
        return self._place(model, batch.input_ids, batch.media, positions)

    def prompt_batch(
        self, model: PreTrainedModel, prompts: Sequence[tuple[Sequence[int], Sequence[Media]]]
    ) -> tuple[dict[str, Any], list[int]]:
        """Return the arguments of a language model for prompts, padded on the left, and each one's next position."""
        ids, media, positions, following, rows = list[int](), list[Media](), list[Tensor](), list[int](), list[Tensor]()
        for prompt_ids, images in prompts:
            of_tokens, behind = self.positions(prompt_ids, images)
            media += _moved(images, len(ids))
            rows.append(torch.arange(len(ids), len(ids) + len(prompt_ids)))
            ids += prompt_ids
            positions.append(of_tokens)
            following.append(behind)
        device = self.model.device
        longest = max(map(len, rows))
        index = torch.stack([nn.functional.pad(row, (longest - len(row), 0), value=-1) for row in rows]).to(device)
        placed = self._place(model, torch.tensor(ids, device=device), media, torch.cat(positions, dim=1).to(device))
        return self._rows(model, placed, index.clamp_min(0), index >= 0), following

    def packed(self, model: PreTrainedModel, batch: MicroBatch) -> dict[str, Any]:
        """Return the arguments of a language model for a packed micro-batch."""
        return self.placed(model, batch).packed()

    def padded(self, model: PreTrainedModel, batch: MicroBatch, rows: PaddedRows) -> dict[str, Any]:
        """Return the arguments of a language model for a micro-batch as padded rows."""
        return self._rows(model, self.placed(model, batch), rows.index, rows.real)

    def _rows(self, model: PreTrainedModel, placed: PlacedImages, index: Tensor, real: Tensor) -> dict[str, Any]:
        arguments = placed.rows(index, real)
        if not self.is_causal:
            own: Any = importlib.import_module(type(self.body).__module__)  # masks by the model's own functions
            kinds = (placed.is_image[index] & real).int()
            arguments["attention_mask"] = own.create_masks_for_vision_model(
                config=model.config.get_text_config(),
                inputs_embeds=arguments["inputs_embeds"],
                attention_mask=arguments["attention_mask"],
                past_key_values=None,
                position_ids=arguments["position_ids"],
                block_sequence_ids=own.get_block_sequence_ids_for_mask(kinds, device=kinds.device),
            )
        return arguments

    def _place(self, model: PreTrainedModel, ids: Tensor, media: Sequence[Media], positions: Tensor) -> PlacedImages:
        features = self.features(image.sha256 for image in media)
        at, rows, starts, total = [ids.new_empty(0)], [ids.new_empty(0)], dict[str, int](), 0
        for sha256, of_image in features.items():
            starts[sha256] = total
            total += len(of_image.rows)
        for image in media:
            run = ids[image.start : image.start + image.length]
            taking = (run == self.image_token_id).nonzero()[:, 0] + image.start
            wanted = len(features[image.sha256].rows)
            if len(taking) != wanted:
                raise ModelError(
                    f"a prompt has {len(taking)} image tokens for an image of {wanted} features; its tokens were made "
                    "with other image settings than the model's"
                )
            at.append(taking)
            rows.append(torch.arange(wanted, device=ids.device) + starts[image.sha256])
        places, taken = torch.cat(at), torch.cat(rows)
        feature_of = torch.full_like(ids, -1).index_copy(0, places, taken)
        every, text = list(features.values()), model.config.get_text_config()
        ids = ids.where(feature_of < 0, text.pad_token_id or 0)  # an image token may have no embedding of its own
        embeddings = model.get_input_embeddings()(ids)
        if every:
            entering = take_rows(torch.cat([image.rows for image in every]), taken).to(embeddings.dtype)
            embeddings = embeddings.index_copy(0, places, entering)
        levels = [torch.cat(parts) for parts in zip(*(image.levels for image in every), strict=True)]
        return PlacedImages(
            embeddings=embeddings,
            positions=positions,
            feature_of=feature_of,
            levels=tuple(level.to(embeddings.dtype) for level in levels),
            per_layer=decoder_of(model).get_per_layer_inputs(ids[None])[0]
            if getattr(text, "hidden_size_per_layer_input", None)
            else None,
        )

    def _encoded(self, sha256: str) -> ImageFeatures:
        output = self.body.get_image_features(**self.tensors(sha256), return_dict=True)
        parts = output.pooler_output
        rows = torch.cat(list(parts)) if isinstance(parts, list | tuple) else parts.flatten(0, -2)
        levels = getattr(output, "deepstack_features", None) or ()
        return ImageFeatures(
            rows=rows.flatten(0, -2), levels=tuple(torch.cat(list(level)).flatten(0, -2) for level in levels)
        )

    def write_settings(self, folder: Path) -> None:
        """Write how images are read beside a model, as transformers' own processors read it."""
        self.processor.save_pretrained(folder)
        try:
            whole = Path(cast(str, cached_file(self.source, PROCESSOR_NAME, local_files_only=True)))
        except OSError:  # the model came without settings of images and text together
            return
        settings = json.loads(whole.read_text(encoding="utf-8"))
        if "image_processor" in settings:
            settings["image_processor"] = self.processor.to_dict()
        (folder / PROCESSOR_NAME).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    def tensors(self, sha256: str) -> Mapping[str, Tensor]:
        """Return what the model's own forward pass takes for an image."""
        arguments = self.family.arguments(self.model.config)
        made = self.processor(images=[self.pictures.pixels(sha256)], return_tensors="pt", **arguments)
        tensors = {name: made[name].to(self.model.device) for name in self.family.tensors if name in made}
        return {
            name: tensor.to(self.model.dtype) if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }

    def _precision(self) -> torch.autocast:
        kind = self.model.device.type
        return torch.autocast(kind, dtype=self.compute_dtype, enabled=self.compute_dtype != self.model.dtype)

    def _keep(self, sha256: str, features: ImageFeatures) -> None:
        self._kept[sha256] = features
        self._kept_bytes += features.nbytes
        while self._kept_bytes > self.cache_bytes and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes


def _moved(media: Sequence[Media], by: int) -> list[Media]:
    return [Media(sha256=image.sha256, start=image.start + by, length=image.length) for image in media]
