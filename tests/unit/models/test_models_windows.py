"""Attention of packed tokens with a window, sinks and a cap of the scores, by the kernel and by both other layouts."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from paceline.kernels.cpu.attention import packed_attention
from paceline.kernels.cpu.compiling import library
from paceline.kernels.flash_attention import DenseKernel
from paceline.models import attention_checks
from paceline.models.attention import LayerCall, PackedLayout, _padded, attend, attention, varlen_attention
from paceline.models.attention_checks import calls_problem, kinds_problem
from paceline.models.dense_attention import dense_attention
from paceline.models.families import layer_plans
from paceline.models.forward import choose_forward
from paceline.objective.micro_batches import MicroBatch, pack
from tests.support.episodes import sample as make_sample
from tests.support.families import Family, family, make_model

needs_kernel = pytest.mark.skipif(library().functions is None, reason=library().reason)


def by_kernel(query, key, value, layout, *, scaling=1.0, cap=None, sinks=None) -> Tensor:
    states = [states.float() for states in (query, key, value)]
    sinks = None if sinks is None else sinks.float()
    return packed_attention(*states, layout.table, scale=scaling, cap=cap, sinks=sinks).double()


def by_blocks(query, key, value, layout, *, scaling=1.0, cap=None, sinks=None) -> Tensor:
    return _padded(query, key, value, layout.padded, scaling, cap, sinks)


def by_spans(query, key, value, layout, *, scaling=1.0, cap=None, sinks=None) -> Tensor:
    assert cap is None
    return varlen_attention(query, key, value, layout.varlen, scaling, DenseKernel(), sinks)


KERNEL = pytest.param(by_kernel, 1e-5, marks=needs_kernel, id="kernel")
WAYS = [KERNEL, pytest.param(by_blocks, 1e-12, id="blocks"), pytest.param(by_spans, 1e-12, id="spans")]
CAPPING = WAYS[:2]


def packed(*rows: tuple[int, int, int]) -> MicroBatch:
    """Rows of a group, its prompt's length and the number of the completion's inputs."""
    samples = [
        make_sample(group=group, prompt_ids=(1,) * prompt, completion_ids=(2,) * (inputs + 1), advantage=1.0)
        for group, prompt, inputs in rows
    ]
    return pack(samples, [1.0] * len(rows), range(len(rows)), dtype=torch.float64)


def layout_of(*rows: tuple[int, int, int], window: int | None = None) -> PackedLayout:
    return PackedLayout(batch=packed(*rows)).within(window)


def drawn(tokens: int, *, heads: tuple[int, int] = (4, 2), width: int = 16, seed: int = 0) -> list[Tensor]:
    """Query, key, value and sinks."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(tokens, heads[0], width), (tokens, heads[1], width), (tokens, heads[1], width), (heads[0],)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def dense(layout: PackedLayout, window: int, states: list[Tensor], scaling: float, cap: float | None) -> Tensor:
    """One row after another over a full matrix of scores; prompts first."""
    query, key, value, sinks = states
    lengths = [*layout.batch.prompt_lengths, *layout.batch.input_lengths]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    own = [list(range(end - length, end)) for end, length in zip(ends, lengths, strict=True)]
    prompts = [[]] * len(layout.batch.prompt_lengths) + [own[prompt] for prompt in layout.batch.prompt_of_sample]
    outputs = []
    for before, tokens in zip(prompts, own, strict=True):
        seen = [*before, *tokens]
        behind = torch.arange(len(before), len(seen))[:, None] - torch.arange(len(seen))
        mask = (behind >= 0) & (behind < window)
        parts = [part.transpose(0, 1)[None] for part in (query[tokens], key[seen], value[seen])]
        outputs.append(dense_attention(*parts, mask, scaling, cap, sinks)[0].transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize(("way", "tolerance"), WAYS)
def test_window_of_4_over_a_prompt_of_5_shows_each_token_the_last_four(way, tolerance):
    layout = layout_of((0, 5, 3), window=4)
    value = torch.eye(8, 16, dtype=torch.float64)[:, None]  # output i of a token is the share of token i
    zeros = torch.zeros(8, 1, 16, dtype=torch.float64)
    shares = way(zeros, zeros, value, layout)[:, 0, :8]
    seen = [[token for token in range(8) if shares[row, token] > 0] for row in range(8)]
    prompt = [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4]]
    assert seen == [*prompt, [2, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7]]
    assert torch.allclose(shares[4:].max(1).values, torch.full((4,), 0.25, dtype=torch.float64), atol=tolerance)


@pytest.mark.parametrize(("way", "tolerance"), WAYS)
def test_a_window_as_long_as_the_longest_row_changes_no_bit(way, tolerance):
    rows = ((0, 5, 3), (0, 5, 2), (1, 7, 0))
    layout = layout_of(*rows)
    assert layout.longest == 8
    assert layout.within(8) is layout
    assert layout.within(7) is not layout
    states = drawn(len(layout.batch.input_ids))[:3]
    by_window = way(*states, replace(layout, window=8, windows={}))
    if way is by_spans:  # each completion has its keys by itself there
        assert torch.allclose(by_window, way(*states, layout), atol=tolerance)
    else:
        assert torch.equal(by_window, way(*states, layout))


@pytest.mark.parametrize(("way", "tolerance"), WAYS)
def test_a_sink_takes_its_share_and_has_a_gradient(way, tolerance):
    layout = layout_of((0, 2, 0))
    zeros = torch.zeros(2, 1, 16, dtype=torch.float64)
    value = torch.tensor([1.0, 3.0], dtype=torch.float64)[:, None, None].expand(2, 1, 16)
    sink = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    output = way(zeros, zeros, value, layout, sinks=sink)[1, 0, 0]  # exponentials 1, 1 and the sink's 1
    assert output.item() == pytest.approx(4 / 3, abs=tolerance)
    output.backward()
    assert sink.grad.item() == pytest.approx(-4 / 9, abs=tolerance)


@pytest.mark.parametrize(("way", "tolerance"), CAPPING)
def test_a_score_of_100_under_a_cap_of_50_is_48_2014(way, tolerance):
    layout = layout_of((0, 1, 0))
    ten = torch.zeros(1, 1, 16, dtype=torch.float64)
    ten[..., 0] = 10.0
    sink = torch.tensor([48.2014], dtype=torch.float64)  # as large as the score: half of the value of 1 is left
    output = way(ten, ten, torch.ones_like(ten), layout, cap=50.0, sinks=sink)
    assert output[0, 0, 0].item() == pytest.approx(0.5, abs=2e-5)


@pytest.mark.parametrize(("way", "tolerance"), WAYS)
def test_gradients_of_a_completion_stop_at_its_window(way, tolerance):
    layout = layout_of((0, 13, 6), window=6)
    states = drawn(19)
    outside = torch.randn(19, 4, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outside[:13] = 0
    ours = torch.autograd.grad(way(*states[:3], layout, scaling=0.3, sinks=states[3]), states, outside)
    theirs = torch.autograd.grad(dense(layout, 6, states, 0.3, None), states, outside)
    for got, wanted in zip(ours, theirs, strict=True):
        assert torch.allclose(got, wanted, atol=tolerance)
    for got in ours[1:3]:  # keys and values that the first completion token, at 13, does not see
        assert not got[:8].any()
        assert got[8:].all()


ROWS = ((0, 70, 30), (0, 70, 0), (1, 1, 90), (2, 3, 3), (0, 70, 5), (2, 3, 1))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("options", [(None, False), (3.0, False), (None, True), (3.0, True)], ids=str)
@pytest.mark.parametrize("window", [1, 2, 5, 24, 64, 65, 90])
@pytest.mark.parametrize(("way", "tolerance"), WAYS)
def test_outputs_and_gradients_are_those_of_rows_alone(way, tolerance, window, options):
    cap, has_sinks = options
    if way is by_spans and cap is not None:
        pytest.skip("torch's operators have no cap")
    layout = layout_of(*ROWS, window=window)
    states = drawn(len(layout.batch.input_ids))
    asked = states if has_sinks else states[:3]
    given = states[3] if has_sinks else None
    outside = torch.randn(states[0].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got = way(*states[:3], layout, scaling=0.5, cap=cap, sinks=given)
    wanted = dense(layout, window, [*states[:3], given], 0.5, cap)
    assert torch.allclose(got, wanted, atol=tolerance)
    ours, theirs = (torch.autograd.grad(output, asked, outside) for output in (got, wanted))
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).norm() <= tolerance * max(10.0, float(other.norm()))


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [48, 256, 512])
def test_the_kernel_serves_wide_heads_in_both_precisions(dtype, width):
    call = LayerCall(
        layer=None, window=20, cap=50.0, has_sinks=True, heads=(4, 1), widths=(width, width), scaling=width**-0.5
    )
    assert attention_checks._numbers_problem(call, torch.device("cpu"), dtype) is None


@pytest.mark.parametrize(("way", "tolerance"), WAYS)
def test_tokens_of_another_row_change_no_bit_of_mine(way, tolerance):
    layout = layout_of((0, 9, 7), (0, 9, 12), (1, 4, 5), window=6)
    states = drawn(len(layout.batch.input_ids))[:3]
    mine = list(range(9)) + list(range(13, 20))
    before = way(*states, layout)[mine]
    with torch.no_grad():
        for part in states:
            part[20:] += 1.0
    assert torch.equal(way(*states, layout)[mine], before)


@pytest.mark.parametrize(("way", "tolerance"), WAYS)
def test_rows_without_inputs_and_prompts_of_a_token_are_as_alone(way, tolerance):
    layout = layout_of((0, 1, 6), (1, 2, 0), (2, 3, 1), window=4)
    states = drawn(len(layout.batch.input_ids))[:3]
    together = way(*states, layout)
    alone = layout_of((0, 1, 6), window=4)
    mine = [0, *range(6, 12)]
    assert torch.allclose(way(*(part[mine] for part in states), alone), together[mine], atol=tolerance)


def called(layout: PackedLayout | None, states: list[Tensor], mask: Tensor | None = None, **options: object) -> Tensor:
    heads = [part.transpose(0, 1)[None] for part in states[:3]]
    module = nn.Module()
    module.num_key_value_groups = 2
    return attention(module, *heads, mask, layout, scaling=0.25, **options)[0][0]


def test_no_border_survives_a_call_of_the_door():
    first, second = PackedLayout(batch=packed((0, 5, 4))), PackedLayout(batch=packed((0, 2, 3), (1, 1, 3)))
    states = drawn(9)
    once = called(second, states, sliding_window=3, s_aux=states[3])
    called(first, states, sliding_window=3, s_aux=states[3])
    assert torch.equal(called(second, states, sliding_window=3, s_aux=states[3]), once)
    whole = called(None, states, s_aux=states[3])
    assert torch.allclose(whole, called(PackedLayout(batch=packed((0, 9, 0))), states, s_aux=states[3]), atol=1e-12)


def test_rows_that_are_not_packed_heed_sinks_and_caps():
    states, layout = drawn(9), PackedLayout(batch=packed((0, 9, 0)))
    plain = called(None, states)
    for options in ({"s_aux": states[3]}, {"softcap": 0.5}):
        rows = called(None, states, **options)
        assert torch.allclose(rows, called(layout, states, **options), atol=1e-12)
        assert not torch.allclose(rows, plain, atol=1e-3)
    masked = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril().triu(-2)
    windowed = called(layout, states, sliding_window=3, s_aux=states[3])
    assert torch.allclose(called(None, states, masked, s_aux=states[3]), windowed, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt_oss", "gemma2", "vaultgemma"])
def test_generation_through_the_door_is_that_of_the_familys_own_attention(name):
    model, ids = make_model(family(name)).eval(), torch.randint(250, (2, 20))
    ids[0, :4] = 256
    inputs = {"input_ids": ids, "attention_mask": (ids != 256).long()}
    options = {"max_new_tokens": 12, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    own = model.generate(**inputs, **options)
    model.set_attn_implementation("paceline")
    through = model.generate(**inputs, **options)
    assert torch.equal(own.sequences, through.sequences)
    assert torch.allclose(torch.stack(own.logits), torch.stack(through.logits), atol=1e-4)


WINDOWED = [
    "mistral", "ministral", "qwen2, window", "gpt_oss", "gemma2", "gemma3_text", "gemma4_text", "vaultgemma", "olmo3",
    "starcoder2, dropout, window", "exaone4", "mimo_v2_flash", "afmoe",
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize(  # torch's blocks, and the kernel
    ("head_dim", "dtype"), [(8, torch.float32), (8, torch.bfloat16), (16, torch.float32)], ids=str
)
@pytest.mark.parametrize("name", WINDOWED)
def test_families_with_windows_train_on_packed_tokens(name, head_dim, dtype):
    known = family(name)
    wide = replace(known, settings=dict(known.settings) | {"head_dim": head_dim})
    forward = choose_forward(make_model(wide).eval(), dtype)
    assert (forward.kind, forward.reason) == ("packed", "")


def gemma(window: int):
    return make_model(Family(model_type="gemma3_text", settings={"num_hidden_layers": 6, "sliding_window": window}))


@pytest.mark.parametrize(
    ("asked", "said"), [(9, "a window of 9 tokens"), (7, "a window of 7 tokens"), (None, "no window")]
)
@pytest.mark.parametrize("window", [8, 4096])  # one that the probe is longer than, and one that it is not
def test_a_layer_with_another_window_than_its_configuration_is_padded_and_named(asked, said, window):
    model = gemma(window)
    model.model.layers[1].self_attn.sliding_window = asked
    forward = choose_forward(model)
    reason = f"layer 1 gives attention {said}, and its configuration a window of {window} tokens"
    assert (forward.kind, forward.reason) == ("padded", reason)


def test_a_window_in_a_layer_that_should_have_none_is_named():
    model = gemma(4096)
    model.model.layers[5].self_attn.sliding_window = 4096
    forward = choose_forward(model)
    reason = "layer 5 gives attention a window of 4096 tokens, and its configuration no window"
    assert (forward.kind, forward.reason) == ("padded", reason)


def test_attention_that_differs_past_its_window_is_named(monkeypatch):
    """The probe's few tokens are all within a window of 100."""

    def one_less(query, key, value, layout, scaling, **options):
        layout = replace(layout, window=layout.window - 1, windows={}) if layout.window else layout
        return attend(query, key, value, layout, scaling, **options)

    monkeypatch.setattr(attention_checks, "attend", one_less)
    attention_checks._numbers_problem.cache_clear()
    try:
        forward = choose_forward(gemma(100))
    finally:
        attention_checks._numbers_problem.cache_clear()
    assert forward.kind == "padded"
    assert forward.reason.startswith("attention with a window of 100 tokens differs from exact attention by")


def test_a_kind_of_layers_that_packed_attention_does_not_compute_is_named():
    kinds = ["full_attention", "linear_attention", "chunked_attention"]
    assert kinds_problem(layer_plans({"layer_types": kinds})) == "some layers are of the kind chunked_attention"
    assert kinds_problem(layer_plans({"layer_types": kinds[:2]})) is None


def test_attention_that_does_not_name_its_layer_has_no_window_to_be_held_to():
    call = LayerCall(layer=None, window=8, cap=None, has_sinks=False, heads=(4, 2), widths=(16, 16), scaling=0.25)
    plans = layer_plans(gemma(8).config)
    assert "does not say of which layer" in calls_problem([call], plans, torch.device("cpu"), torch.float32)
