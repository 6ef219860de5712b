"""An engine that multiplies in eight bits: the numbers it samples from, what it refuses, what is planned of it."""

import copy

import pytest
import torch
from torch import nn

from paceline.cli.main import main
from paceline.config.building import build_config
from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local.eight_bits import unaligned_reason
from paceline.engines.local.operations import Kernels
from paceline.errors import ConfigError, ModelError
from paceline.kernels.float8 import quantized
from paceline.training.plan.hardware import CPU, GPUS
from paceline.training.plan.memory import memory_plan
from paceline.training.plan.shape import model_shape
from paceline.training.setup.preparation import check_eight_bits
from tests.support.families import family, make_config
from tests.support.tiny import local_engine, make_unfamiliar, tiny_model

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
    with pytest.raises(ModelError, match=r"^--engine-quantization must be none .* got fp8: layer 0 .* Unfamiliar"):
        local_engine(make_unfamiliar(tiny_model("llama")), quantization="fp8", path="float8")
    with pytest.raises(ModelError, match=r"^--engine-quantization must be none .* not torch.float64"):
        local_engine(tiny_model("llama", dtype=torch.float64), quantization="fp8", path="float8")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_a_model_that_rounding_leads_far_away_is_sampled_from_all_the_same(kind, dtype):
    deep = tiny_model(kind, layers=8)  # its logits differ by up to 2.5 from the rounded ones
    local_engine(deep, dtype=dtype, quantization="fp8", path="float8")
    assert not any(module._forward_hooks for module in deep.modules()), "what it is held to leaves nothing behind"


def test_a_decoder_that_mixes_up_its_scales_is_found_out(monkeypatch):
    right = Kernels.projection

    def mixed_up(self, layer):
        found = right(self, layer)
        return found._replace(scale=found.scale.flip(1)) if self.float8 else found

    monkeypatch.setattr(Kernels, "projection", mixed_up)
    with pytest.raises(ModelError, match=r"the float8 decoder's logits differ by .* from the model's own"):
        local_engine(tiny_model("llama"), quantization="fp8", path="float8")


def test_layers_that_cannot_be_multiplied_in_eight_bits_on_cuda_are_named():
    model = tiny_model("qwen2")
    assert unaligned_reason(model) is None
    model.model.layers[0].mlp.up_proj = nn.Linear(32, 40)
    assert unaligned_reason(model) == "mlp.up_proj is 32 by 40, and both must be multiples of 16"


@pytest.mark.parametrize(
    ("changed", "dtype", "device", "problem"),
    [
        ({"architectures": ["Gemma2ForCausalLM"]}, "auto", "cpu", "layer 0 has no plan, as Gemma2ForCausalLM"),
        ({"hidden_act": "gelu"}, "auto", "cpu", "layer 0 has no plan, as its activation is 'gelu'"),
        ({}, "float32", "cuda", "the model computes in float32"),
    ],
)
def test_what_the_configuration_tells_is_refused_before_weights_are_read(changed, dtype, device, problem):
    given = build_config({"model": "m", "dataset": "d", "engine_quantization": "fp8", "dtype": dtype})
    described = tiny_model("llama").config
    described.architectures = ["LlamaForCausalLM"]
    check_eight_bits(given, described, torch.device("cpu"))
    described.update(changed)
    with pytest.raises(ConfigError, match=rf"^--engine-quantization must be none .*, got 'fp8'; .*{problem}"):
        check_eight_bits(given, described, torch.device(device))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--gpu", "a100-80gb"], "it needs compute capability 8.9 or higher, which NVIDIA A100 80GB has not"),
        (["--gpu", "h100", "--dtype", "float32"], "the model computes in float32"),
        (["--model", "gemma", "--max-completion-length", "100"], "the fused decoder does not know this model's family"),
    ],
)
def test_plan_refuses_what_a_run_refuses(words, problem, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_config(family("gemma2")).save_pretrained("gemma")
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    options = ["--model", "embedded", "--dataset", "rows.jsonl", "--engine-quantization", "fp8"]
    if "--model" in words:
        options = options[2:]
    assert main(["plan", *options, *words]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--engine-quantization must be none for this model on this device, got 'fp8'" in said
    assert problem in said


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
