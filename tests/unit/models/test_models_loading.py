"""A model is loaded in the right precision and threads, and one that would compute something else is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from paceline.config.sections import ModelConfig
from paceline.engines.local.engine import LocalEngine
from paceline.errors import ModelError
from paceline.models.activations import recompute
from paceline.models.attention import PackedLayout, attention
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded, export_model, save_model
from paceline.models.loading import adopt_model, load_model
from paceline.models.plain_forward import keep_score_cap
from paceline.models.policy_and_reference import twin_config
from paceline.objective.micro_batches import pack
from paceline.runtime.devices import automatic_dtype, choose_dtype, choose_threads
from paceline.training.learner.forward_backward import WholeModel
from tests.support.episodes import sample as make_sample
from tests.support.families import family, make_config, make_model
from tests.support.tiny import VOCAB_SIZE, tiny_model, tiny_tokenizer
from tests.support.vllm_models import tied_model


def test_a_tiny_model_computes_with_one_thread_unless_told_otherwise():
    assert choose_threads(ModelConfig(model="m"), 150_000) == 1
    assert choose_threads(ModelConfig(model="m"), 30_000_000) == torch.get_num_threads()
    assert choose_threads(ModelConfig(model="m", threads=3), 150_000) == 3


@pytest.mark.parametrize(
    ("in_hardware", "parameters", "dtype"),
    [
        (False, 500_000_000, torch.float32),  # bfloat16 would be converted at every product
        (True, 9_999_999, torch.float32),  # too small to earn the conversions back
        (True, 10_000_000, torch.bfloat16),
    ],
)
def test_a_cpu_computes_in_bfloat16_where_it_has_the_units_and_the_model_is_large(in_hardware, parameters, dtype):
    assert automatic_dtype(torch.device("cpu"), parameters, bfloat16_in_hardware=in_hardware) == dtype


def test_a_named_precision_is_taken_whatever_the_machine_has():
    cpu = torch.device("cpu")
    for name in ("float32", "bfloat16"):
        assert choose_dtype(ModelConfig(model="m", dtype=name), cpu, 100) == getattr(torch, name)
    assert choose_dtype(ModelConfig(model="m"), cpu, 100) == torch.float32


def test_weights_load_as_float32_masters_without_dropout_whatever_they_were_saved_in(tmp_path):
    model = tiny_model("qwen2")
    model.config.attention_dropout = 0.5
    save_model(model, tiny_tokenizer(), tmp_path, torch.bfloat16)
    loaded = load_model(ModelConfig(model=str(tmp_path)))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded.model(tokens).logits, loaded.model(tokens).logits)
    assert torch.equal(loaded.model.lm_head.weight, model.lm_head.weight.bfloat16().float())


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_a_loaded_model_takes_the_fast_paths_of_engine_and_learner(tmp_path, kind):
    save_model(tiny_model(kind), tiny_tokenizer(), tmp_path, torch.float32)
    loaded = load_model(ModelConfig(model=str(tmp_path)))
    engine = LocalEngine(
        loaded.model,
        tiny_tokenizer(),
        concurrent_sequences=4,
        compute_dtype=loaded.compute_dtype,
        eos_token_ids=frozenset(),
    )
    assert (engine.path, choose_forward(loaded.model).kind) == ("fused", "packed")


def test_pickled_weights_are_refused_with_the_remedy(tmp_path):
    tiny_model("qwen2").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"has no \*\.safetensors file; convert its weights, pickle is not loaded"):
        load_model(ModelConfig(model=str(tmp_path)))


def gemma2(**changes: object) -> Gemma2ForCausalLM:
    """A model that caps the scores of its attention."""
    config = Gemma2Config(
        vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, attn_logit_softcapping=0.1, query_pre_attn_scalar=1, **changes,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config)
    keep_score_cap(model)
    return model


def test_gemma_2_with_both_soft_caps_has_the_logprobs_of_its_own_logits():
    model = gemma2(final_logit_softcapping=1.5, initializer_range=0.4).train()
    policy = Loaded(model=model, compute_dtype=torch.float32)
    forward = choose_forward(model)
    assert forward.kind == "packed"
    prompt, completion = tuple(range(5, 12)), tuple(range(40, 52))
    sample = make_sample(group=0, prompt_ids=prompt, completion_ids=completion, advantage=1.0)
    batch = pack([sample], [1.0], [0], dtype=torch.float32)
    runner = WholeModel(forward=forward, temperature=0.7)
    passed = []

    def loss(number, logprobs, entropy):
        passed.extend((logprobs, entropy))
        return (logprobs + 0.3 * entropy).sum()

    runner.backward(policy, [batch], loss)
    ours = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    assert 1.0 < logits.abs().max() <= 1.5
    log_softmax = torch.log_softmax(logits / 0.7, -1)
    logprobs = log_softmax.gather(1, torch.tensor(completion)[:, None])[:, 0]
    entropy = -(log_softmax.exp() * log_softmax).sum(-1)
    (logprobs + 0.3 * entropy).sum().backward()
    theirs = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert torch.allclose(passed[0], logprobs, atol=1e-5)
    assert torch.allclose(passed[1], entropy, atol=1e-5)
    # 1 - tanh^2 cancels where scores are far above the cap of 0.1, in the kernel as in torch
    assert float((ours - theirs).norm() / theirs.norm()) < 3e-5


def test_a_model_that_cannot_be_packed_keeps_its_own_attention():
    model = gemma2(final_logit_softcapping=None)
    model.model.layers[0].self_attn.sliding_window = 5  # and its configuration says 4,096
    own = model.config._attn_implementation  # eager or sdpa, by the version of transformers
    assert choose_forward(model).kind == "padded"
    assert model.config._attn_implementation == own


ADOPTED = ModelConfig(model="m", device="cpu")
NOISY = (
    "opt, layer drop", "gpt_bigcode", "biogpt", "seed_oss", "phimoe", "starcoder2, dropout, window", "bloom, dropout",
    "persimmon, dropout", "mixtral, router jitter", "gpt2",
)  # fmt: skip


@pytest.mark.parametrize("name", NOISY)
def test_dropout_of_every_kind_is_off_while_a_model_is_trained(name):
    model = adopt_model(make_model(family(name)), ADOPTED).model
    choose_forward(model)
    recompute(model, None)
    tokens = torch.arange(20)[None]
    first, second = (model(tokens, use_cache=False).logits for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(first, model.eval()(tokens, use_cache=False).logits)


def test_dropout_that_cannot_be_switched_off_is_named():
    model = adopt_model(make_model(family("falcon, dropout")), ADOPTED).model
    with pytest.raises(ModelError, match=r"in training mode than in evaluation mode \(hidden_dropout 0\.1\)"):
        choose_forward(model)


def test_a_model_that_rescales_its_weights_for_sampling_is_refused():
    """Saved between the two modes they would be read as others."""
    with pytest.raises(ModelError, match="RwkvForCausalLM changes its weights between training and evaluation mode"):
        choose_forward(make_model(family("rwkv")))


def test_values_narrower_than_keys_are_packed_by_torchs_attention():
    model = make_model(family("deepseek_v3")).eval()  # keys of 16 numbers, values of 8: the kernels take equal ones
    assert choose_forward(model).kind == "packed"


@pytest.mark.parametrize("option", [{"position_bias": torch.zeros(1)}, {"dropout": 0.1}, {"is_causal": False}])
def test_packed_attention_refuses_what_it_would_leave_out(option):
    states = torch.zeros(1, 2, 5, 8)
    with pytest.raises(ModelError, match=f"Linear sets {next(iter(option))}, which packed attention does not have"):
        attention(torch.nn.Linear(1, 1), states, states, states, None, PackedLayout(batch=None), scaling=1.0, **option)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_the_packed_pass_is_tried_in_the_precision_that_it_will_compute_in(kind):
    assert choose_forward(tiny_model(kind), torch.bfloat16).kind == "packed"


def test_what_a_cpu_trained_in_bfloat16_is_exported_in_its_own_precision(tmp_path):
    model = tiny_model("qwen2")
    policy = Loaded(model=model, compute_dtype=torch.bfloat16)
    export_model(policy, tiny_tokenizer(), tmp_path, merge=False)
    saved = load_model(ModelConfig(model=str(tmp_path), dtype="float32")).model
    assert torch.equal(saved.lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tied_output_embedding_is_written_once_in_any_precision(tmp_path, dtype):
    model = tied_model()
    save_model(model, tiny_tokenizer(), tmp_path, dtype)
    written = load_file(tmp_path / "model.safetensors")
    assert set(written) == {name for name, _ in model.named_parameters()}  # the output embedding is not among them
    assert {tensor.dtype for tensor in written.values()} == {dtype}
    assert sum(tensor.numel() for tensor in written.values()) == model.num_parameters()
    assert torch.equal(
        load_model(ModelConfig(model=str(tmp_path))).model.lm_head.weight, model.lm_head.weight.to(dtype)
    )


def changed_model(folder, change):
    """A tied Llama of two layers with biases, of which `change` has changed the weights and config.json."""
    settings = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=VOCAB_SIZE, attention_bias=True, tie_word_embeddings=True, **settings)
    save_model(LlamaForCausalLM(config), tiny_tokenizer(), folder, torch.float32)
    weights, described = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    change(weights, described)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(described))
    return ModelConfig(model=str(folder), device="cpu")


def renamed(weights, old, new):
    for name in [name for name in weights if name.startswith(old)]:
        weights[new + name.removeprefix(old)] = weights.pop(name)


EMBEDDING = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w, c: w.pop("model.norm.weight"), "no weight model.norm.weight, which"),
        (lambda w, c: w.pop("model.layers.0.self_attn.q_proj.bias"), "no weight model.layers.0.self_attn.q_proj.bias,"),
        (lambda w, c: renamed(w, "model.", "base_model.model.model."), "no weight lm_head.weight (and 28 more)"),
        (lambda w, c: renamed(w, "model.layers.1.mlp.up_", "model.layers.1.mlp.w3_"), "layers.1.mlp.up_proj.weight,"),
        (lambda w, c: c.update(num_hidden_layers=3), "no weight model.layers.2.input_layernorm.weight (and 12 more)"),
        (
            lambda w, c: c.update(num_hidden_layers=1),
            "have the weight model.layers.1.input_layernorm.weight, for which",
        ),
        (
            lambda w, c: c.update(attention_bias=False),
            "have the weight model.layers.0.self_attn.k_proj.bias, for which",
        ),
        (lambda w, c: w.update({"model.layers.0.self_attn.k_norm.weight": torch.ones(8)}), "self_attn.k_norm.weight,"),
        (lambda w, c: w.update({"x.q_proj.lora_A.weight": torch.ones(8)}), "have the weight x.q_proj.lora_A.weight,"),
        (lambda w, c: c.update(tie_word_embeddings=False), "no weight lm_head.weight, which"),
        (lambda w, c: w.update({"lm_head.weight": w[EMBEDDING] + 1}), "files have two that differ"),
        (
            lambda w, c: w.update({"model.layers.0.mlp.up_proj.weight": torch.ones(8, 8)}),
            "0.mlp.up_proj.weight; get both",
        ),
    ],
)
def test_a_model_that_is_not_the_one_of_its_files_is_refused_by_a_weight(tmp_path, change, message):
    with pytest.raises(ModelError) as refused:
        load_model(changed_model(tmp_path, change))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda w, c: w.update({"lm_head.weight": w[EMBEDDING].clone()}),  # tied, and written twice
        lambda w, c: w.update({"lm_head.weight": w.pop(EMBEDDING)}),  # tied, and written under its other name
        lambda w, c: renamed(w, "model.", ""),  # written by the model without its head
        lambda w, c: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}),
        lambda w, c: w.update({"v_head.summary.weight": torch.ones(1, 16), "score.weight": torch.ones(1, 16)}),
    ],
)
def test_what_does_not_change_a_model_is_read(tmp_path, change):
    expected = changed_model(tmp_path / "plain", lambda w, c: None)
    got = load_model(changed_model(tmp_path / "changed", change)).model
    assert set(got.state_dict()) == set(load_model(expected).model.state_dict())


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("gemma3_text", ["sliding_attention", "full_attention"]),
        ("nemotron_h", ["linear_attention", "moe", "full_attention", "mlp"]),
        ("bamba", ["linear_attention", "full_attention"]),  # transformers works them out from other options
    ],
)
def test_what_ranks_try_in_the_place_of_a_model_has_a_layer_of_each_kind(name, kinds):
    config = make_config(family(name))
    twin = twin_config(config)
    assert (twin.layer_types, twin.num_hidden_layers, twin.hidden_size) == (kinds, len(kinds), config.hidden_size)
    assert len(AutoModelForCausalLM.from_config(twin).model.layers) == len(kinds)
