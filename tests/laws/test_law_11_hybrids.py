"""Law 11 for a model with states: a conversation is trained on as it was sampled, turn by turn in one context."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import paceline
from paceline.models.loaded import save_model
from paceline.training.learner.samples import samples_of
from tests.support.cluster_runs import CONVERSATIONS, options_in
from tests.support.families import family, make_model
from tests.support.tiny import tiny_tokenizer


def test_a_hybrids_turns_are_read_on_and_trained_as_they_were_sampled(tmp_path):
    options = options_in(tmp_path / "place") | CONVERSATIONS | {"max_steps": 1, "output_dir": tmp_path / "run"}
    save_model(make_model(family("qwen3_5_text")), tiny_tokenizer(), tmp_path / "place" / "model", torch.float32)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(options["model"]), tiny_tokenizer()
    with paceline.Session(**options) as session:
        for _ in session:
            groups = session.sample()
            stats = session.update(groups)
    assert stats.logprob_mismatch_max < 1e-4
    trajectories = [rollout.trajectory for group in groups for rollout in group.rollouts]
    rewritten, turns_of = 0, []
    for trajectory, row in zip(trajectories, samples_of(groups), strict=True):
        turns = [span for span in trajectory.spans if span.by == "policy"]
        turns_of.append(len(turns))
        assert [span.tokens for span in row.trained] == [span.tokens for span in turns]
        context = [token for span in trajectory.spans for token in span.tokens]
        assert [*row.prompt_ids, *row.completion_ids] == context
        with torch.no_grad():
            logprobs = model(torch.tensor([context])).logits[0].log_softmax(-1)
        at = 0
        for span in trajectory.spans:
            if span.by == "policy":
                wanted = [float(logprobs[at + number - 1, token]) for number, token in enumerate(span.tokens)]
                assert span.logprobs == pytest.approx(wanted, abs=1e-4)
                again = tokenizer(tokenizer.decode(span.tokens), add_special_tokens=False)["input_ids"]
                rewritten += tuple(again) != span.tokens
            at += len(span.tokens)
    assert max(turns_of) == 3
    assert rewritten > sum(turns_of) / 2  # most turns would be others if they were decoded and encoded
