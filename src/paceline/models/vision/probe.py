"""Comparison of a model's hidden states of prompts with images with its own forward pass, before training.

Two prompts of the same tokens have two images, which are wider than high: images in each other's place, rows taken for
columns, and images that are not looked at all show.
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from paceline.errors import ModelError, first_line
from paceline.models.activations import saved_bytes
from paceline.models.plain_forward import MISFITS, computing_in, evaluating
from paceline.models.rows import on_device
from paceline.models.vision.tower import Vision
from paceline.objective.micro_batches import MicroBatch, Sample, one_turn, pack
from paceline.types import Media

SIZE = (320, 192)
"""Width and height of the images."""
TELLING = 10
"""Times that images in each other's place must differ more than two right forward passes."""
_DRAWN = ("first", "second")


class _Drawn:
    """Two images that differ everywhere and have no black tile, which is padding to some models."""

    def pixels(self, sha256: str) -> Image.Image:
        seed = _DRAWN.index(sha256)
        noise = torch.randint(1, 256, (SIZE[1], SIZE[0], 3), generator=torch.Generator().manual_seed(seed))
        noise[..., seed] = noise[..., seed] // 4 + 1  # of another colour on the whole
        return Image.fromarray(noise.to(torch.uint8).numpy())


def bytes_per_feature(vision: Vision) -> float:
    """Measure the activations that a trained encoder keeps for each feature of an image, in bytes."""
    drawn = vision.of(vision.model, pictures=_Drawn())
    with torch.no_grad():
        count = len(drawn.features(_DRAWN[:1])[_DRAWN[0]].rows)
    return saved_bytes(vision.model, lambda: drawn.features(_DRAWN[:1])) / count


class SeeingForward(Protocol):
    """A way to compute hidden states of micro-batches, with a field for what gives the features of images."""

    def __call__(self, model: PreTrainedModel, batch: MicroBatch) -> Float[Tensor, "N H"]:
        """Return the hidden state of each target."""

    def with_vision(self, vision: Vision) -> "SeeingForward":
        """Return the same with other images."""


def images_problem(
    model: PreTrainedModel, forward: SeeingForward, vision: Vision, tolerances: Mapping[torch.dtype, float]
) -> str | None:
    """Return how hidden states of prompts with images differ from the model's own; None: by rounding only.

    `tolerances`: difference that rounding explains, relative to the largest number, in each precision to compare in.
    """
    problems = (_problem_in(dtype, model, forward, vision, tolerance) for dtype, tolerance in tolerances.items())
    return next((problem for problem in problems if problem is not None), None)


def drawn_passes(
    model: PreTrainedModel, vision: Vision, dtype: torch.dtype
) -> tuple[Vision, list[Sample], Float[Tensor, "N H"]]:
    """Return two images, completions of prompts of the same tokens with either, and their hidden states in `dtype`.

    There is a state for each token of the completions, by the model's own forward pass from pixels.
    """
    drawn = vision.of(model, pictures=_Drawn(), compute_dtype=dtype)
    with torch.no_grad(), computing_in(model, dtype):
        count = len(drawn.features(_DRAWN[:1])["first"].rows)
        samples = _samples(model, drawn, count)
        return drawn, samples, _own_states(model, drawn, samples)


def _problem_in(
    dtype: torch.dtype, model: PreTrainedModel, forward: SeeingForward, vision: Vision, tolerance: float
) -> str | None:
    try:
        drawn, samples, wanted = drawn_passes(model, vision, dtype)
        with torch.no_grad(), computing_in(model, dtype):
            swapped = _own_states(model, drawn, [_swapped(sample) for sample in samples])
            batch = pack(samples, [0.0] * len(samples), range(len(samples)), dtype=model.dtype)
            got = forward.with_vision(drawn)(model, on_device(batch, model.device))
    except torch.OutOfMemoryError:
        raise
    except (ModelError, *MISFITS) as error:
        return f"prompts with images fail with {type(error).__name__}: {first_line(error)}"
    scale = wanted.float().abs().max().clamp_min(1e-6)
    difference = float((got.float() - wanted.float()).abs().max() / scale)
    told = float((swapped.float() - wanted.float()).abs().max() / scale)
    if not difference <= tolerance:  # nor is one that is no number
        return f"hidden states of prompts with images differ by {difference:.0e} from the model's own in {dtype}"
    if not told > TELLING * difference:
        return (
            f"another image changes the model's own hidden states by {told:.0e}, too little beside the "
            f"{difference:.0e} of rounding in {dtype} to see what the model makes of images"
        )
    return None


def _samples(model: PreTrainedModel, vision: Vision, count: int) -> list[Sample]:
    """Make two prompts of the same tokens with another image each, and three completions of different lengths."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(model.config.get_text_config().vocab_size, (60,), generator=generator)
    named = vars(model.config).items()  # a model's own pass may take such a token for an image or a sound
    special = {value for name, value in named if name.endswith(("_token_id", "_token_index"))}
    text = [token for token in drawn.tolist() if token not in special]
    prompt = (*text[:4], *[vision.image_token_id] * count, *text[4:7])
    pieces = [(0, text[7:12]), (0, text[12:24]), (1, text[24:33])]
    samples = list[Sample]()
    for group, completion in pieces:
        sample = one_turn(group=group, prompt_ids=prompt, completion_ids=tuple(completion), advantage=0.0)
        samples.append(replace(sample, prompt_media=(Media(sha256=_DRAWN[group], start=4, length=count),)))
    return samples


def _swapped(sample: Sample) -> Sample:
    (image,) = sample.prompt_media
    return replace(sample, prompt_media=(replace(image, sha256=_DRAWN[1 - _DRAWN.index(image.sha256)]),))


def _own_states(model: PreTrainedModel, vision: Vision, samples: list[Sample]) -> Float[Tensor, "N H"]:
    """Return the hidden state of each target by the model's own pass over each row alone, from pixels."""
    body, states = model.base_model, list[Tensor]()
    known = inspect.signature(body.forward).parameters
    with evaluating(model):
        for sample in samples:
            ids = torch.tensor([[*sample.prompt_ids, *sample.completion_ids[:-1]]], device=model.device)
            kinds = (ids == vision.image_token_id).int()
            marked = {name: kinds for name in ("mm_token_type_ids", "token_type_ids") if name in known}
            tensors = vision.tensors(sample.prompt_media[0].sha256)
            hidden = body(input_ids=ids, use_cache=False, **tensors, **marked).last_hidden_state[0]
            states.append(hidden[len(sample.prompt_ids) - 1 :])
    return torch.cat(states)
