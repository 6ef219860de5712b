"""A `generate` that a program puts on its model: what it is given, what becomes of its tokens, who samples then."""

import json
from dataclasses import replace

import pytest
import torch

from paceline import GRPOConfig, GRPOTrainer
from paceline.compat.trl.generate import ReplacedGenerate, sampling_by_program
from paceline.engines import Request, Sampling
from paceline.errors import ConfigError
from paceline.models.loaded import Loaded
from tests.support.tiny import VOCAB_SIZE, local_engine, tiny_model, tiny_tokenizer

PAD, END = 256, 258
TOKENIZER = tiny_tokenizer()
PROMPTS = [{"prompt": "Hi"}, {"prompt": "A longer one"}]


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def behind(input_ids: torch.Tensor, words: list[str]) -> torch.Tensor:
    """The prompts with a word and an end token behind each, padded on the right as `generate` does."""
    rows = [[*ids_of(word), END] for word in words]
    width = max(map(len, rows))
    return torch.cat([input_ids, torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])], dim=-1)


def engine_of(generate):
    """A model with this `generate`, and the engine that asks it."""
    model = tiny_model()
    model.generate = generate
    return model, ReplacedGenerate(Loaded(model=model, compute_dtype=torch.float32), TOKENIZER, frozenset({END}), 7)


def test_all_prompts_go_in_one_batch_padded_on_the_left():
    seen = []

    def generate(input_ids, attention_mask, generation_config):
        seen.append((input_ids.tolist(), attention_mask.tolist(), generation_config))
        return behind(input_ids, ["a", "bc", "def"])

    _, engine = engine_of(generate)
    sampling = Sampling(max_completion_length=5, temperature=0.5, top_k=3)
    requests = [Request(prompt_ids=(72, 105), keys=(1, 2)), Request(prompt_ids=(65,), keys=(3,), limits=(2,))]
    (first, second), (third,) = engine.generate(requests, sampling)
    [(ids, mask, given)] = seen
    assert (ids, mask) == ([[72, 105], [72, 105], [PAD, 65]], [[1, 1], [1, 1], [0, 1]])
    assert (given.max_new_tokens, given.do_sample, given.temperature, given.top_k) == (5, True, 0.5, 3)
    assert (given.eos_token_id, given.pad_token_id) == ([END], PAD)
    assert (first.token_ids, first.text, first.finish_reason) == ((*ids_of("a"), END), "a", "stop")
    assert (second.token_ids, second.policy_version) == ((*ids_of("bc"), END), 7)
    assert (third.token_ids, third.finish_reason) == (tuple(ids_of("de")), "length")  # its own limit


def test_a_logprob_is_the_models_own_at_the_temperature():
    model, engine = engine_of(lambda input_ids, **given: behind(input_ids, ["ab"]))
    [(one,)] = engine.generate(
        [Request(prompt_ids=(72, 105), keys=(1,))], Sampling(max_completion_length=9, temperature=0.5)
    )
    told = [*ids_of("ab"), END]
    logits = model(input_ids=torch.tensor([[72, 105, *told]])).logits[0] / 0.5
    wanted = [logits[place].log_softmax(-1)[token].item() for place, token in enumerate(told, start=1)]
    assert one.logprobs == pytest.approx(wanted)


def test_a_wrapper_around_the_models_own_samples_what_the_engine_does():
    model = tiny_model()
    requests, greedy = [Request(prompt_ids=(72, 105), keys=(1,))], Sampling(max_completion_length=6, temperature=0.0)
    [(wanted,)] = local_engine(model, eos=(END,)).generate(requests, greedy)
    own = model.generate
    model.generate = lambda **given: own(**given)
    engine = ReplacedGenerate(Loaded(model=model, compute_dtype=torch.float32), TOKENIZER, frozenset({END}), 0)
    [(one,)] = engine.generate(requests, greedy)
    assert (one.token_ids, one.finish_reason) == (wanted.token_ids, wanted.finish_reason)
    assert one.logprobs == pytest.approx(wanted.logprobs, abs=1e-5)


def test_a_stop_string_ends_a_completion():
    _, engine = engine_of(lambda input_ids, **given: behind(input_ids, ["abc"]))
    [(one,)] = engine.generate([Request(prompt_ids=(72,), keys=(1,))], Sampling(max_completion_length=9, stop=("b",)))
    assert (one.text, one.finish_reason) == ("ab", "stop")


@pytest.mark.parametrize(
    ("generate", "got"),
    [
        (lambda input_ids, **given: None, "got a NoneType"),
        (lambda input_ids, **given: input_ids, r"got \(2, 1\)"),
        (lambda input_ids, **given: behind(input_ids[:1], ["a"]), r"got \(1, 3\)"),
    ],
)
def test_what_is_no_batch_of_completions_is_refused(generate, got):
    _, engine = engine_of(generate)
    with pytest.raises(ConfigError, match=f"must return a tensor of 2 rows, each of the 1 tokens .* {got}"):
        engine.generate([Request(prompt_ids=(72,), keys=(1, 2))], Sampling(max_completion_length=9))


@pytest.mark.parametrize(
    ("generate", "got"),
    [
        (lambda input_ids, **given: behind(input_ids, ["a", "b"]).float(), "got torch.float32 from"),
        (
            lambda input_ids, **given: torch.nn.functional.pad(input_ids, (0, 1), value=-100),
            "got torch.int64 from -100",
        ),
        (lambda input_ids, **given: torch.nn.functional.pad(input_ids, (0, 1), value=VOCAB_SIZE), f"to {VOCAB_SIZE}"),
    ],
)
def test_what_are_no_token_ids_is_refused(generate, got):
    _, engine = engine_of(generate)
    with pytest.raises(ConfigError, match=f"must return token ids from 0 to {VOCAB_SIZE - 1}, .*{got}"):
        engine.generate([Request(prompt_ids=(72,), keys=(1, 2))], Sampling(max_completion_length=9))


# --- in a trainer


def made(tmp_path, **given) -> GRPOTrainer:
    """Two steps of one prompt with two completions each; a vowel earns 1."""
    args = GRPOConfig(
        output_dir=str(tmp_path / "run"),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=8,
        max_steps=2,
        logging_steps=1,
        learning_rate=0.01,
        disable_tqdm=True,
        report_to="none",
    )
    return GRPOTrainer(
        model=tiny_model(),
        processing_class=TOKENIZER,
        reward_funcs=lambda completions, **columns: [float("a" in text) for text in completions],
        args=args,
        train_dataset=PROMPTS,
        **given,
    )


def test_training_samples_by_it_and_afterwards_by_the_engine(tmp_path, caplog):
    trainer, sizes = made(tmp_path, eval_dataset=PROMPTS), []
    before, engine = trainer.model.lm_head.weight.detach().clone(), trainer._job.backend.engine

    def generate(input_ids, **given):
        sizes.append(len(input_ids))
        return behind(input_ids, ["a", "z"] * (len(input_ids) // 2))

    trainer.model.generate = generate
    trainer.train()
    assert sizes == [2, 2]
    assert "the generate that the program has put on its model" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["reward_mean"] for line in lines] == [0.5, 0.5]
    assert max(line["logprob_mismatch_max"] for line in lines) < 1e-3
    assert not torch.equal(trainer.model.lm_head.weight, before)
    assert trainer.evaluate()["eval_reward"] == 0.5
    assert sizes == [2, 2, 4]
    del trainer.model.generate
    trainer.evaluate()
    assert sizes == [2, 2, 4]
    assert trainer._job.backend.engine is engine
    assert engine.policy_version == 2


def test_a_rollout_func_samples_all_the_same(tmp_path):
    def rollouts(prompts, trainer):
        size = len(prompts)
        return {"prompt_ids": [[72]] * size, "completion_ids": [[97]] * size, "logprobs": [[-1.0]] * size}

    trainer = made(tmp_path, rollout_func=rollouts)
    trainer.model.generate = lambda **given: pytest.fail("it was asked")
    trainer.train()
    assert trainer.state.global_step == 2


def test_several_processes_need_the_models_own(tmp_path):
    trainer = made(tmp_path)
    trainer.model.generate = behind
    with (
        pytest.raises(ConfigError, match="generate must be its own on several processes"),
        sampling_by_program(replace(trainer._job, launch=object())),
    ):
        pass


def test_a_programs_own_samples_are_new_at_each_call_and_change_no_result(tmp_path):
    asking, other = made(tmp_path / "asking"), made(tmp_path / "other")
    samples = [*asking._generate(["Hi", "Hi"]).completions, *asking._generate(["Hi", "Hi"]).completions]
    assert len(set(samples)) == 4
    asking.train()
    other.train()
    assert torch.equal(asking.model.lm_head.weight, other.model.lm_head.weight)
