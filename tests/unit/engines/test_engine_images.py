"""Prompts with images in the local engine: each completion is that of its own image, on every decoding path."""

import inspect
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch

from paceline.config.sections import ModelConfig
from paceline.config.vision import VisionConfig
from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local.decoder import PlainDecoder, RecomputingDecoder
from paceline.engines.local.engine import LocalEngine
from paceline.engines.local.fused import FusedDecoder
from paceline.engines.local.graphs import GraphedDecoder
from paceline.engines.local.prefill import compared
from paceline.engines.requests import check_requests
from paceline.errors import DataError, ModelError
from paceline.kernels.cpu.decoding import decoding_kernels
from paceline.kernels.flash_attention import DenseKernel
from paceline.kernels.logprobs import token_logprobs
from paceline.models.forward import choose_forward
from paceline.models.head import measured_head
from paceline.models.loading import load_model
from paceline.models.vision.placeholders import read_placeholders
from paceline.models.vision.tower import Vision
from paceline.objective.micro_batches import one_turn, pack
from paceline.types import Media
from tests.support.engine_conversations import SAMPLING as SAMPLING_OF_TURNS
from tests.support.engine_conversations import Others, key, played, request_alone
from tests.support.exact import Float64Kept
from tests.support.recording import record_operations
from tests.support.seeing import SEEING, HeldPictures, picture, prompt_with, seeing_tokenizer, write_seeing_model

pytestmark = pytest.mark.sampled(4)

KINDS = sorted(SEEING)
WIDE, OTHER, TALL = picture(1), picture(2), picture(3, 32, 48)
PICTURES = HeldPictures(WIDE, OTHER, TALL)
SAMPLING = Sampling(max_completion_length=12)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return {kind: write_seeing_model(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def read(directory, dtype=torch.float64):
    loaded = load_model(ModelConfig(model=str(directory), device="cpu", dtype="float32"), pictures=PICTURES)
    loaded.model.to(dtype)
    loaded.vision.compute_dtype = dtype
    return loaded


@pytest.fixture
def loaded(kind, directories):
    return read(directories[kind])


@pytest.fixture
def show(kind, directories):
    placeholders = read_placeholders(ModelConfig(model=str(directories[kind])), VisionConfig(), seeing_tokenizer(kind))

    def shown(text, *images):
        ids, media = prompt_with(seeing_tokenizer(kind), placeholders, text, *images)
        return tuple(ids), tuple(media)

    return shown


def own_logits(loaded, ids, media):
    """Return the logits of a row by the model's own forward pass, from pixels."""
    row, inputs, vision = torch.tensor([ids]), {}, loaded.vision
    if media:
        images = [PICTURES.pixels(image.sha256) for image in media]
        made = vision.processor(images=images, return_tensors="pt", **vision.family.arguments(loaded.model.config))
        inputs = {name: made[name] for name in vision.family.tensors if name in made}
        kinds = torch.zeros_like(row, dtype=torch.int)
        for image in media:
            run = slice(image.start, image.start + image.length)
            kinds[0, run] = row[0, run] == vision.image_token_id
        known = inspect.signature(loaded.model.base_model.forward).parameters
        inputs |= {name: kinds for name in ("mm_token_type_ids", "token_type_ids") if name in known}
    with torch.no_grad():
        return loaded.model(input_ids=row, use_cache=False, **inputs).logits[0]


def decoders(loaded):
    model, dtype, vision = loaded.model, loaded.model.dtype, loaded.vision
    head = measured_head(model)
    return {
        "recomputing": RecomputingDecoder(model, dtype, vision),
        "plain": PlainDecoder(model, dtype, vision),
        "fused": FusedDecoder(model, dtype, None, head=head, vision=vision),
    }


FUSED = {
    "idefics3",
    "smolvlm",
    "llava",
    "llava_onevision",
    "pixtral",
    "mistral3",
    "internvl",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_5",
}
"""Kinds that decode fused."""
ROUNDED = {"glm4v", "gemma4", "gemma4, blocks"}
"""Kinds whose own forward pass rounds to float32 on the way."""


def shown_prompts(show):
    """Return equal tokens with two images, two images of unequal shape, and text alone, as tokens and images."""
    shown = [show("look {} what?", WIDE), show("look {} what?", OTHER), show("{} or {}", TALL, WIDE), show("no image")]
    assert shown[0][0] == shown[1][0]
    return [list(column) for column in zip(*shown, strict=True)]


@pytest.mark.parametrize("path", ["recomputing", "plain", "fused"])
def test_decoding_step_by_step_gives_the_logits_of_one_pass_from_pixels(kind, loaded, show, path):
    if path == "fused" and kind not in FUSED:
        pytest.skip("decodes by the model's own forward pass")
    prompts, media = shown_prompts(show)
    rows = [[0, 1], [2], [3], [4]]
    fed = torch.arange(5 * 6).view(6, 5) * 7919 % 256
    exact = nullcontext() if kind in ROUNDED else Float64Kept()
    with exact:
        decoder = decoders(loaded)[path]
        with torch.inference_mode(decoder.refills):
            decoder.begin(5, max(map(len, prompts)) + len(fed))
            after = decoder.admit(prompts, rows, media)
            stepped = torch.stack([decoder.step(tokens) for tokens in fed])
        for number, members in enumerate(rows):
            for row in members:
                whole = own_logits(loaded, (*prompts[number], *fed[:, row].tolist()), media[number])
                got = torch.cat([after[number][None], stepped[:, row]])
                wanted = whole[len(prompts[number]) - 1 :]
                torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5 if kind in ROUNDED else 1e-10)


def engine(loaded, *, slots=16, **options):
    return LocalEngine(
        loaded.model,
        seeing_tokenizer("idefics3"),
        concurrent_sequences=slots,
        compute_dtype=loaded.compute_dtype,
        eos_token_ids=frozenset({258}),
        vision=loaded.vision,
        **options,
    )


@pytest.fixture
def trained(kind, directories):
    return read(directories[kind], torch.float32)


def request(show, text, *images, samples=2):
    ids, media = show(text, *images)
    keys = tuple(sample_key(5, "test", text, 0, sample) for sample in range(samples))
    return Request(prompt_ids=ids, media=media, keys=keys)


def trainers_logprobs(loaded, one, completion, forward=None):
    """Return what a trainer computes of a completion, by the forward pass it chooses or has chosen."""
    sample = one_turn(group=0, prompt_ids=one.prompt_ids, completion_ids=completion.token_ids, advantage=1.0)
    batch = pack([replace(sample, prompt_media=one.media)], [1.0], [0], dtype=torch.float32)
    forward = forward or choose_forward(loaded.model, torch.float32, loaded.vision)
    with torch.no_grad():
        states = forward(loaded.model, batch)
        head = loaded.model.get_output_embeddings().weight
        targets = torch.tensor(completion.token_ids)
        logprobs, _ = token_logprobs(states, head, targets, temperature=1.0, rule=forward.head)
    return logprobs


def equal(got, wanted):
    for completion, other in zip(got, wanted, strict=True):
        assert completion.token_ids == other.token_ids
        assert completion.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_the_fused_decoder_is_taken_where_tokens_of_an_image_look_back_alone(kind, trained):
    made = engine(trained)
    assert made.path == ("fused" if kind in FUSED else "plain"), made.path_reason


def test_equal_tokens_with_other_images_are_sampled_as_if_alone_and_as_the_trainer_reads_them(trained, show):
    asked = [request(show, "look {} what?", image) for image in (WIDE, OTHER, WIDE)] + [request(show, "no image")]
    sampler = engine(trained)
    together = sampler.generate(asked, SAMPLING)
    for one, got in zip(asked, together, strict=True):
        equal(got, sampler.generate([one], SAMPLING)[0])
    equal(together[2], together[0])
    forward = choose_forward(trained.model, torch.float32, trained.vision)
    for one, group in zip(asked, together, strict=True):
        own = trainers_logprobs(trained, one, group[0], forward)
        assert group[0].logprobs == pytest.approx(own.tolist(), abs=1e-4)  # law 3, measured
    # the image of the other prompt would show
    swapped = trainers_logprobs(trained, replace(asked[0], media=asked[1].media), together[0][0], forward)
    assert (swapped - torch.tensor(together[0][0].logprobs)).abs().max() > 0.01


def test_few_rows_that_end_and_are_refilled_give_the_same_completions(trained, show):
    asked = [
        request(show, text, *images, samples=3)
        for text, images in [
            ("a {}", [WIDE]),
            ("a {}", [OTHER]),
            ("a {} and {}", [TALL, OTHER]),
            ("a", []),
            ("{}", [TALL]),
        ]
    ]
    limits = [(2, 11, 5), (7, 3, 9), (4, 4, 1), (12, 1, 6), (3, 8, 2)]
    asked = [replace(one, limits=of_one) for one, of_one in zip(asked, limits, strict=True)]
    few, many = (engine(trained, slots=slots).generate(asked, SAMPLING) for slots in (4, 16))
    for got, wanted in zip(few, many, strict=True):
        equal(got, wanted)


def test_a_conversation_over_an_image_resumes_its_cache(trained, show):
    first = [
        Request(prompt_ids=ids, media=media, keys=(key((number, 0), 0),), limits=(3 + number,))
        for number, (ids, media) in enumerate([show("see {} now", WIDE), show("see {} now", OTHER), show("text", *[])])
    ]
    others, sampler = Others(first), engine(trained)
    turns = [turn for one in played(sampler, others).values() for turn in one]
    alone = {
        request.keys: sampler.generate([request_alone(request)], SAMPLING_OF_TURNS)[0][0] for request in others.requests
    }
    wanted = [alone[others.requests[at].keys] for places in others.places.values() for at, _ in places]
    equal(turns, wanted)
    assert len(turns) == 9


def test_an_image_is_encoded_once_and_its_prompt_computed_once(directories, show, kind):
    loaded = read(directories[kind], torch.float32)
    sampler = engine(loaded)
    before = loaded.vision.counts["encoded"]
    for _ in range(2):
        sampler.generate([request(show, "look {} what?", WIDE, samples=4), request(show, "{}?", OTHER)], SAMPLING)
    assert loaded.vision.counts["encoded"] - before == 2
    assert not any(rows.rows.is_inference() for rows in loaded.vision.features([HeldPictures.sha256(WIDE)]).values())


def test_a_sampled_image_token_is_an_ordinary_token(trained, show):
    token = trained.vision.image_token_id
    with torch.no_grad():
        trained.model.get_output_embeddings().weight[token] *= 40
    one = request(show, "look {} what?", WIDE, samples=4)
    (group,) = engine(trained).generate([one], SAMPLING)
    forward = choose_forward(trained.model, torch.float32, trained.vision)
    sampled = [completion for completion in group if token in completion.token_ids[:-1]]
    assert sampled
    for completion in sampled:
        assert completion.logprobs == pytest.approx(
            trainers_logprobs(trained, one, completion, forward).tolist(), abs=1e-3
        )


@pytest.mark.parametrize("native", [decoding_kernels(), None], ids=["compiled", "torch"])
def test_beginnings_are_shared_up_to_the_first_other_image(kind, trained, show, native):
    if kind not in FUSED:
        pytest.skip("shares no beginnings")
    system = "a system message of more than two tiles of tokens, "
    shown = [show(system + "{} {}" + end, WIDE, image) for end, image in [("?", OTHER), ("? what", OTHER), ("?", WIDE)]]
    make = partial(
        FusedDecoder, trained.model, torch.float32, native, head=measured_head(trained.model), vision=trained.vision
    )
    decoder, fed = make(), torch.tensor([5, 6, 7])

    def logits_of(decoder, chosen):
        rows = [[number] for number in range(len(chosen))]
        after = decoder.admit([ids for ids, _ in chosen], rows, [media for _, media in chosen])
        stepped = decoder.step(fed)[: len(chosen)]
        decoder.release(range(len(chosen)))
        return torch.stack([after, stepped])

    with torch.inference_mode():
        decoder.begin(3, 400)
        for chosen in (shown[:1], shown[1:2], shown, shown[2:], shown[:1], [shown[1], shown[2]], [show(system)]):
            got = logits_of(decoder, chosen)
            for number, one in enumerate(chosen):
                alone = make()
                alone.begin(3, 400)
                wanted = torch.stack([alone.admit([one[0]], [[number]], [one[1]]), alone.step(fed)[number][None]])
                torch.testing.assert_close(got[:, number], wanted[:, 0], rtol=1e-4, atol=1e-4)
    equal_places = [a == b for a, b in zip(*(compared(*one) for one in (shown[0], shown[2])), strict=False)]
    first_other = equal_places.index(False)
    assert first_other == shown[0][1][1].start


def test_recorded_steps_turn_rows_behind_images_as_the_others_do(kind, trained, show):
    if kind not in FUSED or kind == "qwen3_5":
        pytest.skip("has no recorded steps")
    model, head = trained.model, measured_head(trained.model)
    static = GraphedDecoder(
        model,
        torch.float32,
        attention=DenseKernel(),
        record=record_operations,
        free_bytes=lambda: 1 << 40,
        head=head,
        vision=trained.vision,
    )
    prompts, media = shown_prompts(show)
    fed, logits = torch.arange(30).view(6, 5), []
    with torch.inference_mode():
        for decoder in (static, FusedDecoder(model, torch.float32, None, head=head, vision=trained.vision)):
            decoder.begin(5, max(map(len, prompts)) + 20)
            got = [decoder.admit(prompts, [[0, 1], [2], [3], [4]], media)]
            got += [decoder.step(tokens) for tokens in fed]
            contexts = decoder.park([1, 3])
            decoder.release([0, 1, 3])
            decoder.resume(contexts, [3, 0])
            got += [decoder.step(tokens)[[0, 2, 3, 4]] for tokens in fed]
            logits.append(torch.cat(got))
    assert static.steps.recorded
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


class Flat(Vision):
    """Takes tokens of images for text, which has no rows and columns."""

    def positions(self, prompt_ids, media):
        positions, _ = super().positions(prompt_ids, ())
        return positions, len(prompt_ids)

    def of(self, model, **changed):
        vision = super().of(model, **changed)
        vision.__class__ = Flat
        return vision


class Swapping(Vision):
    """Gives each image the features of another one."""

    def features(self, hashes):
        hashes = list(dict.fromkeys(hashes))
        found = super().features(hashes)
        return dict(zip(hashes, [found[sha256] for sha256 in reversed(hashes)], strict=True))

    def of(self, model, **changed):
        vision = super().of(model, **changed)
        vision.__class__ = Swapping
        return vision


@pytest.mark.parametrize(("kind", "wrong"), [("qwen2_5_vl", Flat), ("qwen3_vl", Flat), ("llava", Swapping)])
def test_a_wrong_place_or_another_image_is_found_before_sampling(kind, wrong, directories):
    loaded = read(directories[kind], torch.float32)
    loaded.vision.__class__ = wrong
    with pytest.raises(ModelError, match="the recomputing decoder's logits behind images differ by"):
        engine(loaded)


IMAGE = Media(sha256="ab" * 32, start=1, length=2)


@pytest.mark.parametrize(
    ("media", "reads_images", "message"),
    [
        ((IMAGE,), False, "prompt 0 of the batch has 1 images, and this engine's model reads text alone"),
        ((replace(IMAGE, start=3),), True, r"an image of 2 tokens from token 3 on, and an image must lie in \[0, 4\)"),
        ((IMAGE, replace(IMAGE, start=2)), True, r"from token 2 on, and an image must lie in \[3, 4\)"),
    ],
)
def test_images_that_cannot_be_read_are_refused_before_anything_is_computed(media, reads_images, message):
    asked = Request(prompt_ids=(1, 2, 3, 4), media=media, keys=(1,))
    with pytest.raises(DataError, match=message):
        check_requests([asked], SAMPLING, reads_images=reads_images)


def test_a_prompt_that_continues_another_one_must_have_its_images():
    earlier = Request(prompt_ids=(1, 2, 3, 4), media=(IMAGE,), keys=(1,))
    later = Request(prompt_ids=(1, 2, 3, 4, 5, 6), media=(replace(IMAGE, sha256="cd"),), keys=(2,), continues=(0, 0))
    with pytest.raises(DataError, match=r"prompt 1 of the batch has 1 images and continues \(0, 0\)"):
        check_requests([later], SAMPLING, [earlier], {(0, 0): (5,)}, reads_images=True)
