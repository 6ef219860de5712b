"""One plan of layers, which training, the fused decoder and the memory plan read."""

import subprocess
import sys

import pytest
from transformers.models.mixtral.modeling_mixtral import MixtralForCausalLM

from paceline.engines.local.weights import planned_layers, unsupported_reason
from paceline.models import families
from paceline.models.families import FAMILIES, layer_plans, partial_attention
from paceline.models.families.layer_plan import FULL, WINDOW, Family
from paceline.models.fused_layers import fuse_layers, is_fused
from paceline.training.plan.shape import model_shape
from tests.support.families import family, make_config, make_model

DENSE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}


@pytest.mark.parametrize("model_type", [known.model_type for known in FAMILIES])
def test_a_familys_plan_names_the_modules_of_its_layers(model_type):
    model = make_model(family("mistral, no window" if model_type == "mistral" else model_type))
    plans, known = layer_plans(model.config), next(known for known in FAMILIES if known.model_type == model_type)
    assert [plan.family for plan in plans] == [known] * 4
    assert known.architecture == type(model).__name__
    for layer, plan in zip(model.model.layers, plans, strict=True):
        assert known.made(layer, "DecoderLayer")
        modules = dict(layer.named_modules())
        assert {*plan.parts.norms, *plan.parts.linear, plan.parts.attention, plan.parts.feed_forward} <= modules.keys()
        weighted = {
            name for name, module in modules.items() if "weight" in dict(module.named_parameters(recurse=False))
        }
        assert weighted == {*plan.parts.norms, *plan.parts.linear}, "a part that the plan leaves out"
        queries, keys, _ = (modules[path].out_features for path in plan.parts.projections)
        assert (queries, keys) == (plan.query_heads * plan.head_dim, plan.key_value_heads * plan.head_dim)
        assert modules[plan.parts.down].in_features == plan.inner
    assert unsupported_reason(model) is None
    assert fuse_layers(model)


def test_a_new_family_is_one_entry_that_all_of_its_readers_take(monkeypatch):
    # Mixtral without its experts' layout: what matters here is who asks the list
    entry = Family(model_type="mixtral", prefix="Mixtral", parts={FULL: FAMILIES[0].parts[FULL]})
    monkeypatch.setattr(families, "FAMILIES", (*FAMILIES, entry))
    model = make_model(family("mixtral, router jitter"))
    assert isinstance(model, MixtralForCausalLM)
    assert len(planned_layers(model)) == 4
    assert fuse_layers(model)
    assert is_fused(model)
    assert model_shape(model.config.to_dict(), parameters=1).fused


@pytest.mark.parametrize(
    ("name", "kinds", "window"),
    [
        ("qwen2, window", [FULL, FULL, WINDOW, WINDOW], 8),
        ("mistral", [WINDOW] * 4, 8),
        ("lfm2", ["conv", "conv", FULL, "conv"], None),
        ("gpt_oss", [WINDOW, FULL] * 2, 8),
    ],
)
def test_a_layer_of_a_kind_without_kernels_has_no_parts(name, kinds, window):
    plans = layer_plans(make_config(family(name)))
    assert [plan.kind for plan in plans] == kinds
    assert [plan.window for plan in plans] == [window if kind == WINDOW else None for kind in kinds]
    assert all((plan.parts is not None) == (plan.kind == FULL and plan.family is not None) for plan in plans)
    assert partial_attention(plans) is not None


def test_experts_are_counted():
    assert {plan.experts for plan in layer_plans(make_config(family("qwen3_moe")))} == {4}
    assert {plan.experts for plan in layer_plans(make_config(family("qwen3")))} == {0}


def test_a_config_json_may_leave_out_what_follows_from_the_rest():
    plans = layer_plans({**DENSE, "model_type": "llama"})
    assert [(plan.key_value_heads, plan.head_dim, plan.inner) for plan in plans] == [(4, 8, 128)] * 2
    # Qwen2's files name a window that is switched off
    off = {**DENSE, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}
    assert [plan.kind for plan in layer_plans(off)] == [FULL, FULL]
    assert [plan.kind for plan in layer_plans({**off, "use_sliding_window": True})] == [WINDOW, WINDOW]


def test_a_model_class_decides_on_the_family_before_the_model_type():
    assert layer_plans({"model_type": "mine"})[0].family is None
    assert layer_plans({"model_type": "mine"}, "Qwen3ForCausalLM")[0].family.prefix == "Qwen3"


def test_the_plan_is_read_without_torch():
    code = "import sys; from paceline.models.families import FAMILIES; sys.exit('torch' in sys.modules or not FAMILIES)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
