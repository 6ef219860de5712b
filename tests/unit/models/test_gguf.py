"""GGUF files are read as the model that they hold, and what is written is read as what was trained."""

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from paceline.errors import ConfigError, ModelError
from paceline.models.gguf import TYPES, write_gguf
from paceline.models.places import model_place
from tests.support.gguf_models import divided, saved_model
from tests.support.screen import Screen
from tests.support.tiny import Kind, tiny_model

gguf = pytest.importorskip("gguf")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def numbers(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_file_in_float32_gives_the_weights_that_were_written(tmp_path: Path, kind: Kind) -> None:
    before = saved_model(tmp_path / "model", kind)

    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "F32")
    after = AutoModelForCausalLM.from_pretrained(model_place(str(tmp_path / "model.gguf")).base)

    assert numbers(before).keys() == numbers(after).keys()
    for name, weight in numbers(before).items():
        torch.testing.assert_close(numbers(after)[name], weight, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize(("kind", "digits"), [("qwen2", ""), ("llama", "{1,3}")])
def test_a_tokenizer_comes_back_with_its_ids_and_its_template(tmp_path: Path, kind: Kind, digits: str) -> None:
    saved_model(tmp_path / "model", kind, divided(digits))
    text = "hello 12 helloworld\n\n<|im_start|>user é 1234<|end|>"

    write_gguf(tmp_path / "model", tmp_path / "model.gguf")
    before = AutoTokenizer.from_pretrained(tmp_path / "model")
    after = AutoTokenizer.from_pretrained(model_place(str(tmp_path / "model.gguf")).base)

    assert after(text, add_special_tokens=False).input_ids == before(text, add_special_tokens=False).input_ids
    assert after.chat_template == before.chat_template
    assert (after.eos_token_id, after.pad_token_id) == (before.eos_token_id, before.pad_token_id)


def test_eight_bits_are_off_by_half_a_step_of_each_block_at_most(tmp_path: Path) -> None:
    before = saved_model(tmp_path / "model", "llama")

    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "Q8_0")
    after = numbers(AutoModelForCausalLM.from_pretrained(model_place(str(tmp_path / "model.gguf")).base))

    for name, weight in numbers(before).items():
        if weight.ndim == 1:
            assert torch.equal(after[name], weight), name
            continue
        blocks = weight.reshape(-1, 32)
        step = blocks.abs().amax(1, keepdim=True) / 127
        # the step itself is kept in float16, whose relative error is 2^-11, and is multiplied by up to 127
        limit = step * (0.5 + 127 * 2**-11) + 1e-8
        assert ((after[name].reshape(-1, 32) - blocks).abs() <= limit).all(), name


@pytest.mark.long
def test_a_file_is_unpacked_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    saved_model(tmp_path / "model", "llama")
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "F32")
    first = model_place(str(tmp_path / "model.gguf")).base
    shutil.copytree(tmp_path / "model", tmp_path / "folder-of-a-file")
    for file in (tmp_path / "folder-of-a-file").iterdir():
        file.unlink()
    shutil.copy2(tmp_path / "model.gguf", tmp_path / "folder-of-a-file")

    assert model_place(str(tmp_path / "model.gguf")).base == first
    in_a_folder = model_place(str(tmp_path / "folder-of-a-file")).base
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "Q8_0")

    assert in_a_folder != first
    assert Path(in_a_folder, "config.json").read_bytes() == Path(first, "config.json").read_bytes()
    assert model_place(str(tmp_path / "model.gguf")).base != first


def test_the_bar_over_the_tensors_is_drawn_on_a_terminal_only(tmp_path: Path) -> None:
    saved_model(tmp_path / "model", "llama")
    for is_terminal in (True, False):
        file = tmp_path / f"{is_terminal}.gguf"
        with contextlib.redirect_stderr(Screen(is_terminal=is_terminal)) as screen:
            write_gguf(tmp_path / "model", file, "F32")  # which reads it back
            model_place(str(file))
        assert screen.getvalue().count("GGUF tensors...: 100%") == 2 * is_terminal
        assert screen.getvalue().count("100%") == 2 * is_terminal


def test_what_is_no_whole_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\3\0\0\0")
    (tmp_path / "big-00001-of-00003.gguf").write_bytes(b"GGUF")

    with pytest.raises(ModelError, match="is no GGUF file, as it does not begin with GGUF"):
        model_place(str(tmp_path / "text.gguf"))
    with pytest.raises(ModelError, match=r"cut.gguf cannot be unpacked: .*; get it again if it is not whole"):
        model_place(str(tmp_path / "cut.gguf"))
    with pytest.raises(ModelError, match="is one part of a model; join the parts"):
        model_place(str(tmp_path / "big-00001-of-00003.gguf"))
    with pytest.raises(ModelError, match="has 3 GGUF files; name one"):
        model_place(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        (
            {"model_type": "gemma"},
            "BF16",
            "writes the architectures llama, mistral, qwen2, qwen3, and the model is a gemma",
        ),
        (
            {"rope_parameters": {"rope_type": "llama3"}},
            "BF16",
            r'no place for rope_parameters {"rope_type": "llama3"} of',
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "BF16", "no place for rope_scaling"),
        ({"model_type": "mistral", "sliding_window": 64}, "BF16", "no place for sliding_window 64 of"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "BF16", "no place for use_sliding_window true of"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"]}, "BF16", "no place for layer_types"),
        ({"hidden_act": "gelu"}, "BF16", 'no place for hidden_act "gelu" of'),
        ({"attention_bias": True}, "BF16", "no place for attention_bias true of"),
        ({"mlp_bias": True}, "BF16", "no place for mlp_bias true of"),
        ({"partial_rotary_factor": 0.5}, "BF16", "no place for partial_rotary_factor 0.5 of"),
        ({"logit_scale": 0.1}, "BF16", "no place for logit_scale 0.1 of"),  # and any other that is not known
        ({"hidden_size": 40}, "Q4_0", "needs rows of a multiple of 32; take gguf:BF16"),
        ({}, "Q4_K", f"one of the types {', '.join(TYPES)}, got Q4_K"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, changes: dict[str, object], kind: str, sentence: str
) -> None:
    saved_model(tmp_path, "llama")
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | changes))

    with pytest.raises(ConfigError, match=sentence):
        write_gguf(tmp_path, tmp_path / "model.gguf", kind)


@pytest.mark.parametrize(
    ("name", "value"),
    [("blk.0.attn_q.bias", np.ones(32, np.float32)), ("rope_freqs.weight", np.full(4, 2, np.float32))],
)
def test_a_file_with_a_tensor_that_is_not_read_is_refused(tmp_path: Path, name: str, value: np.ndarray) -> None:
    saved_model(tmp_path / "model", "llama")
    plain, other = tmp_path / "plain.gguf", tmp_path / "other.gguf"
    write_gguf(tmp_path / "model", plain, "F32")
    reader, writer = gguf.GGUFReader(plain), gguf.GGUFWriter(other, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=field.types[-1])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    model_place(str(plain))
    with pytest.raises(ModelError, match=f"has {name}, which transformers does not read from such a file"):
        model_place(str(other))


def test_a_file_that_is_read_back_as_another_model_is_not_kept(tmp_path: Path) -> None:
    size = saved_model(tmp_path, "qwen3").config.vocab_size
    tiny_model("qwen3", vocab_size=size).save_pretrained(tmp_path)  # heads of 8 numbers, which are read as of 128

    with pytest.raises(
        ConfigError, match=r"the file of .* (cannot be read back|computes other logits).* it is not kept"
    ):
        write_gguf(tmp_path, tmp_path / "model.gguf", "F32")
    assert not (tmp_path / "model.gguf").exists()


def test_a_tokenizer_that_llama_cpp_has_no_name_for_is_refused(tmp_path: Path) -> None:
    saved_model(tmp_path, "llama", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))

    with pytest.raises(ConfigError, match=r"the tokenizer of .* is another"):
        write_gguf(tmp_path, tmp_path / "model.gguf")
