"""Scans and convolutions of hybrids over packed tokens: a prompt's state is computed once and forked."""

import functools
import inspect
import sys
import types

import pytest
import torch
from torch.nn.functional import softplus
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.lfm2 import modeling_lfm2
from transformers.models.nemotron_h import modeling_nemotron_h
from transformers.models.qwen3_next import modeling_qwen3_next

from paceline.errors import ModelError
from paceline.models.attention import PackedLayout
from paceline.models.families import layer_plans
from paceline.models.forward import choose_forward
from paceline.models.parallel.context import Exchange
from paceline.models.states import Door, forked, mixing_layers, open_doors, scan_problem, tried_scan
from paceline.objective.micro_batches import one_turn, pack
from tests.support.exact import Float64Kept
from tests.support.families import family, make_config, make_model

CPU = torch.device("cpu")
MIXERS = {
    "torch_chunk_gated_delta_rule": modeling_qwen3_next,
    "chunk_kimi_delta_attention": modeling_kimi_linear,
    "mamba2_chunk_scan": modeling_nemotron_h,
}
by_scan = pytest.mark.parametrize("name", MIXERS)


@pytest.fixture(autouse=True)
def doors():
    for name in ("qwen3_next", "kimi_linear", "nemotron_h", "lfm2"):
        assert open_doors(make_model(family(name))) is None


def layout_of(prompts, completions):
    """Layout of prompts of these lengths; `completions`: owner and number of inputs of each completion."""
    samples = [
        one_turn(group=owner, prompt_ids=(owner,) * prompts[owner], completion_ids=(7,) * (inputs + 1), advantage=0.0)
        for owner, inputs in completions
    ]
    return PackedLayout(batch=pack(samples, [0.0] * len(samples), range(len(samples)), dtype=torch.float64))


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs_of(name, tokens, *, seed=0):
    """Random inputs of a scan by name: two heads, width 4."""
    first, second, third = (drawn(1, tokens, 2, 4, seed=3 * seed + number) for number in range(3))
    scalars = drawn(1, tokens, 2, seed=seed + 50)
    if name == "mamba2_chunk_scan":
        return {"hidden_states": first, "dt": scalars, "B": second, "C": third}
    decays = drawn(1, tokens, 2, 4, seed=seed + 51) if name == "chunk_kimi_delta_attention" else scalars
    return {"query": first, "key": second, "value": third, "g": -softplus(decays), "beta": scalars.sigmoid()}


def options_of(name, chunk):
    if name == "mamba2_chunk_scan":
        rest = {"A": -drawn(2, seed=60).exp(), "D": drawn(2, seed=61), "dt_bias": drawn(2, seed=62)}
        return {**rest, "dt_softplus": True, "dt_limit": (0.001, 5.0), "chunk_size": chunk}
    return {"use_qk_l2norm_in_kernel": True, "chunk_size": chunk}


def recurrence(name, inputs, options):
    """The textbook's form, one token at a time: outputs [T, heads, width] of one row."""
    inputs = {key: value[0] for key, value in inputs.items()}
    state, outputs = torch.zeros(2, 4, 4, dtype=torch.float64), []
    for token in range(len(next(iter(inputs.values())))):
        row = {key: value[token] for key, value in inputs.items()}
        if name == "mamba2_chunk_scan":
            step = softplus(row["dt"] + options["dt_bias"]).clamp(*options["dt_limit"])
            state = (step * options["A"]).exp()[:, None, None] * state
            state = state + step[:, None, None] * row["hidden_states"][:, :, None] * row["B"][:, None]
            out = (state * row["C"][:, None]).sum(-1) + options["D"][:, None] * row["hidden_states"]
        else:
            query, key = (
                row[side] / (row[side].square().sum(-1, keepdim=True) + 1e-6).sqrt() for side in ("query", "key")
            )
            decay = row["g"].exp()
            state = state * (decay[:, :, None] if decay.dim() == 2 else decay[:, None, None])
            off = row["value"] - (state * key[:, :, None]).sum(1)
            state = state + row["beta"][:, None, None] * key[:, :, None] * off[:, None]
            out = (state * query[:, :, None]).sum(1) / 2  # by the root of the width
        outputs.append(out)
    return torch.stack(outputs)


def packed(name, inputs, options, layout):
    with Float64Kept():
        out = getattr(MIXERS[name], name)(**inputs, **options, packed_attention=layout)
    return (out if name == "mamba2_chunk_scan" else out[0])[0]


def rows_of(layout):
    """Packed tokens of each completion's row, prompt included."""
    batch, at = layout.batch, 0
    spans = []
    for length in (*batch.prompt_lengths, *batch.input_lengths):
        spans.append(list(range(at, at + length)))
        at += length
    count = len(batch.prompt_lengths)
    return [spans[owner] + spans[count + number] for number, owner in enumerate(batch.prompt_of_sample)]


def test_the_delta_rule_goes_on_from_the_prompts_state():
    # key and query 1, decay 0.5, beta 0.5: values 2, 4 from a state of zero; then the same from the prompt's state 2
    def run(values, layout):
        one = torch.ones(1, len(values), 1, 1, dtype=torch.float64)
        inputs = {"query": one, "key": one, "value": torch.tensor(values, dtype=torch.float64)[None, :, None, None]}
        inputs |= {"g": one[..., 0] * torch.tensor(0.5).log(), "beta": one[..., 0] * 0.5}
        return packed("torch_chunk_gated_delta_rule", inputs, {}, layout).flatten().tolist()

    assert run([2.0, 4.0], layout_of([2], [(0, 0)])) == pytest.approx([1, 2.25])
    # a prompt whose value 4 leaves the state 2
    assert run([4.0, 2.0, 4.0], layout_of([1], [(0, 2)])) == pytest.approx([2, 1.5, 2.375])


def test_a_mamba_2_scan_adds_to_what_has_decayed():
    one = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    inputs = {"hidden_states": one, "dt": one[..., 0] * torch.tensor(2.0).log(), "B": one, "C": one}
    options = {"A": -torch.ones(1, dtype=torch.float64), "chunk_size": 16}
    wanted = [0.6931, 1.0397]  # log 2, then half of it and log 2
    for layout in (layout_of([2], [(0, 0)]), layout_of([1], [(0, 1)])):
        assert packed("mamba2_chunk_scan", inputs, options, layout).flatten().tolist() == pytest.approx(
            wanted, abs=1e-4
        )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("chunk", [1, 16, 64])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
@by_scan
def test_a_scan_in_chunks_is_its_recurrence(name, length, chunk):
    inputs, options = inputs_of(name, 3 + length), options_of(name, chunk)
    leaves = {key: value.requires_grad_() for key, value in inputs.items()}
    got = packed(name, leaves, options, layout_of([3], [(0, length)]))
    wanted = recurrence(name, leaves, options)
    assert (got - wanted).abs().max() < 1e-12
    scale = drawn(*wanted.shape, seed=99)
    gradients = [torch.autograd.grad((out * scale).sum(), list(leaves.values())) for out in (got, wanted)]
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours - theirs).abs().max() < 1e-12 * max(1, theirs.abs().max())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [1, 3, 8])
@by_scan
def test_a_prompts_state_forks_to_its_completions(name, count):
    layout = layout_of([20, 5], [(number % 2, 18 + number) for number in range(count)] + [(1, 2)])
    leaves = {key: value.requires_grad_() for key, value in inputs_of(name, len(layout.batch.input_ids)).items()}
    options = options_of(name, 16)
    got = packed(name, leaves, options, layout)
    scale, loss = drawn(*got.shape, seed=99), torch.zeros((), dtype=torch.float64)
    for prompt, row in zip(layout.batch.prompt_of_sample, rows_of(layout), strict=True):
        whole = recurrence(name, {key: value[:, row] for key, value in leaves.items()}, options)
        assert (got[row] - whole).abs().max() < 1e-12
        own = layout.batch.prompt_lengths[prompt]
        loss = loss + (whole[own:] * scale[row[own:]]).sum()
    of_completions = slice(sum(layout.batch.prompt_lengths), None)
    gradients = [
        torch.autograd.grad(out, list(leaves.values()))
        for out in ((got[of_completions] * scale[of_completions]).sum(), loss)
    ]
    for ours, theirs in zip(*gradients, strict=True):  # of the prompt's tokens: the sum over its completions
        assert (ours - theirs).abs().max() < 1e-12 * max(1, theirs.abs().max())


@by_scan
def test_other_samples_tokens_change_no_bit_of_mine(name):
    layout = layout_of([20, 5], [(0, 18), (0, 3), (1, 30)])
    one, other = (inputs_of(name, len(layout.batch.input_ids), seed=seed) for seed in (0, 9))
    mine = rows_of(layout)[1]
    mixed = {key: value.clone() for key, value in other.items()}
    for key, value in one.items():
        mixed[key][:, mine] = value[:, mine]
    options = options_of(name, 16)
    assert torch.equal(packed(name, one, options, layout)[mine], packed(name, mixed, options, layout)[mine])


@by_scan
def test_empty_completions_and_prompts_of_a_token_are_as_alone(name):
    layout = layout_of([1, 2, 4], [(0, 0), (0, 3), (1, 0), (2, 1), (2, 0)])
    inputs, options = inputs_of(name, len(layout.batch.input_ids)), options_of(name, 16)
    got = packed(name, inputs, options, layout)
    for row in rows_of(layout):
        alone = recurrence(name, {key: value[:, row] for key, value in inputs.items()}, options)
        assert (got[row] - alone).abs().max() < 1e-12
    # no completion has any input
    few = {key: value[:, :4] for key, value in inputs.items()}
    got = packed(name, few, options, layout_of([3, 1], [(0, 0), (1, 0)]))
    alone = recurrence(name, {key: value[:, :3] for key, value in few.items()}, options)
    assert (got[:3] - alone).abs().max() < 1e-12


@by_scan
def test_no_border_survives_a_call(name):
    inputs, options = inputs_of(name, 40), options_of(name, 16)
    layouts = [layout_of([20, 5], [(0, 10), (1, 5)]), layout_of([4], [(0, 30), (0, 6)])]
    first, second = (packed(name, inputs, options, layout) for layout in layouts)
    assert (first - second).abs().max() > 1e-3
    assert torch.equal(packed(name, inputs, options, layouts[0]), first)
    assert (packed(name, inputs, options, None) - recurrence(name, inputs, options)).abs().max() < 1e-12


def test_a_convolutions_door_keeps_activation_and_precision():
    states, weight, bias = (drawn(*shape).to(torch.bfloat16) for shape in ((1, 4, 9), (4, 3), (4,)))
    layout = layout_of([4], [(0, 3), (0, 2)])
    got = modeling_lfm2.causal_conv1d_fn(states, weight, bias, activation="silu", packed_attention=layout)
    assert (got.dtype, got.shape) == (torch.bfloat16, (1, 4, 9))
    for row in rows_of(layout):
        alone = modeling_lfm2.causal_conv1d_fn(states[:, :, row], weight, bias, activation="silu")
        assert (got[:, :, row] - alone).abs().max() <= 2**-7 * alone.abs().max()


def test_a_shortcut_through_the_whole_mixer_is_not_taken():
    taken = Door(
        original=lambda *_, **__: "shortcut", packed=modeling_nemotron_h.mamba2_split_conv1d_scan_combined.packed
    )
    assert taken(1) == "shortcut"
    assert taken(1, packed_attention=layout_of([1], [(0, 1)])) is None


def test_ranks_that_share_tokens_have_no_states():
    layout = PackedLayout(batch=layout_of([1], [(0, 1)]).batch, exchange=Exchange(group=None, tokens=2))
    with pytest.raises(ModelError, match=r"carry a state from token to token.*--context-parallel 1"):
        modeling_lfm2.causal_conv1d_fn(drawn(1, 4, 2), drawn(4, 3), packed_attention=layout)


@by_scan
def test_scans_agree_with_themselves_in_other_pieces(name):
    assert scan_problem(name, getattr(MIXERS[name], name).original, CPU) is None


def test_a_scan_that_drops_its_first_state_is_found():
    own = modeling_qwen3_next.torch_chunk_gated_delta_rule.original

    def forgetful(query, key, value, g, beta, **options):
        return own(query, key, value, g, beta, **options | {"initial_state": None})

    problem = scan_problem("torch_chunk_gated_delta_rule", forgetful, CPU)
    assert "cannot be packed, its forked states differ by" in problem


def test_a_scan_whose_first_state_has_no_gradient_is_found():
    own = modeling_qwen3_next.torch_chunk_gated_delta_rule.original

    def cut(query, key, value, g, beta, initial_state=None, **options):
        state = None if initial_state is None else initial_state.detach()
        return own(query, key, value, g, beta, initial_state=state, **options)

    assert "cannot be packed" in scan_problem("torch_chunk_gated_delta_rule", cut, CPU)


def library(name, compute):
    """What transformers calls where a library is installed: the library's function, before its own in torch."""
    own = getattr(MIXERS[name], name).original.__wrapped__
    return functools.wraps(own)(lambda *arguments, **options: compute(own, *arguments, **options))


@pytest.mark.sampled(2)
@by_scan
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_librarys_scan_is_used_where_it_gives_torchs_numbers(name, dtype):
    def wrong(own, *arguments, **options):
        output, state = own(*arguments, **options)
        return output * 1.1, state

    def failing(own, *arguments, **options):
        raise RuntimeError("this device has no Triton")

    right = library(name, lambda own, *arguments, **options: own(*arguments, **options))
    assert tried_scan(name, right, CPU, dtype) is right
    for other in (library(name, wrong), library(name, failing)):
        assert tried_scan(name, other, CPU, dtype) is other.__wrapped__


def test_packed_tokens_take_torchs_scan_where_a_librarys_fails(monkeypatch):
    def failing(own, *arguments, **options):
        raise RuntimeError("this device has no Triton")

    name, layout = "torch_chunk_gated_delta_rule", layout_of([5, 2], [(0, 3), (1, 1)])
    inputs, options = inputs_of(name, 11), options_of(name, 64)
    expected = packed(name, inputs, options, layout)
    monkeypatch.setattr(modeling_qwen3_next, name, library(name, failing))
    assert open_doors(make_model(family("qwen3_next"))) is None
    assert torch.equal(packed(name, inputs, options, layout), expected)


@pytest.mark.parametrize("renamed", ["torch_chunk_gated_delta_rule", "causal_conv1d_fn"])
def test_a_function_by_another_name_ends_in_padded_rows_and_a_sentence(renamed, monkeypatch):
    source = inspect.getsource(modeling_qwen3_next).replace(renamed, f"later_{renamed}")
    name = "transformers.models.qwen3_next.modeling_later"
    later = types.ModuleType(name)
    later.__file__ = modeling_qwen3_next.__file__
    monkeypatch.setitem(sys.modules, name, later)
    exec(compile(source, later.__file__, "exec"), later.__dict__)
    torch.manual_seed(0)
    model = later.Qwen3NextForCausalLM(make_config(family("qwen3_next")))
    forward = choose_forward(model)
    assert forward.kind == "padded"
    assert "linear_attention" in forward.reason or "differ by" in forward.reason


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["mamba", "jamba", "recurrent_gemma", "minimax", "xlstm"])
def test_a_layer_without_a_door_is_trained_on_padded_rows_and_named(name):
    forward = choose_forward(make_model(family(name)))
    assert forward.kind == "padded"
    assert "of the kind" in forward.reason or "sliding window" in forward.reason


def test_every_layer_asks_for_what_its_kind_needs():
    plans = layer_plans({"layer_types": ["linear_attention", "full_attention", "moe", "hybrid", "conv"]})
    asked = ["scan", "attention", "scan", "attention", "convolution"]
    assert mixing_layers(plans, asked) is None
    for number, kind in ((0, "hybrid"), (1, "hybrid"), (4, "conv")):
        missing = asked[:number] + asked[number + 1 :]
        assert f"some layers are of the kind {kind}" in mixing_layers(plans, missing)


def test_blocks_of_padding_before_a_prompt_leave_its_state():
    def summing(blocks, state):
        sums = blocks[0].cumsum(1) + (0 if state is None else state[:, None])
        return sums, sums[:, -1]

    layout = layout_of([3, 1], [(0, 2), (1, 1)])
    numbers = torch.arange(1.0, 8.0)[:, None]
    assert forked(summing, [numbers], layout.states)[:, 0].tolist() == [1, 3, 6, 4, 11, 17, 11]
