"""Reward models: batched scores are those of plain transformers one by one; what cannot give a reward is refused."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
)

from paceline.errors import RewardError
from paceline.rewards.model import RewardModel, load_reward_model
from paceline.rewards.model_files import check_reward_model
from paceline.rewards.scoring.scores import score
from tests.support.scripted import task, trajectory
from tests.support.tiny import tiny_model, tiny_reward_model, tiny_tokenizer

CPU = torch.device("cpu")
PROMPTS = ["1+1=", "What is the answer to this longer question? ", "Hi ", "1+1="]
COMPLETIONS = ["2", "It is 42, as everybody knows.", "", "a much longer completion that goes on and on and on"]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def saved(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("reward") / request.param
    tiny_reward_model(request.param).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def alone(path, texts, *, add_special_tokens):
    """What transformers itself gives each text in a forward pass of its own, without padding."""
    module, tokenizer = AutoModelForSequenceClassification.from_pretrained(path).eval(), tiny_tokenizer()
    with torch.no_grad():
        ids = [tokenizer(text, add_special_tokens=add_special_tokens, return_tensors="pt").input_ids for text in texts]
        return [module(one).logits[0, 0].item() for one in ids]


def scores_of(function, prompts=PROMPTS, completions=COMPLETIONS, messages=None):
    return function(prompts=prompts, completions=completions, prompt_messages=messages or [None] * len(prompts))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("limit", [1, 64, 10_000])
def test_batched_scores_are_those_of_each_text_alone_in_the_order_of_the_completions(saved, limit):
    texts = [prompt + text for prompt, text in zip(PROMPTS, COMPLETIONS, strict=True)]
    expected = alone(saved, texts, add_special_tokens=True)
    module = AutoModelForSequenceClassification.from_pretrained(saved)
    got = scores_of(RewardModel(module, tiny_tokenizer(), padded_tokens=limit))
    assert got == pytest.approx(expected, abs=1e-6)
    assert max(got) - min(got) > 0.1  # the four texts are told apart


def test_a_directory_is_loaded_to_the_same_scores(saved):
    texts = [prompt + text for prompt, text in zip(PROMPTS, COMPLETIONS, strict=True)]
    got = scores_of(load_reward_model(str(saved), device=CPU))
    assert got == pytest.approx(alone(saved, texts, add_special_tokens=True), abs=1e-6)


def test_the_order_of_the_rows_does_not_matter(saved):
    function = load_reward_model(str(saved), device=CPU)
    backwards = scores_of(function, PROMPTS[::-1], COMPLETIONS[::-1])
    assert scores_of(function) == pytest.approx(backwards[::-1], abs=1e-6)


def test_messages_go_through_the_reward_models_own_template_with_the_completion_as_the_answer(saved):
    function = load_reward_model(str(saved), device=CPU)
    chat = (
        "<|bos|><|im_start|>system\nBe brief.<|end|>\n<|im_start|>user\n1+1?<|end|>\n<|im_start|>assistant\n{}<|end|>\n"
    )
    plain = "prompt of another model's template: {}"
    expected = alone(saved, [chat.format("2"), chat.format("three")], add_special_tokens=False)
    expected += alone(saved, [plain.format("2")], add_special_tokens=True)
    got = scores_of(function, [plain.format("")] * 3, ["2", "three", "2"], [MESSAGES, MESSAGES, None])
    assert got == pytest.approx(expected, abs=1e-6)


def test_a_thought_that_the_prompt_has_opened_is_part_of_the_answer(saved):
    function = load_reward_model(str(saved), device=CPU)
    opened = scores_of(function, ["rendered<think>\n"], ["a</think>b"], [MESSAGES])
    assert opened == scores_of(function, ["rendered"], ["<think>\na</think>b"], [MESSAGES])


def test_without_a_template_messages_are_read_as_the_prompts_text_and_bos_is_there_once():
    function = RewardModel(tiny_reward_model(), tiny_tokenizer(chat_template=None))
    assert scores_of(function, ["rendered"], ["2"], [MESSAGES]) == scores_of(function, ["rendered"], ["2"])
    assert scores_of(function, ["<|bos|>rendered"], ["2"]) == scores_of(function, ["rendered"], ["2"])


def test_a_row_above_the_models_positions_is_a_counted_failure_and_the_others_are_scored():
    functions = {"rm": RewardModel(tiny_reward_model(max_position_embeddings=20), tiny_tokenizer())}
    tasks, texts = [task(str(number)) for number in range(3)], ["2", "x" * 13, "x" * 12]
    scores = score(functions, tasks, [trajectory(text) for text in texts], timeout=60.0)
    assert scores.failed == {"rm": (1,)}
    assert [value is None for value in scores.values["rm"]] == [False, True, False]
    assert "on row 1: prompt and completion have 21 tokens, above the 20 positions" in scores.culprit


def test_a_token_that_the_model_does_not_know_is_a_failure_of_its_row():
    function = RewardModel(tiny_reward_model(), tiny_tokenizer())
    function.tokenizer.add_tokens(["<|new|>"])
    first, second = scores_of(function, ["a", "<|new|>"], ["b", "b"])
    assert isinstance(first, float)
    assert "gives token 260, but the reward model has 260 embeddings" in str(second)


def test_a_score_that_is_not_finite_is_a_counted_failure():
    module = tiny_reward_model()
    torch.nn.init.constant_(module.score.weight, float("nan"))
    scores = score({"rm": RewardModel(module, tiny_tokenizer())}, [task("a")], [trajectory("2")], timeout=60.0)
    assert (scores.values["rm"], scores.failed["rm"]) == ((None,), (0,))


def test_a_reward_model_stands_beside_functions(saved):
    functions = {
        "rm": load_reward_model(str(saved), device=CPU),
        "length": lambda completions: list(map(len, completions)),
    }
    scores = score(functions, [task("a"), task("b")], [trajectory("2"), trajectory("two")], timeout=60.0)
    assert scores.values["length"] == (1.0, 3.0)
    assert scores.values["rm"] == pytest.approx(scores_of(functions["rm"], ["1 + 1 ="] * 2, ["2", "two"]), abs=1e-6)


def test_a_model_that_the_user_made_is_taken_as_it_is_and_evaluated():
    module = tiny_reward_model(attention_dropout=0.5).train()
    function = RewardModel(module, tiny_tokenizer())
    assert scores_of(function) == scores_of(function)
    assert not module.training
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_a_loaded_model_has_no_gradients_and_float32_weights_on_a_cpu(saved):
    module = load_reward_model(str(saved), device=CPU)._model
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_the_end_token_pads_where_there_is_no_padding_token():
    module, tokenizer = tiny_reward_model(pad_token_id=None), tiny_tokenizer()
    tokenizer.pad_token = None
    batched = scores_of(RewardModel(module, tokenizer))
    assert module.config.pad_token_id == 258
    assert batched == pytest.approx(scores_of(RewardModel(tiny_reward_model(), tiny_tokenizer())), abs=1e-6)
    tokenizer.eos_token = None
    with pytest.raises(RewardError, match="no token to pad with"):
        RewardModel(tiny_reward_model(pad_token_id=None), tokenizer)


def test_more_than_one_label_is_refused_by_files_by_weights_and_of_an_object(tmp_path):
    tiny_reward_model(num_labels=3).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(RewardError, match=r"has 3 labels, but a reward is one number; name a model with one label"):
        check_reward_model(str(tmp_path))
    with pytest.raises(RewardError, match=r"has 3 labels.*load it with num_labels=1"):
        RewardModel(tiny_reward_model(num_labels=3), tiny_tokenizer())
    config = json.loads((tmp_path / "config.json").read_text())
    del config["id2label"], config["label2id"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RewardError, match=r"does not have one label \(score\.weight has another shape\)"):
        load_reward_model(str(tmp_path), device=CPU)


def test_a_language_model_would_get_a_random_head_and_is_refused_by_files_and_by_weights(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(RewardError, match=r"is a language model \(LlamaForCausalLM\) without a trained score head"):
        check_reward_model(str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": None}))
    with pytest.raises(RewardError, match=r"has no trained score head \(score\.weight is not in its weights\)"):
        load_reward_model(str(tmp_path), device=CPU)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", r"--reward-funcs model:\./nowhere is not a directory; name a model directory or a Hub name"),
        ("folder/modle", r"is not a directory; did you mean 'folder/model'\?"),
        ("a_file", "a_file is not a directory"),
        ("", "--reward-funcs model:'' is not a directory"),
        ("folder", r"folder is a directory without config\.json"),
        ("folder/model", r"has no \*\.safetensors file"),
        ("folder/torn", r"config\.json cannot be read"),
        ("folder/list", r"config\.json is not a JSON object"),
    ],
)
def test_files_that_are_no_reward_model_are_refused(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").touch()
    for folder, config in {"model": "{}", "torn": "{", "list": "[]"}.items():
        (tmp_path / "folder" / folder).mkdir(parents=True)
        (tmp_path / "folder" / folder / "config.json").write_text(config)
        if folder != "model":
            (tmp_path / "folder" / folder / "model.safetensors").touch()
    with pytest.raises(RewardError, match=message) as refusal:
        check_reward_model(name)
    assert refusal.value.exit_status == 2


def test_a_name_on_the_hub_passes_the_look_at_files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    check_reward_model("org/name")


def test_broken_weights_are_one_sentence(saved, tmp_path):
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(RewardError, match=r"--reward-funcs model:.* cannot be loaded: ") as refusal:
        load_reward_model(str(tmp_path), device=CPU)
    assert "\n" not in str(refusal.value)


def test_the_look_at_files_needs_no_torch():
    line = (
        "import sys, paceline.rewards.resolving, paceline.rewards.model_files\n"
        "assert not {'torch', 'transformers'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", line], check=True)
