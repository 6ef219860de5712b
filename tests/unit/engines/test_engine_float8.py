"""An engine that multiplies in eight bits: the numbers it samples from, what it refuses, what is planned of it."""

import copy

import pytest
import torch
from torch import nn

from paceline.config.building import build_config
from paceline.engines import Request, Sampling, sample_key
from paceline.errors import ConfigError, ModelError
from paceline.kernels.float8 import quantized
from paceline.training.plan.hardware import CPU, GPUS
from paceline.training.plan.memory import memory_plan
from paceline.training.plan.shape import model_shape
from tests.tiny import local_engine, make_unfamiliar, tiny_model

PROMPTS = (tuple(b"some prompt"), tuple(b"another one"))
SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "head_dim": 8}


class Rounded(nn.Module):
    """A linear layer whose rows and weights are rounded to eight bits and multiplied in float64."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        (rows, of_rows), (outputs, of_outputs) = quantized(x.flatten(0, -2)), quantized(self.layer.weight)
        product = (rows.double() * of_rows) @ (outputs.double() * of_outputs).T
        bias = 0 if self.layer.bias is None else self.layer.bias.double()
        return (product + bias).float().unflatten(0, x.shape[:-1])


def rounded(model):
    """The model with the layers' products, and not the head's, in eight bits."""
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, module in list(part.named_children()):
                if isinstance(module, nn.Linear):
                    setattr(part, name, Rounded(module))
    return model


@torch.no_grad()
def logprobs(model, prompt, completion):
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(completion)[:, None])[:, 0]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_logprobs_are_of_the_model_with_rounded_layers(kind):
    model = tiny_model(kind)
    engine = local_engine(model, quantization="fp8", path="float8")
    requests = [Request(prompt_ids=ids, keys=tuple(sample_key(0, "", "", 0, n) for n in range(4))) for ids in PROMPTS]
    groups = engine.generate(requests, Sampling(max_completion_length=24))
    off, far = [], []
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for one in group:
            sampled = torch.tensor(one.logprobs)
            off.append((sampled - logprobs(rounded(model), prompt, one.token_ids)).abs())
            far.append((sampled - logprobs(model, prompt, one.token_ids)).abs())
    # a number between two of eight bits may be rounded to the other one after another order of sums
    assert torch.cat(off).mean() < 2e-3
    assert torch.cat(far).mean() > 20 * torch.cat(off).mean(), "a model that is not rounded is another one"


def test_weights_that_change_are_rounded_anew():
    model = tiny_model("qwen3")
    engine = local_engine(model, quantization="fp8", path="float8")
    request = Request(prompt_ids=PROMPTS[0], keys=(sample_key(0, "", "", 0, 0),))
    engine.generate([request], Sampling(max_completion_length=4))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(3)
    ((one,),) = engine.generate([request], Sampling(max_completion_length=16))
    off = torch.tensor(one.logprobs) - logprobs(rounded(model), PROMPTS[0], one.token_ids)
    assert off.abs().mean() < 2e-3


def test_a_model_that_only_its_own_code_computes_is_refused_by_name():
    with pytest.raises(ModelError, match=r"engine_quantization must be none .* got fp8: UnfamiliarForCausalLM is not"):
        local_engine(make_unfamiliar(tiny_model("llama")), quantization="fp8", path="float8")
    with pytest.raises(ModelError, match=r"engine_quantization must be none .* not torch.float64"):
        local_engine(tiny_model("llama", dtype=torch.float64), quantization="fp8", path="float8")


def test_vllm_is_refused_and_ratios_are_corrected_unless_said_otherwise():
    given = {"model": "m", "dataset": "d", "engine_quantization": "fp8"}
    assert build_config(given).loss.rollout_correction == "token_truncate"
    assert build_config({**given, "rollout_correction": "none"}).loss.rollout_correction == "none"
    with pytest.raises(ConfigError, match="--engine-quantization must be none with --engine vllm, got 'fp8'"):
        build_config({**given, "engine": "vllm"})


def test_layers_are_planned_at_one_byte_on_cuda_and_as_a_copy_on_a_cpu():
    shape = model_shape({**SHAPE, "vocab_size": 64}, parameters=1_000)
    plain, float8 = (
        build_config({"model": "m", "dataset": "d", **more}) for more in ({}, {"engine_quantization": "fp8"})
    )
    layers = shape.num_layers * shape.layer
    before, after = (memory_plan(one, shape, on=GPUS["h100"]).engine for one in (plain, float8))
    assert (before, after) == (2 * layers + 2 * shape.matrix, layers + 2 * shape.matrix)
    assert memory_plan(float8, shape, on=CPU).engine == 4 * layers
