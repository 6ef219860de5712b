"""Routes that the engine chose reach the trainer: through completions, turns, the journal and micro-batches."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from paceline.config.building import build_config
from paceline.config.objective import LossConfig, OptimConfig
from paceline.engines import Request, Sampling
from paceline.engines.local.decoder import Decoder, PlainDecoder, RecomputingDecoder
from paceline.engines.local.engine import LocalEngine
from paceline.engines.local.fused import FusedDecoder
from paceline.episodes.episode import _with_routes
from paceline.errors import ConfigError
from paceline.models.activations import recompute
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.models.routing import routing_of
from paceline.training.learner.learner import Learner
from paceline.training.learner.samples import samples_of
from paceline.training.learner.stats import UpdateStats
from paceline.training.rollouts.restoring import restorable_lines, restored_groups
from paceline.types import Completion, Rollout, RolloutGroup, Span, Task, completed
from tests.support.families import family, make_model
from tests.support.tiny import tiny_tokenizer

PROMPTS = ((1, 2, 3), (40, 50, 60, 70, 80))


def engine_of(model, dtype: torch.dtype = torch.float32, *, notes_routes: bool = True) -> LocalEngine:
    return LocalEngine(
        model,
        tiny_tokenizer(),
        concurrent_sequences=8,
        compute_dtype=dtype,
        eos_token_ids=frozenset(),
        notes_routes=notes_routes,
    )


def sampled(
    model, dtype: torch.dtype, decoder: Callable[..., Decoder] = PlainDecoder, *, prompts=PROMPTS
) -> tuple[RolloutGroup, ...]:
    """Two groups of three completions of up to six tokens, with advantages."""
    engine = engine_of(model, dtype)
    engine._decoder = decoder(model, dtype)
    requests = [Request(prompt_ids=prompt, keys=(1, 2, 3), limits=(6, 4, 1)) for prompt in prompts]
    return tuple(
        RolloutGroup(
            task=Task(task_id=str(number), prompt="", prompt_ids=prompt, answer=None),
            rollouts=tuple(
                Rollout(trajectory=completed(prompt, one), rewards={}, reward=1.0, advantage=advantage)
                for one, advantage in zip(completions, (1.0, -0.5, -0.5), strict=True)
            ),
        )
        for number, (prompt, completions) in enumerate(
            zip(prompts, engine.generate(requests, Sampling(max_completion_length=6)), strict=True)
        )
    )


class Half(Ranks):
    """One of two ranks that each compute a share of the samples; hears what the other said, if it was here before."""

    shares = size = 2

    def __init__(self, share: int, other: "Half | None" = None) -> None:
        self.share, self.said = share, ""
        self.heard = "[]" if other is None else other.said

    def passes(self, counts) -> int:
        return max(counts)

    def all_gather_text(self, text: str) -> list[str]:
        self.said = text
        return [text, self.heard]


def stepped(
    model,
    groups,
    dtype: torch.dtype,
    *,
    micro_batch_tokens: int = 4096,
    kind: str = "packed",
    recomputes: bool = False,
    ranks: Ranks = ONE_RANK,
) -> UpdateStats:
    """What a step on groups reports, with a learning rate of 0."""
    forward = replace(choose_forward(model.train(), dtype), kind=kind)
    if recomputes:
        recompute(model, None)
    learner = Learner(
        Loaded(model=model, compute_dtype=dtype),
        forward,
        reference=None,
        loss=LossConfig(),
        optim=OptimConfig(micro_batch_tokens=micro_batch_tokens),
        temperature=1.0,
        max_completion_length=6,
        ranks=ranks,
    )
    return learner.step(groups, learning_rate=0.0)


@pytest.mark.parametrize("decoder", [PlainDecoder, RecomputingDecoder])
def test_the_engine_notes_the_routes_of_every_token_that_it_read(decoder):
    model = make_model(family("glm4_moe")).eval()
    for group in sampled(model, torch.float32, decoder):
        for rollout in group.rollouts:
            prompt, policy = rollout.trajectory.spans
            routing = routing_of(model)
            routing.begin()
            model(input_ids=torch.tensor([[*prompt.tokens, *policy.tokens]]), use_cache=False)
            routes, width = routing.chosen().numpy().tobytes(), 3 * 2
            assert prompt.routes == routes[: len(prompt.routes)]
            assert len(prompt.routes) == width * len(prompt.tokens)
            # the last token was sampled and never read
            assert policy.routes == routes[len(prompt.routes) : -width] + b"\xff" * width


def test_the_fused_decoder_leaves_out_what_nothing_reads_of_a_prompts_last_layer():
    model = make_model(family("qwen3_moe")).eval()
    for group in sampled(model, torch.float32, lambda model, dtype: FusedDecoder(model, dtype, None)):
        for rollout in group.rollouts:
            prompt, policy = rollout.trajectory.spans
            routing = routing_of(model)
            routing.begin()
            model(input_ids=torch.tensor([[*prompt.tokens, *policy.tokens]]), use_cache=False)
            expected = routing.chosen().view(len(prompt.tokens) + len(policy.tokens), len(routing._choices), -1).clone()
            noted = torch.frombuffer(bytearray(prompt.routes + policy.routes), dtype=torch.uint8).view_as(expected)
            expected[-1] = 255  # sampled, and never read
            expected[: len(prompt.tokens) - 1, -1] = 255
            assert torch.equal(noted, expected)


def test_an_engine_notes_nothing_where_it_is_not_asked_or_there_are_no_experts():
    requests = [Request(prompt_ids=(1, 2), keys=(1,))]
    for name, notes_routes in (("glm4_moe", False), ("olmo2", True)):
        engine = engine_of(make_model(family(name)), notes_routes=notes_routes)
        ((one,),) = engine.generate(requests, Sampling(max_completion_length=3))
        assert (one.routes, one.prompt_routes) == (b"", b"")


def test_loads_are_the_same_however_a_step_is_cut():
    model = make_model(family("qwen3_moe"))
    groups = sampled(model, torch.float32)
    whole = stepped(model, groups, torch.float32)
    assert whole.router_disagreement == 0.0
    assert whole.expert_load_max is not None
    assert 1 < whole.expert_load_max <= 4
    for tokens, kind in ((1, "packed"), (12, "packed"), (4096, "padded"), (1, "padded")):
        cut = stepped(model, groups, torch.float32, micro_batch_tokens=tokens, kind=kind)
        for name in ("router_disagreement", "expert_load_max", "experts_unused"):
            assert getattr(cut, name) == getattr(whole, name)


def test_loads_are_the_same_on_two_ranks():
    model = make_model(family("qwen3_moe"))
    groups = sampled(model, torch.float32)
    whole, first = stepped(model, groups, torch.float32), Half(0)
    alone = stepped(model, groups, torch.float32, ranks=first)
    both = stepped(model, groups, torch.float32, ranks=Half(1, first))
    assert both.expert_load_max == whole.expert_load_max != alone.expert_load_max
    assert both.experts_unused == whole.experts_unused


def other_experts(routes: bytes) -> bytes:
    return bytes(number if number == 255 else (number + 2) % 4 for number in routes)


def turned(groups) -> list[RolloutGroup]:
    """The groups with other experts in every route."""
    return [
        replace(
            group,
            rollouts=tuple(
                replace(
                    rollout,
                    trajectory=replace(
                        rollout.trajectory,
                        spans=tuple(replace(s, routes=other_experts(s.routes)) for s in rollout.trajectory.spans),
                    ),
                )
                for rollout in group.rollouts
            ),
        )
        for group in groups
    ]


def test_other_routes_are_trained_on_and_counted():
    model = make_model(family("qwen3_moe"))
    groups = sampled(model, torch.float32)
    own = stepped(model, groups, torch.float32)
    other = stepped(model, turned(groups), torch.float32)
    assert other.router_disagreement > 0.5
    assert other.logprob_mismatch_mean > 100 * own.logprob_mismatch_mean


def test_recomputed_layers_take_the_same_routes():
    model = make_model(family("qwen3_moe"))
    groups = turned(sampled(model, torch.float32))
    kept = stepped(model, groups, torch.float32, micro_batch_tokens=12)
    again = stepped(model, groups, torch.float32, micro_batch_tokens=12, recomputes=True)
    assert again.grad_norm == kept.grad_norm > 0
    assert again.expert_load_max == kept.expert_load_max


def without_routes(groups) -> list[RolloutGroup]:
    spans = [[[replace(s, routes=b"") for s in r.trajectory.spans] for r in group.rollouts] for group in groups]
    return [
        replace(
            group,
            rollouts=tuple(
                replace(rollout, trajectory=replace(rollout.trajectory, spans=tuple(own)))
                for rollout, own in zip(group.rollouts, of_group, strict=True)
            ),
        )
        for group, of_group in zip(groups, spans, strict=True)
    ]


def test_replay_brings_a_trainer_closer_to_an_engine_of_another_precision():
    model = make_model(family("gpt_oss"))
    prompts = tuple(tuple((7 * index * step + 3) % 250 + 1 for index in range(1, 40)) for step in (1, 2))
    groups = sampled(model.eval(), torch.bfloat16, prompts=prompts)
    replayed = stepped(model, groups, torch.float32)
    apart = stepped(model, without_routes(groups), torch.float32)
    assert apart.router_disagreement is None
    assert replayed.router_disagreement < 0.5
    assert replayed.logprob_mismatch_max < apart.logprob_mismatch_max / 1.5


def test_a_restored_step_has_the_same_routes():
    groups = sampled(make_model(family("deepseek_v3")), torch.float32)
    lines = [json.loads(line) for line in restorable_lines(groups)]
    assert [sorted({"routes", "prompt_routes"} & set(line)) for line in lines[:3]] == [
        ["prompt_routes", "routes"],
        ["routes"],
        ["routes"],
    ]
    assert samples_of(restored_groups(lines)) == samples_of(groups)
    assert samples_of(groups)[0].prompt_routes


def turn(tokens: tuple[int, ...], routes: str, prompt_routes: str) -> Completion:
    return Completion(
        token_ids=tokens,
        logprobs=(-1.0,) * len(tokens),
        finish_reason="stop",
        text="",
        policy_version=0,
        routes=bytes.fromhex(routes),
        prompt_routes=bytes.fromhex(prompt_routes),
    )


def test_turns_keep_what_they_were_sampled_with_and_later_prompts_fill_in_the_rest():
    spans = [
        Span(by="prompt", tokens=(1, 2)),
        Span(by="policy", tokens=(3, 4)),
        Span(by="environment", tokens=(5,)),
        Span(by="policy", tokens=(6, 7)),
        Span(by="prompt", tokens=(8,)),  # the history is rewritten
        Span(by="policy", tokens=(9,)),
    ]
    turns = [
        turn((3, 4), "03ff", "0102"),
        turn((6, 7), "06ff", "aabbccddee"),  # read anew: the last token of the first turn, and the environment's
        turn((9,), "ff", "08"),
    ]
    routes = [span.routes.hex() for span in _with_routes(spans, turns)]
    assert routes == ["0102", "03dd", "ee", "06ff", "08", "ff"]
    resumed = [turns[0], turn((6, 7), "06ff", "ffffff0405"), turns[2]]
    assert [span.routes.hex() for span in _with_routes(spans, resumed)][1:3] == ["0304", "05"]


def test_replay_is_refused_where_nobody_could_note_routes():
    options = {"model": "embedded", "dataset": "arithmetic", "router_replay": "true"}
    with pytest.raises(ConfigError, match="router-replay must be auto or false with --engine vllm"):
        build_config({**options, "engine": "vllm"})
    with pytest.raises(ConfigError, match="router-replay must be auto or false with --pipeline-parallel"):
        build_config({**options, "pipeline_parallel": 2})
