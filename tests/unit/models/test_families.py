"""One plan of layers, which training, the fused decoder and the memory plan read."""

import subprocess
import sys

import pytest
from transformers.models.mixtral.modeling_mixtral import MixtralForCausalLM

from paceline.engines.local.weights import architecture_of, linear_paths, planned_layers, unsupported_reason
from paceline.models import families
from paceline.models.families import FAMILIES, layer_plans
from paceline.models.families.layer_plan import FULL, WINDOW, Family, LayerParts
from paceline.models.fused_layers import fuse_layers, is_fused
from paceline.models.head import decoder_of
from paceline.training.plan.shape import model_shape
from tests.support.families import FAMILIES as ALL
from tests.support.families import family, make_config, make_model
from tests.support.seeing import SEEING, seeing_model

DENSE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}


@pytest.mark.parametrize("model_type", [known.model_type for known in FAMILIES])
def test_a_familys_plan_names_the_modules_of_its_layers(model_type):
    # of the table's rows: a text part's name ends so
    types = (model_type, f"{model_type}_text")
    if model_type in SEEING:
        model = seeing_model(model_type)
    else:
        model = make_model(next(row for row in ALL if row.model_type in types))
    plans = layer_plans(model.config.get_text_config())
    known = next(known for known in FAMILIES if known.model_type == model_type)
    assert all(plan.family == known for plan in plans)
    assert known.architecture == architecture_of(model)
    for layer, plan in zip(decoder_of(model).layers, plans, strict=True):
        assert type(layer).__module__.endswith(f".modeling_{model_type}")
        parts, modules = plan.parts, dict(layer.named_modules())
        linear = {path for path in linear_paths(layer, parts) if path in modules}
        assert {*parts.norms, *linear, parts.mixer} <= modules.keys()
        # mixers with a state and experts read their own modules
        others = tuple(f"{path}." for path in (() if parts.attends else (parts.mixer,)) + (parts.experts or "-",))
        weighted = {
            name for name, module in modules.items() if "weight" in dict(module.named_parameters(recurse=False))
        }
        left = {name for name in weighted if not name.startswith(others)} - {*parts.norms, *linear}
        assert not left, "a part that the plan leaves out"
        if parts.attends and len(parts.projections) == 3:
            queries, keys, _ = (modules[path].out_features for path in parts.projections)
            gated = 1 + parts.output_gate
            assert (queries, keys) == (gated * plan.query_heads * plan.head_dim, plan.key_value_heads * plan.head_dim)


@pytest.mark.parametrize("name", ["llama", "mistral, no window", "qwen2", "qwen3"])
def test_the_first_four_families_are_fused_in_sampling_and_training(name):
    model = make_model(family(name))
    assert unsupported_reason(model) is None
    assert fuse_layers(model)


def test_a_new_family_is_one_entry_that_all_of_its_readers_take(monkeypatch):
    # Mixtral without its experts' layout: what matters here is who asks the list
    entry = Family(model_type="mixtral", prefix="Mixtral", parts={FULL: LayerParts()})
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
def test_a_plan_names_each_layers_kind_and_window(name, kinds, window):
    plans = layer_plans(make_config(family(name)))
    assert [plan.kind for plan in plans] == kinds
    assert [plan.window for plan in plans] == [window if kind == WINDOW else None for kind in kinds]


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
