"""The local engine samples what transformers would, with its logprobs, on every decoding path."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import GPT2Config, GPT2LMHeadModel

from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local.attention import AttentionLayer, Rotation
from paceline.engines.local.decoder import RecomputingDecoder, rounded_up
from paceline.engines.local.engine import LocalEngine
from paceline.engines.local.fused import FusedDecoder
from paceline.engines.local.grid import GridAttention
from paceline.engines.local.operations import choose_kernels
from paceline.engines.requests import Stopping
from paceline.errors import DataError, ModelError, TrainingError
from paceline.kernels.cpu.compiling import library
from paceline.kernels.cpu.decoding import Heads, decoding_kernels
from paceline.kernels.linear import prefers_onednn
from tests.support.families import family, make_model
from tests.support.recorded_progress import RecordedProgress
from tests.support.tiny import local_engine, make_unfamiliar, tiny_model, tiny_tokenizer

END = 258
KINDS = ("qwen2", "qwen3", "llama")


def engine(model, *, slots=64, dtype=None, eos=(END,), plain=False, path=None, **options) -> LocalEngine:
    path = path or ("plain" if plain else "fused")
    return local_engine(model, slots=slots, dtype=dtype, eos=eos, path=path, **options)


def unfamiliar(model):
    """The same model under a name that the fused decoder does not know."""
    return make_unfamiliar(copy.deepcopy(model))


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng([seed, length]).integers(0, 256, length).tolist())


def request(length: int, samples: int = 1) -> Request:
    keys = tuple(sample_key(5, "test", str(length), 0, sample) for sample in range(samples))
    return Request(prompt_ids=prompt(length), keys=keys)


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=260, n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


@torch.no_grad()
def forward_logprobs(model, request: Request, token_ids: tuple[int, ...], temperature: float = 1.0) -> list[float]:
    logits = model(torch.tensor([request.prompt_ids + token_ids])).logits[0, len(request.prompt_ids) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs[torch.arange(len(token_ids)), torch.tensor(token_ids)].tolist()


def greedy_by_transformers(model, request: Request, tokens: int) -> tuple[int, ...]:
    ids = torch.tensor([request.prompt_ids])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)
    return tuple(output[0, ids.shape[1] :].tolist())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [lambda kind=kind: tiny_model(kind) for kind in KINDS] + [gpt2], ids=[*KINDS, "gpt2"])
def test_greedy_completions_are_those_of_transformers(make):
    model = make()
    requests = [request(length) for length in (3, 17, 9, 16)]
    local = engine(model, plain=isinstance(model, GPT2LMHeadModel))
    groups = local.generate(requests, Sampling(max_completion_length=20, temperature=0))
    for asked, (completion,) in zip(requests, groups, strict=True):
        assert completion.token_ids == greedy_by_transformers(model, asked, 20)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_logprobs_are_those_of_a_plain_forward_pass_at_the_temperature(kind, dtype, tolerance):
    model = tiny_model(kind, dtype=dtype)
    requests = [request(5, 3), request(21, 2), request(8, 4)]
    # Fewer slots than completions, so that rows also start late; more tokens than the first columns hold.
    groups = engine(model, slots=5).generate(requests, Sampling(max_completion_length=90, temperature=0.8))
    for asked, group in zip(requests, groups, strict=True):
        for completion in group:
            expected = forward_logprobs(model, asked, completion.token_ids, 0.8)
            assert completion.logprobs == pytest.approx(expected, abs=tolerance, rel=0)


def test_a_model_that_computes_something_else_takes_the_plain_path():
    model = tiny_model("qwen3")
    model.model.layers[1].mlp.forward = lambda x: torch.zeros_like(x)
    local = engine(model, plain=True)
    assert "the fused decoder's logits differ by" in local.path_reason
    (completion,) = local.generate([request(6)], Sampling(max_completion_length=8, temperature=0))[0]
    assert completion.token_ids == greedy_by_transformers(model, request(6), 8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("lfm2", "fused"),  # caches beside keys and values what convolutions
        ("jamba", "plain"),  # and state spaces go on from
        ("mamba2", "recomputing"),  # takes no mask after its prompt
        ("openai-gpt", "recomputing"),  # has no cache
        ("rwkv, no rescaling", "recomputing"),  # keeps a state that is not asked for
        ("minimax", "recomputing"),  # refuses any cache but its own
    ],
)
def test_a_cache_of_another_kind_is_used_right_or_not_at_all(name, path):
    model = make_model(family(name)).eval()
    requests = [request(5, 3), request(21, 2), request(8, 1)]
    groups = engine(model, slots=5, path=path).generate(requests, Sampling(max_completion_length=9, temperature=0.8))
    for asked, group in zip(requests, groups, strict=True):
        for completion in group:
            expected = forward_logprobs(model, asked, completion.token_ids, 0.8)
            assert completion.logprobs == pytest.approx(expected, abs=1e-4, rel=0)


def test_a_model_that_sees_what_comes_later_is_refused():
    with pytest.raises(ModelError, match="BertLMHeadModel cannot be sampled from token by token"):
        engine(make_model(family("bert")))


@pytest.mark.long
def test_the_decoder_without_a_cache_samples_the_same_tokens():
    model, requests = tiny_model("qwen3"), [request(4, 3), request(11, 1), request(7, 5)]
    plain, recomputing = (engine(unfamiliar(model), slots=5, plain=True) for _ in range(2))
    recomputing._decoder = RecomputingDecoder(model, model.dtype)
    sampling = Sampling(max_completion_length=30)
    for left, right in zip(plain.generate(requests, sampling), recomputing.generate(requests, sampling), strict=True):
        assert [c.token_ids for c in left] == [c.token_ids for c in right]


@pytest.mark.long
def test_both_paths_sample_the_same_tokens():
    model = tiny_model("qwen3")
    requests = [request(4, 3), request(11, 1), request(7, 5)]
    fused, plain = engine(model), engine(unfamiliar(model), slots=5, plain=True)
    sampling = Sampling(max_completion_length=30, top_p=0.9, top_k=40, min_p=0.01)
    for left, right in zip(fused.generate(requests, sampling), plain.generate(requests, sampling), strict=True):
        assert [c.token_ids for c in left] == [c.token_ids for c in right]


def test_an_update_in_place_is_seen_by_the_next_call_and_stamped_with_its_version():
    model = tiny_model("qwen2")
    local, sampling = engine(model), Sampling(max_completion_length=6)
    local.generate([request(5)], sampling)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    local.policy_version = 1
    (completion,) = local.generate([request(5)], sampling)[0]
    assert completion.policy_version == 1
    assert completion.logprobs == pytest.approx(forward_logprobs(model, request(5), completion.token_ids), abs=1e-5)


def test_bfloat16_copies_of_float32_weights_stay_close_to_the_model():
    model = tiny_model("qwen2")
    (completion,) = engine(model, dtype=torch.bfloat16).generate([request(9)], Sampling(max_completion_length=24))[0]
    expected = forward_logprobs(model, request(9), completion.token_ids)
    assert np.abs(np.subtract(completion.logprobs, expected)).mean() < 0.1


def test_a_completion_ends_with_its_end_token_or_at_the_length():
    model = tiny_model("qwen3")
    ends = frozenset(range(0, 260, 20))
    group = engine(model, eos=ends).generate([request(5, 40)], Sampling(max_completion_length=12))[0]
    assert {completion.finish_reason for completion in group} == {"stop", "length"}
    for completion in group:
        assert not ends & set(completion.token_ids[:-1])
        stopped = completion.token_ids[-1] in ends
        assert completion.finish_reason == ("stop" if stopped else "length")
        assert stopped or len(completion.token_ids) == 12
        assert len(completion.logprobs) == len(completion.token_ids)


def test_texts_leave_special_tokens_out():
    model = tiny_model("qwen3")
    group = engine(model).generate([request(5, 60)], Sampling(max_completion_length=30))[0]
    tokenizer = tiny_tokenizer()
    assert any(END in completion.token_ids for completion in group)
    for completion in group:
        assert completion.text == tokenizer.decode(list(completion.token_ids), skip_special_tokens=True)
        assert "<|" not in completion.text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stop", ["e", "ab", "\n"])
@pytest.mark.parametrize("plain", [False, True])
def test_a_stop_string_ends_the_completion_and_stays_in_its_text(stop, plain):
    model = tiny_model("llama")
    without = engine(model).generate([request(5, 50)], Sampling(max_completion_length=60))[0]
    local = engine(unfamiliar(model) if plain else model, plain=plain)
    group = local.generate([request(5, 50)], Sampling(max_completion_length=60, stop=(stop, "never said")))[0]
    for free, completion in zip(without, group, strict=True):
        assert completion.token_ids == free.token_ids[: len(completion.token_ids)]
        if stop in free.text:
            assert completion.text.endswith(stop)
            assert completion.text.count(stop) == 1
            assert completion.finish_reason == "stop"
        else:
            assert completion.text == free.text
    if len(stop) == 1:
        assert any(stop in completion.text for completion in group)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stop", [(), ("e",)])
@pytest.mark.parametrize("plain", [False, True])
def test_each_completion_is_told_of_once_as_soon_as_it_has_ended(stop, plain):
    model = tiny_model("llama")
    local = engine(unfamiliar(model) if plain else model, plain=plain)
    told = []
    requests = [request(5, 6), request(7, 3), request(3, 9)]
    groups = local.generate(
        requests,
        Sampling(max_completion_length=30, stop=stop),
        on_finished=lambda one: told.append((one.request, one.token_ids, one.text)),
    )
    given = [(index, one.token_ids, one.text) for index, group in enumerate(groups) for one in group]
    assert sorted(told) == sorted(given)
    ends = [len(tokens) for _, tokens, _ in told]
    assert len(set(ends)) > 1
    if not plain:  # all started together, so the short ones are told of first
        assert ends == sorted(ends)


def test_a_stop_string_is_found_across_tokens_and_bytes():
    tokenizer = tiny_tokenizer()
    stopping = Stopping(tokenizer, frozenset(), ("é!é", "</a>"), 260)
    for text in ("so é!é", "x</a>"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert len(stopping.candidates(np.array(ids[-1:])))
        assert stopping.completes_string(ids)
        assert not stopping.completes_string(ids[:-1])


@pytest.mark.parametrize("plain", [False, True])
def test_the_name_of_a_special_token_is_a_stop_string(plain):
    model = tiny_model("qwen3")
    local = engine(unfamiliar(model) if plain else model, plain=plain)
    free = local.generate([request(5, 60)], Sampling(max_completion_length=30))[0]
    group = local.generate([request(5, 60)], Sampling(max_completion_length=30, stop=("<|im_start|>",)))[0]
    starts = 0
    for before, completion in zip(free, group, strict=True):
        ids = before.token_ids
        starts += 259 in ids
        assert completion.token_ids == (ids[: ids.index(259) + 1] if 259 in ids else ids)
        assert completion.finish_reason == ("stop" if 259 in ids else before.finish_reason)
        assert "<|" not in completion.text
    assert starts > 1


@pytest.mark.parametrize(("limit", "reason"), [(3, "length"), (4, "stop"), (5, "stop")])
def test_a_stop_string_that_the_last_allowed_token_completes_is_a_stop(limit, reason):
    local, asked = engine(tiny_model("llama"), eos=()), request(5, 60)
    free = local.generate([asked], Sampling(max_completion_length=5))[0]
    # one of which the fourth token is a printable character (ids 0 to 93) that is not among the first three
    at, ids = next(
        (at, ids) for at, ids in enumerate(one.token_ids for one in free) if ids[3] < 94 and ids.index(ids[3]) == 3
    )
    sampling = Sampling(max_completion_length=limit, stop=(tiny_tokenizer().decode([ids[3]]),))
    completion = local.generate([asked], sampling)[0][at]
    assert (completion.token_ids, completion.finish_reason) == (ids[: min(limit, 4)], reason)


@pytest.mark.long
def test_more_requests_than_slots_of_mixed_sizes_come_back_in_order():
    model, told = tiny_model("qwen3"), RecordedProgress()
    requests = [request(3 + 5 * index, samples) for index, samples in enumerate((2, 5, 1, 0, 9, 3, 4))]
    with told:
        groups = engine(model, slots=6).generate(requests, Sampling(max_completion_length=25))
    assert [len(group) for group in groups] == [2, 5, 1, 0, 9, 3, 4]
    tokens = sum(len(completion.token_ids) for group in groups for completion in group)
    assert (told.said[0], told.said[-1]) == (("generate", 0, 24, 0), ("generate", 24, 24, tokens))
    assert told.said == sorted(told.said)  # neither ended completions nor tokens are ever fewer than before
    for asked, group in zip(requests, groups, strict=True):
        for completion in group:
            expected = forward_logprobs(model, asked, completion.token_ids)
            assert completion.logprobs == pytest.approx(expected, abs=1e-5)


def test_nothing_asked_gives_nothing():
    assert engine(tiny_model("qwen2")).generate([], Sampling(max_completion_length=4)) == []


def test_the_model_keeps_its_mode_and_dropout_does_not_act():
    model = tiny_model("llama")
    model.config.attention_dropout = 0.5
    expected = engine(model).generate([request(6, 4)], Sampling(max_completion_length=10))
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    assert engine(model).generate([request(6, 4)], Sampling(max_completion_length=10)) == expected
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_prompt_without_tokens_is_refused():
    local, empty = engine(tiny_model("qwen2")), Request(prompt_ids=(), keys=(1,))
    with pytest.raises(DataError, match="prompt 1 of the batch has 0 tokens"):
        local.generate([request(3), empty], Sampling(max_completion_length=4))


def test_weights_that_are_not_finite_are_reported_and_not_sampled_from():
    model = tiny_model("qwen2")
    local = engine(model)
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(TrainingError, match="logits are not finite at version 0"):
        local.generate([request(3)], Sampling(max_completion_length=4))


def test_columns_that_no_living_row_reads_are_taken_back():
    turn = Rotation(cosine=torch.ones(100, 4), sine=torch.zeros(100, 4), norm_eps=0.0)
    attention = GridAttention(2, [AttentionLayer(rotation=turn)], Heads(query=1, kv=1, width=4))
    attention.take_slots([4], [[0]])
    while attention.column < 40:
        attention.end_step()
    attention.take_slots([4], [[1]])
    attention.own_keys[0][0, 1, 40] = 7.0
    attention.release([0])
    positions_before, columns = attention.position_offsets + attention.column, list[int]()
    for _ in range(24):
        attention.end_step()
        columns.append(attention.column)
    assert columns == [*range(41, 64), 24]
    assert attention.own_keys[0].shape[2] == 64
    assert (attention.own_keys[0][0, 1] == 7.0).all(-1).nonzero().flatten().tolist() == [0]
    assert (attention.position_offsets + attention.column - positions_before).tolist() == [24, 24]


def test_sizes_are_rounded_up_to_powers_of_two_and_three_quarters_of_them():
    assert [rounded_up(count) for count in (1, 2, 3, 5, 6, 9, 13, 100, 129, 256)] == [
        1,
        2,
        3,
        6,
        6,
        12,
        16,
        128,
        192,
        256,
    ]


class CountingTokens(TorchFunctionMode):
    """Counts the tokens that are embedded."""

    tokens = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.embedding:
            self.tokens += args[0].numel()
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
def test_what_all_prompts_begin_with_is_computed_once_and_changes_no_logits(kind):
    model, begins, fed = tiny_model(kind), prompt(41), torch.tensor([5, 6, 7])
    prompts = [begins + prompt(length) for length in (3, 20, 9)]
    wanted = [model(torch.tensor([[*ids, token]])).logits[0, -2:] for ids, token in zip(prompts, fed, strict=True)]
    for native in (decoding_kernels(), None):
        decoder = FusedDecoder(model, torch.float32, native)
        decoder.begin(3, 80)
        got = torch.stack([decoder.admit(prompts, [[0], [1], [2]]), decoder.step(fed)], dim=1)
        torch.testing.assert_close(got, torch.stack(wanted), atol=1e-4, rtol=1e-4)
    for given, computed in (([ids[1:] for ids in prompts], 40 + 3 * 24), ([prompts[0][1:], *prompts[1:]], 3 * 64)):
        with CountingTokens() as counter:
            decoder.admit(given, [[0], [1], [2]])
        assert counter.tokens == computed, "whole tiles; a prompt that begins otherwise has all computed apart"


@pytest.mark.parametrize("kind", KINDS)
def test_what_earlier_prompts_have_begun_with_is_not_computed_again_and_changes_no_logits(kind):
    model, begins = tiny_model(kind), prompt(41)
    first, second, third = (begins + prompt(length) for length in (3, 20, 9))
    for native in (decoding_kernels(), None):
        decoder = FusedDecoder(model, torch.float32, native)
        decoder.begin(2, 80)
        admissions = [
            ([first], 48),
            ([second], 64),  # what it begins with as the first did is kept from now on
            ([third], 56 - 40),
            ([first, second], 2 * (64 - 40)),
            ([third[1:]], 56),  # begins otherwise, so nothing is kept
            ([third], 56),
            ([first], 48),
            ([second], 64 - 40),
        ]
        for given, computed in admissions:
            with CountingTokens() as counter:
                logits = decoder.admit(given, [[row] for row in range(len(given))])
            assert counter.tokens == computed
            wanted = [model(torch.tensor([ids])).logits[0, -1] for ids in given]
            torch.testing.assert_close(logits, torch.stack(wanted), atol=1e-4, rtol=1e-4)
            decoder.release([0, 1])
        decoder.reread()
        with CountingTokens() as counter:
            decoder.admit([third], [[0]])
        assert counter.tokens == 56, "other weights make other keys of the same tokens"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_the_decoders_of_compiled_kernels_and_of_torch_give_the_same_logits(kind, dtype, tolerance):
    model = tiny_model(kind)
    compiled, torchs = (FusedDecoder(model, dtype, native) for native in (decoding_kernels(), None))
    fed = torch.arange(80 * 5).view(80, 5) * 7 % 260
    logits = []
    with torch.inference_mode():
        for decoder in (compiled, torchs):
            decoder.begin(5, 110)
            outs = [decoder.admit([prompt(17), prompt(4)], [[0, 2], [1, 3, 4]])]
            outs += [decoder.step(tokens) for tokens in fed]  # past the columns there is room for at first
            decoder.end()
            logits.append(torch.cat(outs).float())
    assert (logits[0] - logits[1]).abs().mean() < tolerance
    assert (logits[0] - logits[1]).abs().max() < tolerance * max(1, logits[0].abs().max())


@pytest.mark.skipif(not prefers_onednn(torch.bfloat16), reason="oneDNN has no bfloat16 here")
def test_a_large_bfloat16_weight_is_packed_once_and_gives_the_same_product():
    # whole numbers: their products and sums are exact in float32
    generator = torch.Generator().manual_seed(1)
    weight, bias, x = (
        torch.randint(-4, 5, shape, generator=generator).bfloat16() for shape in ((512, 256), (512,), (5, 256))
    )
    kernels = choose_kernels(x.device, x.dtype, decoding_kernels())
    packed = kernels.prepared((weight, bias))
    assert packed[0].layout == torch._mkldnn
    assert torch.equal(kernels.linear(x, packed), (x.double() @ weight.double().T + bias.double()).bfloat16())


def test_the_reason_names_the_compiler_or_why_there_are_no_kernels(monkeypatch):
    model = tiny_model("qwen2")
    with_kernels = engine(model)
    expected = "compiled kernels (" if library().functions else "torch's kernels, as there are no compiled ones: "
    assert with_kernels.path_reason.endswith(f"{expected}{library().reason}{')' if library().functions else ''}")
    asked, sampling = [request(7, 4), request(20, 2)], Sampling(max_completion_length=30)
    completions = with_kernels.generate(asked, sampling)
    assert "float64 on cpu" in engine(model.double()).path_reason
    monkeypatch.setenv("PATH", "/nonexistent")
    try:
        forget_kernels()
        without = engine(model.float())
        assert "torch's kernels, as there are no compiled ones: no C compiler" in without.path_reason
        for left, right in zip(completions, without.generate(asked, sampling), strict=True):
            assert [one.token_ids for one in left] == [one.token_ids for one in right]
    finally:
        monkeypatch.undo()
        forget_kernels()


def forget_kernels() -> None:
    library.cache_clear()
    decoding_kernels.cache_clear()


def test_each_completion_ends_at_its_own_limit():
    model, limits = tiny_model("qwen3"), (3, 25, 1, 9)
    asked = dataclasses.replace(request(6, 4), limits=limits)
    local, sampling = engine(model, slots=3, eos=()), Sampling(max_completion_length=25)
    free, unlimited = local.generate([asked, request(6, 4)], sampling)
    assert [len(one.token_ids) for one in free] == list(limits)
    assert {one.finish_reason for one in free} == {"length"}
    for one, whole, limit in zip(free, unlimited, limits, strict=True):
        assert one.token_ids == whole.token_ids[:limit]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ((4, 4, 4), "prompt 1 of the batch has 3 limits for 2 completions"),
        ((4, 0), r"prompt 1 of the batch limits a completion to 0 tokens, a limit must lie in \[1, 8\]"),
        ((9, 4), r"to 9 tokens, a limit must lie in \[1, 8\]"),
    ],
)
def test_limits_that_do_not_fit_are_refused(limits, message):
    asked = dataclasses.replace(request(6, 2), limits=limits)
    with pytest.raises(DataError, match=message):
        engine(tiny_model("qwen2")).generate([request(3), asked], Sampling(max_completion_length=8))
