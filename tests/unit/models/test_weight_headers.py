"""Headers of weights: what cannot be a model is refused by them, what loading may accept is left to it."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.cli.main import main
from paceline.config.sections import LoraConfig, ModelConfig
from paceline.errors import ModelError
from paceline.models.loading import load_model
from paceline.models.lora import add_adapter
from paceline.models.places import read_model_config
from paceline.models.weight_headers import INDEX, PLAIN, WHOLE, check_quantised, check_weights, read_header

LLAMA = {"model_type": "llama", "vocab_size": 4, "hidden_size": 2}
TENSORS = {
    "model.embed_tokens.weight": (4, 2),
    "model.layers.0.self_attn.q_proj.weight": (2, 2),
    "model.layers.0.input_layernorm.weight": (2,),
    "lm_head.weight": (4, 2),
}


def file_of(shapes: dict[str, tuple[int, ...]]) -> bytes:
    """Made by hand: the header and float32 zeros."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        begin, count = end, 4
        for size in shape:
            count *= size
        end += count
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


def check(folder: Path, described: dict[str, object] = LLAMA, *targets: str) -> None:
    check_weights(folder, described, "--model m", targets=targets)


def refusal(folder: Path, described: dict[str, object] = LLAMA, *targets: str) -> str:
    with pytest.raises(ModelError) as raised:
        check(folder, described, *targets)
    return str(raised.value)


def test_a_whole_file_of_the_right_shapes_is_accepted(tmp_path):
    (tmp_path / WHOLE).write_bytes(file_of(TENSORS))
    check(tmp_path, LLAMA, "q_proj", "all-linear")
    assert read_header(tmp_path / WHOLE, "m").shapes == TENSORS
    assert read_header(tmp_path / WHOLE, "m").nbytes == len(file_of(TENSORS))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x10\0\0", id="half of the length"),
        pytest.param(file_of(TENSORS)[:40], id="half of the header"),
        pytest.param(b"\xff" * 8 + b"{}", id="a length of 2^64 - 1"),
        pytest.param((2).to_bytes(8, "little") + b"[]", id="a list"),
        pytest.param((6).to_bytes(8, "little") + b'{"a":1', id="no JSON"),
        pytest.param((8).to_bytes(8, "little") + b'{"a":{}}', id="a tensor without a shape"),
        pytest.param((26).to_bytes(8, "little") + b'{"a":{"shape":[Infinity]}}', id="a tensor without an end"),
    ],
)
def test_a_file_without_a_whole_header_is_named_and_to_be_fetched_again(tmp_path, content):
    (tmp_path / WHOLE).write_bytes(content)
    remedy = "get its files again where they are not whole"
    assert refusal(tmp_path) == f"--model m cannot be loaded: model.safetensors has no whole header; {remedy}"


@pytest.mark.parametrize("change", [-1, 1, 4096])
def test_a_file_that_is_not_as_long_as_its_header_says_is_not_whole(tmp_path, change):
    whole = file_of(TENSORS)
    (tmp_path / WHOLE).write_bytes((whole + bytes(4096))[: len(whole) + change])
    assert f"has {len(whole) + change} bytes, and {len(whole)} by its header; get its files" in refusal(tmp_path)


def sharded(folder: Path, **files: dict[str, tuple[int, ...]]) -> None:
    listed = {name: f"{file}.safetensors" for file, shapes in files.items() for name in shapes}
    (folder / INDEX).write_text(json.dumps({"weight_map": listed}))
    for file, shapes in files.items():
        (folder / f"{file}.safetensors").write_bytes(file_of(shapes))


def test_of_several_files_each_is_looked_at_and_a_missing_one_is_named(tmp_path):
    first, last = dict(list(TENSORS.items())[:1]), dict(list(TENSORS.items())[1:])
    sharded(tmp_path, one=first, two=last)
    check(tmp_path, LLAMA, "q_proj")
    (tmp_path / "one.safetensors").unlink()
    assert "one.safetensors is not there, and model.safetensors.index.json lists it; get its" in refusal(tmp_path)
    (tmp_path / "one.safetensors").write_bytes(file_of(first)[:-3])
    assert "one.safetensors has" in refusal(tmp_path)
    for text in ("[]", '{"weight_map": {"a": 1}}'):
        (tmp_path / INDEX).write_text(text)
        assert "model.safetensors.index.json lists no files; get its files again" in refusal(tmp_path)


def test_an_embedding_of_another_shape_than_config_json_says_is_of_another_model(tmp_path):
    (tmp_path / WHOLE).write_bytes(file_of(TENSORS))
    assert refusal(tmp_path, {**LLAMA, "vocab_size": 5}) == (
        "--model m: its weights have other shapes than its config.json says, such as model.embed_tokens.weight; get "
        "both from one place"
    )
    assert "other shapes" in refusal(tmp_path, {**LLAMA, "hidden_size": 4})


WHOLE_LLAMA = {
    "model.embed_tokens.weight": (4, 2),
    **{
        f"model.layers.{layer}.{name}": (2, 2)
        for layer in range(3)
        for name in ("self_attn.q_proj.weight", "self_attn.o_proj.weight", "mlp.down_proj.weight")
    },
    "model.norm.weight": (2,),
}


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("model.norm", "model.norm.weight,"),
        ("model.embed", "model.embed_tokens.weight,"),
        ("model.layers.1.self_attn.q", "model.layers.1.self_attn.q_proj.weight,"),  # the others have it
        ("model.layers.2", "model.layers.2.mlp.down_proj.weight (and 2 more),"),
    ],
)
def test_a_weight_that_no_file_has_is_named_before_any_is_read(tmp_path, gone, named):
    described = {**LLAMA, "num_hidden_layers": 3, "tie_word_embeddings": True}
    (tmp_path / WHOLE).write_bytes(file_of(WHOLE_LLAMA))
    check(tmp_path, described)
    (tmp_path / WHOLE).write_bytes(file_of({n: one for n, one in WHOLE_LLAMA.items() if not n.startswith(gone)}))
    assert f"--model m: its files have no weight {named} which" in refusal(tmp_path, described)


def test_a_head_of_its_own_is_to_be_in_a_file_and_a_base_models_names_are_known(tmp_path):
    described = {**LLAMA, "num_hidden_layers": 3, "tie_word_embeddings": False}
    bare = {name.removeprefix("model."): shape for name, shape in WHOLE_LLAMA.items()}
    (tmp_path / WHOLE).write_bytes(file_of(bare))
    assert "no weight lm_head.weight," in refusal(tmp_path, described)
    check(tmp_path, {**described, "tie_word_embeddings": True})
    wrapped = {f"base_model.model.{name}": shape for name, shape in WHOLE_LLAMA.items()}
    (tmp_path / WHOLE).write_bytes(file_of(wrapped))
    assert "no weight model.embed_tokens.weight (and " in refusal(tmp_path, {**described, "tie_word_embeddings": True})


@pytest.mark.parametrize(
    "otherwise",
    [
        {"model_type": "opt"},  # has an embedding narrower than its layers
        {"model_type": "mixtral"},  # its experts are one tensor in the model and many in files
        {"quantization_config": {"bits": 4}},
        {"auto_map": {"AutoModelForCausalLM": "own.Model"}},
        {"transformers_weights": "other.safetensors"},
    ],
)
def test_what_loading_may_know_better_is_left_to_it(tmp_path, otherwise):
    (tmp_path / WHOLE).write_bytes(file_of(TENSORS))
    check(tmp_path, {**LLAMA, "hidden_size": 4, **otherwise}, "w1")


def test_files_under_other_names_are_left_to_loading(tmp_path):
    (tmp_path / "consolidated.safetensors").write_bytes(b"half")
    check(tmp_path, LLAMA, "q_prj")


def test_a_target_that_no_layer_has_is_refused_with_the_nearest_and_all_others(tmp_path):
    (tmp_path / WHOLE).write_bytes(file_of(TENSORS))
    assert refusal(tmp_path, LLAMA, "q_proj", "q_prj") == (
        "--lora-targets must name layers of the model, got 'q_prj'; did you mean q_proj? There are embed_tokens, q_proj"
    )
    check(tmp_path, LLAMA, "base_model.layers.0.self_attn.q_proj")  # may be a module around the model


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", sorted(PLAIN))
def test_the_files_of_a_plain_kind_name_the_layers_that_an_adapter_finds(tmp_path, kind):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model(kind, num_attention_heads=4, num_key_value_heads=2, **sizes, **tokens)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    described = read_model_config(tmp_path, "m")
    check(tmp_path, described)
    assert "other shapes" in refusal(tmp_path, {**described, "hidden_size": 64})
    loaded = load_model(ModelConfig(model=str(tmp_path)))
    with pytest.raises(ModelError) as late:
        add_adapter(loaded, LoraConfig(lora_rank=2, lora_targets=("no_such_layer",)))
    assert refusal(tmp_path, described, "no_such_layer") == str(late.value)


def test_the_weights_of_an_adapter_are_to_be_whole_too(tmp_path, capsys):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "base" / WHOLE).write_bytes(file_of(TENSORS))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(file_of(TENSORS)[:-1])
    for base in (str(tmp_path / "base"), "Qwen/Qwen2.5-0.5B"):
        (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        assert main(["train", "--model", str(adapter), "--dataset", "arithmetic"]) == 2
        assert f"--model {adapter} cannot be loaded: adapter_model.safetensors has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes, 8 bits"),
        ({"load_in_8bit": True}, "bitsandbytes, 8 bits"),  # as older releases wrote it
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"bits": 4}, "None"),
    ],
)
def test_quantised_weights_are_refused_with_and_without_an_adapter(settings, how):
    for has_adapter in (False, True):
        with pytest.raises(ModelError) as refused:
            check_quantised({"quantization_config": settings}, "--model m", has_adapter=has_adapter)
        assert str(refused.value) == (
            f"--model m has quantised weights ({how}), which cannot be trained; name a model with its weights in full, "
            "or train an adapter (--lora-rank) on weights that bitsandbytes has quantised to 4 bits"
        )


def test_four_bits_of_bitsandbytes_take_an_adapter_and_nothing_else():
    four = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    check_quantised(four, "--model m", has_adapter=True)
    with pytest.raises(ModelError, match=r"has quantised weights \(bitsandbytes, 4 bits\), which cannot be trained"):
        check_quantised(four, "--model m", has_adapter=False)
    for plain in ({}, {"quantization_config": None}):
        check_quantised(plain, "--model m", has_adapter=False)
