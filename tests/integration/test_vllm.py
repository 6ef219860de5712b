"""vLLM on a CPU as an engine, held to the local one: the same keys and weights give the same completions.

What goes wrong with vLLM when weights change under it, and what did on this build, each has a test here.
"""

import dataclasses
import multiprocessing
import os
from pathlib import Path

import pytest
import torch

from paceline.engines import Sampling
from paceline.engines.vllm.starting import Room
from paceline.engines.vllm.window import check_vllm
from paceline.errors import ConfigError, DataError, EngineError, TrainingError
from paceline.types import completed
from tests.support.engine_conversations import (
    Others,
    all_at_once,
    all_of,
    apart,
    first_requests,
    last_first,
    played,
    request_alone,
)
from tests.support.tiny import tiny_tokenizer
from tests.support.vllm_models import DEVICE, END, LENGTH, arriving, local_engine, request, take_over, tied_model

try:
    check_vllm(DEVICE)
except ConfigError as missing:
    pytest.skip(str(missing), allow_module_level=True)

from paceline.engines.vllm.engine import VllmEngine
from paceline.engines.vllm.weight_transfer import named_weights

SAMPLING = Sampling(max_completion_length=16)
CACHE = 32 << 20


def started(model, *, kind=VllmEngine, dtype=torch.float32, take_newer=None, **room) -> VllmEngine:
    return kind(
        model,
        tiny_tokenizer(),
        compute_dtype=dtype,
        eos_token_ids=frozenset([END]),
        room=Room(**{"sequences": 64, "length": LENGTH, "cache_bytes": CACHE, **room}),
        take_newer=take_newer,
    )


@pytest.fixture(scope="module")
def engine():
    return started(tied_model())


@pytest.fixture
def fresh(engine):
    """The engine with its first weights again."""
    take_over(engine._model, tied_model())
    engine.take_weights(0)
    return engine


def completions(engine, requests, sampling=SAMPLING):
    return [[one.token_ids for one in group] for group in engine.generate(requests, sampling)]


def logprobs(engine, requests, sampling=SAMPLING):
    return torch.tensor([x for group in engine.generate(requests, sampling) for one in group for x in one.logprobs])


REQUESTS = [request("a", 4), request("b", 3, length=40), request("c", 1, length=1)]


def test_the_same_keys_give_the_completions_of_the_local_engine(fresh):
    local = local_engine(tied_model())
    for one, other in zip(fresh.generate(REQUESTS, SAMPLING), local.generate(REQUESTS, SAMPLING), strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert dataclasses.replace(mine, logprobs=()) == dataclasses.replace(theirs, logprobs=())
            assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def test_the_samples_of_a_prompt_differ_and_a_key_gives_the_same_completion_whatever_the_batch(fresh):
    together = completions(fresh, [request("x", 8), *REQUESTS])
    alone = [completions(fresh, [one])[0] for one in REQUESTS]
    assert len(set(together[0])) > 1
    assert together[1:] == alone


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_completion_length=16, temperature=0.7),
        Sampling(max_completion_length=16, temperature=0.0),
        Sampling(max_completion_length=16, temperature=1.3, top_p=0.8, top_k=20, min_p=0.02),
    ],
    ids=["temperature", "greedy", "truncated"],
)
def test_logprobs_are_of_the_distribution_that_was_drawn_from(fresh, sampling):
    wanted = logprobs(local_engine(tied_model()), REQUESTS, sampling)
    torch.testing.assert_close(logprobs(fresh, REQUESTS, sampling), wanted, atol=1e-4, rtol=0)


def test_prompts_that_are_computed_in_chunks_neither_end_the_engine_nor_change_a_completion(fresh):
    many = [request(f"prompt {index}", 1, length=120) for index in range(60)]
    budget = fresh._vllm.vllm_config.scheduler_config.max_num_batched_tokens
    assert sum(len(one.prompt_ids) for one in many) > budget
    assert completions(fresh, many) == completions(local_engine(tied_model()), many)


def test_a_tied_head_has_the_new_weights_after_an_update(fresh):
    take_over(fresh._model, tied_model(seed=1))
    fresh.take_weights(1)
    assert completions(fresh, REQUESTS) == completions(local_engine(tied_model(seed=1)), REQUESTS)
    assert {one.policy_version for group in fresh.generate(REQUESTS, SAMPLING) for one in group} == {1}


def test_what_was_cached_of_a_prompt_does_not_survive_an_update(fresh):
    long = [request("long", 2, length=150)]  # fills a block of the cache
    before = completions(fresh, long)
    take_over(fresh._model, tied_model(seed=1))
    fresh.take_weights(1)
    assert completions(fresh, long) == completions(local_engine(tied_model(seed=1)), long) != before


def test_the_engine_has_a_copy_that_only_an_update_changes(fresh):
    before = completions(fresh, REQUESTS)
    take_over(fresh._model, tied_model(seed=1))
    assert completions(fresh, REQUESTS) == before


def test_the_cache_has_the_size_that_was_asked_for(engine):
    config = engine._vllm.vllm_config.cache_config
    token = 2 * 2 * 2 * 32 * 4  # keys and values, layers, heads, width, bytes
    assert config.num_gpu_blocks * config.block_size * token == pytest.approx(CACHE, rel=0.02)


def test_a_completion_ends_after_a_stop_string_which_stays_in_the_text(fresh):
    text = completions_text(fresh, SAMPLING)
    stop = text[3:5]
    sampling = dataclasses.replace(SAMPLING, stop=(stop,))
    (mine,), (theirs,) = (one.generate([request("a", 1)], sampling)[0] for one in (fresh, local_engine(tied_model())))
    assert mine.text.endswith(stop)
    assert mine.finish_reason == "stop"
    assert mine.token_ids == theirs.token_ids


def completions_text(engine, sampling) -> str:
    text: str = engine.generate([request("a", 1)], sampling)[0][0].text
    return text


def test_each_completion_has_a_limit_of_its_own_and_is_told_when_it_ends(fresh):
    limited = dataclasses.replace(request("a", 3), limits=(1, 5, 16))
    told = []
    (group,) = fresh.generate(
        [limited], SAMPLING, on_finished=lambda one: told.append((one.request, one.token_ids, one.text))
    )
    unlimited = completions(fresh, [request("a", 3)])[0]
    assert [one.token_ids for one in group] == [ids[:limit] for ids, limit in zip(unlimited, (1, 5, 16), strict=True)]
    assert sorted(told) == sorted((0, one.token_ids, one.text) for one in group)


@pytest.mark.parametrize("order", [None, all_at_once, last_first], ids=["at once", "lock-step", "reversed"])
def test_conversations_have_the_tokens_of_the_local_engine_and_of_calls_apart(fresh, order):
    # two of them fill a block of vLLM's cache
    others, same = (Others(first_requests((140, 12, 135, 20), samples=2), order=one) for one in (order, None))
    cached, step = [], fresh._vllm.step

    def noting():
        outputs = step()
        cached.extend(one.num_cached_tokens for one in outputs if one.finished)
        return outputs

    fresh._vllm.step = noting
    try:
        turns = played(fresh, others, SAMPLING)
    finally:
        del fresh._vllm.step
    assert sum(one == 128 for one in cached) >= 8, "the later turns of four conversations begin in the cache"
    assert all_of(turns) == all_of(played(local_engine(tied_model()), same, SAMPLING))
    by_request = [one.token_ids for one in apart(fresh, others, SAMPLING)]
    numbers = [(index, sample) for index, one in enumerate(others.requests) for sample in range(len(one.keys))]
    alone = dict(zip(numbers, by_request, strict=True))
    assert all_of(turns) == {one: [alone[place] for place in places] for one, places in others.places.items()}


def test_weights_that_come_while_completions_are_sampled_are_refused_and_the_engine_goes_on(fresh):
    before = completions(fresh, REQUESTS)
    with pytest.raises(TrainingError, match="version 1 came while completions were sampled from version 0"):
        fresh.generate(REQUESTS, SAMPLING, on_finished=lambda *_: fresh.take_weights(1))
    assert not fresh._vllm.has_unfinished_requests()
    assert completions(fresh, REQUESTS) == before


def test_a_model_that_computes_something_else_than_the_trainer_ends_the_run_with_the_version_and_the_distance(fresh):
    class Stale(type(fresh)):
        def _weights(self):
            return named_weights(tied_model())

    take_over(fresh._model, tied_model(seed=1))
    fresh.__class__ = Stale
    try:
        with pytest.raises(TrainingError, match=r"differ from the trainer's by up to .* nats .* at policy version 7"):
            fresh.take_weights(7)
    finally:
        fresh.__class__ = VllmEngine


def test_a_small_step_of_the_weights_is_seen_by_the_probe(fresh):
    with torch.no_grad():
        fresh._model.model.layers[0].mlp.down_proj.weight.mul_(1.01)
    with pytest.raises(TrainingError, match="probe"):
        fresh._probe()


def test_a_prompt_that_is_too_long_is_refused_before_anything_is_sampled(fresh):
    with pytest.raises(DataError, match="180 tokens and up to 16 to come, vLLM was started for 192"):
        fresh.generate([request("a", 1, length=180)], SAMPLING)


def test_a_cache_too_small_for_one_sequence_is_an_error_of_the_engine():
    with pytest.raises(EngineError, match="vLLM failed when it started"):
        started(tied_model(), sequences=4, cache_bytes=1 << 10)


def test_the_process_is_what_it_was_after_the_start(engine):
    assert "libtcmalloc" not in os.environ.get("LD_PRELOAD", "")
    torch.set_num_threads(2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_layers_spread_over_two_processes_compute_the_same_and_the_loss_of_one_is_an_error_of_the_engine():
    model, files = tied_model(seed=1), set(Path("/dev/shm").glob("vllm_*"))
    wide = started(model, tensor_parallel=2)
    assert set(Path("/dev/shm").glob("vllm_*")) <= files
    assert completions(wide, REQUESTS) == completions(local_engine(model), REQUESTS)
    take_over(model, tied_model())
    wide.take_weights(1)
    assert completions(wide, REQUESTS) == completions(local_engine(model), REQUESTS)
    first, *_ = multiprocessing.active_children()
    first.kill()
    first.join()
    with pytest.raises(EngineError, match="vLLM failed when"):
        completions(wide, REQUESTS)


def test_a_run_of_short_completions_has_room_for_the_probe():
    model, short = tied_model(), Sampling(max_completion_length=2)
    engine = started(model, sequences=4, length=8)
    requests = [request("c", 3, length=6)]
    assert completions(engine, requests, short) == completions(local_engine(model), requests, short)


def test_narrow_heads_are_filled_up():
    model = tied_model(heads=8)
    assert completions(started(model), REQUESTS) == completions(local_engine(model), REQUESTS)


def test_of_a_model_with_an_adapter_vllm_gets_the_layers_that_have_one_and_samples_with_the_sum():
    peft = pytest.importorskip("peft")
    model = tied_model()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # its first matrix is drawn
        peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    engine = started(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.05)
    assert {name.split(".")[3] for name, _ in engine._weights()} == {"self_attn", "mlp"}
    engine.take_weights(1)
    assert completions(engine, REQUESTS) == completions(local_engine(model), REQUESTS)


def test_weights_of_a_layer_that_come_apart_are_an_error_of_the_engine():
    class Apart(VllmEngine):
        def _weights(self):
            return sorted(super()._weights(), key=lambda named: named[0].split(".")[-2])

    with pytest.raises(EngineError, match="a weight of QKVParallelLinear came after those of other layers"):
        started(tied_model(), kind=Apart, sequences=4)


def test_a_head_of_its_own_has_the_new_weights_after_an_update_in_bfloat16_too():
    model = tied_model()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    engine = started(model, dtype=torch.bfloat16, sequences=4)
    with torch.no_grad():
        model.lm_head.weight.neg_()
    engine.take_weights(1)  # which probes it


@pytest.mark.parametrize("before", [1, 5])
def test_weights_that_come_while_it_samples_are_gone_on_with_as_in_the_local_engine(before):
    found = []
    for engine_of in (started, local_engine):
        model, newer = tied_model(), tied_model(seed=1)
        engine = engine_of(model, take_newer=arriving(model, newer, before=before, version=3))
        found.append([one for group in engine.generate(REQUESTS, SAMPLING) for one in group])
        engine.take_weights(4)
        assert completions(engine, REQUESTS) == completions(local_engine(newer), REQUESTS)
    for mine, theirs in zip(*found, strict=True):
        assert dataclasses.replace(mine, logprobs=()) == dataclasses.replace(theirs, logprobs=())
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert {completed((), one).tokens_by_version for one in found[0] if len(one.token_ids) == 16} == {
        ((0, before), (3, 16 - before))
    }


def test_turns_after_new_weights_are_those_of_the_new_weights_alone_and_say_their_version():
    # the contexts of later turns fill a block of vLLM's cache, which older weights have computed
    model, newer, others = tied_model(), tied_model(seed=1), Others(first_requests((140, 12), samples=2))
    first, is_new = list(others.requests), []

    def between_two_turns() -> int | None:
        if is_new or len(others.requests) == len(first):
            return None
        is_new.append(take_over(model, newer))
        return 3

    others.order = all_at_once
    engine, cached = started(model, take_newer=between_two_turns), []
    step = engine._vllm.step

    def noting():
        outputs = step()
        cached.extend(one.num_cached_tokens for one in outputs if one.finished)
        return outputs

    engine._vllm.step = noting
    conversations = played(engine, others, SAMPLING)
    assert is_new
    old, new = local_engine(tied_model()), local_engine(newer)
    for turns in conversations.values():
        assert [completed((), one).tokens_by_version for one in turns] == [
            ((version, len(one.token_ids)),) for version, one in zip((0, 3, 3), turns, strict=True)
        ]
    for place, turns in conversations.items():
        for turn, at in enumerate(others.places[place]):
            asked = request_alone(others.requests[at[0]])
            alone = (new if turn else old).generate([asked], SAMPLING)[0][at[1]]
            assert turns[turn].token_ids == alone.token_ids
            assert turns[turn].logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    # of the two long ones, which share their first block, one computes it in the first turn and one anew in the second
    assert sorted(cached) == [0] * 8 + [128] * 4


def test_requests_that_wait_when_new_weights_come_find_nothing_of_the_older_ones():
    model, newer = tied_model(), tied_model(seed=1)
    engine = started(model, sequences=2, take_newer=arriving(model, newer, before=4, version=3))
    asked = [request("long", 8, length=150)]
    group = engine.generate(asked, SAMPLING)[0]
    alone = local_engine(newer).generate(asked, SAMPLING)[0]
    later = [at for at, one in enumerate(group) if one.policy_version == 3]
    assert len(later) >= 6
    assert [group[at].token_ids for at in later] == [alone[at].token_ids for at in later]
