"""The scale and the cap of a model's logits are measured on the model, and what follows no such rule is refused."""

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, LlamaForCausalLM

from paceline.errors import ModelError
from paceline.kernels.logprobs import PLAIN, HeadRule
from paceline.models.forward import choose_forward
from paceline.models.head import measured_head
from tests.support.families import SMALL, family, make_model
from tests.support.multimodal import VISION
from tests.support.tiny import tiny_model


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("llama", PLAIN),
        ("opt, layer drop", PLAIN),  # whose output embedding reads a part of its base model
        ("cohere2", HeadRule(scale=0.0625)),
        ("granite, scaled logits", HeadRule(scale=0.125)),  # divides by 8
        ("minicpm3", HeadRule(scale=0.125)),  # multiplies the hidden states by 4 / 32
        ("falcon_h1, scaled logits", HeadRule(scale=0.5)),
        ("gemma2", HeadRule(cap=30.0)),
        ("recurrent_gemma", HeadRule(cap=30.0)),
        ("nanochat", HeadRule(cap=15.0)),
    ],
)
def test_the_rule_of_a_family_is_what_its_code_does(name, rule):
    assert measured_head(make_model(family(name))) == rule


def test_one_name_that_divides_elsewhere_multiplies_here():
    small = {name: value for name, value in SMALL.items() if "token" in name or "size" in name or "num_" in name}
    config = AutoConfig.for_model("hyperclovax", **small, head_dim=8, logits_scaling=0.3)
    assert measured_head(AutoModelForCausalLM.from_config(config)) == HeadRule(scale=0.3)


def test_a_multiplier_and_a_cap_of_a_family_are_measured_together():
    """Muse, which transformers has as a model that reads images alone."""
    pytest.importorskip("transformers.models.muse_glimmer")
    default = AutoConfig.for_model("muse_glimmer")
    parts = {}
    for name, small in (("text_config", SMALL), ("vision_config", VISION)):
        known = getattr(default, name).to_dict()
        sizes = {key: value for key, value in small.items() if known.get(key) or key.endswith("token_id")}
        parts[name] = sizes | {"model_type": known["model_type"]}
    config = AutoConfig.for_model("muse_glimmer", **parts, image_token_id=1)
    assert measured_head(AutoModelForImageTextToText.from_config(config)) == HeadRule(scale=1 / 26**0.5, cap=20.0)


class Changed(LlamaForCausalLM):
    """Changes its logits, as no configuration says."""

    def forward(self, **options):
        output = super().forward(**options)
        output.logits = self.change(output.logits)
        return output


def changed(change):
    model = Changed(tiny_model("llama").config)
    model.change = change
    return model


def test_a_scale_and_a_cap_that_no_configuration_names_are_measured_together():
    rule = measured_head(changed(lambda logits: 20 * torch.tanh(0.1767766952966369 * logits / 20)))
    assert rule.cap == 20.0
    assert rule.scale == pytest.approx(0.1767766952966369, rel=1e-9)


def test_a_scale_is_the_configurations_number_to_the_last_bit_whatever_the_weights_are():
    model, scales = make_model(family("minicpm3")), set[float]()
    model.config.dim_model_base = 7
    for seed in range(5):
        torch.manual_seed(seed)
        nn.init.normal_(model.get_input_embeddings().weight)
        scales.add(measured_head(model).scale)
    assert scales == {7 / 32}


@pytest.mark.parametrize(("scale", "shown"), [(-1, "-1"), (0, "0")])
def test_a_scale_that_is_no_temperature_is_refused(scale, shown):
    with pytest.raises(ModelError, match=f"Changed multiplies its logits by {shown}, and .* must be above 0"):
        measured_head(changed(lambda logits: scale * logits))


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits + 1,
        lambda logits: logits.clamp(-40, 40),
        lambda logits: torch.where(logits > 0, logits, 2 * logits),
        lambda logits: logits * torch.linspace(0.5, 1, logits.shape[-1]),
        lambda logits: logits[..., :-1],
    ],
)
def test_logits_by_another_rule_are_refused(change):
    with pytest.raises(ModelError, match="Changed gives other logits than a scale and a cap make of its output"):
        measured_head(changed(change))


@pytest.mark.parametrize("name", ["bert", "modernbert-decoder"])
def test_an_output_embedding_that_reads_something_else_is_refused(name):
    with pytest.raises(ModelError, match=r"gives other logits than a scale and a cap make"):
        measured_head(make_model(family(name)))


def test_llama_4_is_trained_on_padded_rows():
    forward = choose_forward(make_model(family("llama4_text")))
    assert (forward.kind, forward.head) == ("padded", PLAIN)
