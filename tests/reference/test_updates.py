"""Several updates from one batch of rollouts, against a training loop written out with plain autograd and AdamW."""

import copy

import pytest
import torch
from torch import Tensor

from paceline.config.objective import LossConfig, OptimConfig
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.training.learner.learner import Learner
from paceline.types import Completion, Rollout, RolloutGroup, Task, completed
from tests.reference.papers import surrogate
from tests.support.tiny import tiny_model, with_exact_norms

PROMPT = tuple(b"why?")
COMPLETIONS = (b"because", b"so", b"no idea", b"yes", b"it is", b"good", b"x")
ADVANTAGES = (1.0, -1.0, 0.5, -2.0, 1.5, 0.5, -0.5)
RATE = 3e-3
OPTIM = {"max_grad_norm": 0.5, "weight_decay": 0.1, "adam_eps": 1e-3, "micro_batch_tokens": 20}


def model(seed: int = 0):
    return with_exact_norms(tiny_model("qwen2", dtype=torch.float64, seed=seed)).train()


def loaded(one) -> Loaded:
    return Loaded(model=one, compute_dtype=torch.float64)


def group() -> RolloutGroup:
    return RolloutGroup(
        task=Task(task_id="0", prompt="", prompt_ids=PROMPT, answer=None),
        rollouts=tuple(
            Rollout(
                trajectory=completed(
                    PROMPT,
                    Completion(
                        token_ids=tuple(ids),
                        logprobs=(0.0,) * len(ids),
                        finish_reason="stop",
                        text="",
                        policy_version=0,
                    ),
                ),
                rewards={},
                reward=0.0,
                advantage=advantage,
            )
            for ids, advantage in zip(COMPLETIONS, ADVANTAGES, strict=True)
        ),
    )


def plain_logprobs(policy, row: int) -> Tensor:
    ids = tuple(COMPLETIONS[row])
    logits = policy(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1]
    return torch.log_softmax(logits, -1)[range(len(ids)), list(ids)]


def written_out(policy, reference, *, iterations: int, parts: list[list[int]], beta: float) -> int:
    """Train `policy` in place; returns how many tokens a bound held. Old logprobs are made once, before any update."""
    with torch.no_grad():
        old = [plain_logprobs(policy, row) for row in range(len(COMPLETIONS))]
        ref = [plain_logprobs(reference, row) for row in range(len(COMPLETIONS))]
    matrices, vectors = ([p for p in policy.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=1e-3)
    held = 0
    for _ in range(iterations):
        for rows in parts:
            tokens, loss = sum(len(COMPLETIONS[row]) for row in rows), torch.zeros((), dtype=torch.float64)
            for row in rows:
                for t, p in enumerate(plain_logprobs(policy, row)):
                    ratio = torch.exp(p - old[row][t])
                    token = -surrogate(ratio, ADVANTAGES[row], 0.2, 0.28)
                    held += not token.requires_grad
                    loss = loss + (token + beta * ratio.item() * (p - ref[row][t]) ** 2 / 2) / tokens
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return held


@pytest.mark.parametrize(
    ("iterations", "parts", "beta"),
    [
        (2, [[0, 1, 2, 3, 4, 5, 6]], 0.0),
        (1, [[0, 1, 2], [3, 4, 5, 6]], 0.0),
        (3, [[0, 1, 2], [3, 4, 5, 6]], 0.1),
        (2, [[0, 1], [2, 3], [4, 5, 6]], 0.1),
    ],
)
def test_old_logprobs_are_those_before_the_first_update_in_every_part_and_pass(iterations, parts, beta):
    policy, reference = model(), model(3)
    wanted = copy.deepcopy(policy)
    held = written_out(wanted, reference, iterations=iterations, parts=parts, beta=beta)
    forward = choose_forward(policy)
    choose_forward(reference)
    half = Learner(
        loaded(policy),
        forward,
        reference=loaded(reference) if beta else None,
        loss=LossConfig(beta=beta),
        optim=OptimConfig(num_iterations=iterations, num_minibatches=len(parts), **OPTIM),
        temperature=1.0,
        max_completion_length=8,
    )
    stats = half.step([group()], learning_rate=RATE)
    assert stats.updates == half.policy_version == iterations * len(parts)
    assert held > 0 or iterations == 1
    for name, parameter in policy.named_parameters():
        assert torch.allclose(parameter, wanted.get_parameter(name), rtol=0, atol=1e-11), name
