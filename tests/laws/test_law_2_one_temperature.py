"""Law 2: trainer logprobs are of the distribution that was sampled from; narrower sampling shows as a mismatch."""

import pytest
import torch

from paceline.config.objective import LossConfig, OptimConfig
from paceline.engines import Request, Sampling
from paceline.engines.local.engine import LocalEngine
from paceline.kernels.logprobs import HeadRule
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.training.learner.learner import Learner
from paceline.types import Rollout, RolloutGroup, Task, completed
from tests.support.families import family, make_model
from tests.support.tiny import tiny_model, tiny_tokenizer


def mismatch(*, sampled_at: float, trained_at: float, top_p: float = 1.0, model=None) -> tuple[float, float]:
    """Mean and largest difference between engine's and trainer's logprobs over a step's tokens."""
    policy = Loaded(model=(model or tiny_model("qwen2")).train(), compute_dtype=torch.float32)
    learner = Learner(
        policy,
        choose_forward(policy.model),
        reference=None,
        loss=LossConfig(),
        optim=OptimConfig(),
        temperature=trained_at,
        max_completion_length=24,
    )
    engine = LocalEngine(
        policy.model,
        tiny_tokenizer(),
        concurrent_sequences=8,
        compute_dtype=torch.float32,
        eos_token_ids=frozenset(),
    )
    prompts = [tuple(b"first prompt"), tuple(b"2nd")]
    requests = [Request(prompt_ids=prompt, keys=(1, 2, 3, 4)) for prompt in prompts]
    sampling = Sampling(max_completion_length=24, temperature=sampled_at, top_p=top_p)
    groups = [
        RolloutGroup(
            task=Task(task_id=str(number), prompt="", prompt_ids=prompt, answer=None),
            rollouts=tuple(
                Rollout(trajectory=completed(prompt, one), rewards={}, reward=1.0, advantage=1.0) for one in completions
            ),
        )
        for number, (prompt, completions) in enumerate(zip(prompts, engine.generate(requests, sampling), strict=True))
    ]
    stats = learner.step(groups, learning_rate=0.0)
    return stats.logprob_mismatch_mean, stats.logprob_mismatch_max


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
def test_at_one_temperature_engine_and_trainer_agree_to_rounding(temperature):
    assert mismatch(sampled_at=temperature, trained_at=temperature)[1] < 1e-4


@pytest.mark.parametrize("name", ["gemma2", "vaultgemma", "nanochat"])
def test_logits_with_a_soft_cap_are_capped_in_both(name):
    # a head that makes logits as large as the cap, which then bends every distribution
    model = make_model(family(name))
    model.config.final_logit_softcapping = 2.0
    with torch.no_grad():
        model.get_output_embeddings().weight *= 30
    assert choose_forward(model).head == HeadRule(cap=2.0)
    assert mismatch(sampled_at=0.8, trained_at=0.8, model=model)[1] < 1e-4


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", ["cohere", "cohere2", "granite, scaled logits", "minicpm3", "falcon_h1, scaled logits"]
)
def test_logits_with_a_scale_are_scaled_in_both(name):
    model = make_model(family(name))
    with torch.no_grad():
        model.get_output_embeddings().weight *= 1 / choose_forward(model).head.scale
    assert mismatch(sampled_at=0.8, trained_at=0.8, model=model)[1] < 1e-4


def test_another_temperature_in_the_trainer_would_show():
    assert mismatch(sampled_at=0.6, trained_at=1.0)[0] > 0.1


def test_truncated_sampling_is_reported_as_the_probability_mass_it_left_out():
    mean, largest = mismatch(sampled_at=1.0, trained_at=1.0, top_p=0.5)
    # each token's logprob is higher by -log(kept mass), which lies between 0 and -log(0.5)
    assert 0.1 < mean < largest <= 0.6932
