"""Memory that runs out in a step: the same update comes of smaller micro-batches, or one sentence says why not."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier

import pytest
import torch

from paceline.config.objective import LossConfig, OptimConfig
from paceline.errors import TrainingError
from paceline.kernels.logprobs import PLAIN
from paceline.models.forward import PolicyForward, choose_forward
from paceline.models.loaded import Loaded
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.runtime.devices import is_out_of_memory
from paceline.training.learner.forward_backward import Budget
from paceline.training.learner.learner import Learner
from tests.support.tiny import tiny_model, with_exact_norms
from tests.unit.training.test_learner import group

GROUPS = [
    group((b"abc", 1.0), (b"zyxw", -1.0), (b"k", 0.5)),
    group((b"one more", -0.5), (b"and another", 0.25), (b"end", 1.5)),
]
REASONS = (
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 64 bytes."),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total capacity of ..."),
)


class Scarce:
    """A forward pass for which memory runs out in some of its calls, or above so many input tokens."""

    kind, reason, head, vision = "packed", "", PLAIN, None

    def __init__(self, forward: PolicyForward, *, calls: tuple[int, ...] = (), tokens: int = 10**6) -> None:
        self.forward, self.calls, self.tokens, self.made = forward, calls, tokens, 0
        self.sizes = list[int]()
        self.error: BaseException = REASONS[0]

    def of(self, model, tokens):
        self.made += 1
        if self.made in self.calls or len(tokens.batch.input_ids) > self.tokens:
            raise self.error
        self.sizes.append(len(tokens.batch.input_ids))
        return self.forward.of(model, tokens)


def loaded(seed: int = 0) -> Loaded:
    model = with_exact_norms(tiny_model("qwen2", dtype=torch.float64, seed=seed)).train()
    return Loaded(model=model, compute_dtype=torch.float64)


def learner(*, ranks=ONE_RANK, calls=(), tokens=10**6, top=1.0, **optim) -> tuple[Learner, Scarce]:
    """With a reference, so that every kind of pass is made; `top`: the share of tokens of high entropy."""
    policy, reference = loaded(), loaded(seed=3)
    choose_forward(reference.model)  # has its attention know of packed prompts
    forward = Scarce(choose_forward(policy.model), calls=calls, tokens=tokens)
    half = Learner(
        policy,
        forward,
        reference=reference,
        loss=LossConfig(beta=0.1, average="sequence", top_entropy_quantile=top),
        optim=OptimConfig(**optim),
        temperature=1.0,
        max_completion_length=16,
        ranks=ranks,
    )
    return half, forward


def weights(half: Learner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in half.policy.model.parameters()])


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("reason", REASONS, ids=["python", "cpu", "cuda"])
def test_the_step_is_done_again_in_smaller_micro_batches_with_the_same_result(reason):
    plenty, _ = learner()
    wanted = plenty.step(GROUPS, learning_rate=1e-3)
    short, forward = learner(tokens=20)
    forward.error = reason
    stats = short.step(GROUPS, learning_rate=1e-3)
    assert stats.micro_batch_tokens <= 20 < wanted.micro_batch_tokens
    assert stats.micro_batches_halved > wanted.micro_batches_halved == 0
    assert max(forward.sizes) <= 20
    assert relative(weights(short), weights(plenty)) < 1e-10
    assert (stats.loss, stats.kl) == pytest.approx((wanted.loss, wanted.kl), rel=1e-10)
    assert (stats.updates, short.policy_version) == (1, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(1, 8))
def test_at_whichever_pass_memory_runs_out_nothing_is_counted_twice_and_no_old_logprob_is_lost(number):
    """Passes of the reference, of the policy before the first update, and of updates whose start is gone."""
    options = {"num_iterations": 2, "num_minibatches": 2, "micro_batch_tokens": 64}
    plenty, _ = learner(**options)
    wanted = plenty.step(GROUPS, learning_rate=1e-3)
    short, forward = learner(calls=(number,), **options)
    stats = short.step(GROUPS, learning_rate=1e-3)
    assert forward.made > number
    assert stats.micro_batch_tokens < 64
    assert relative(weights(short), weights(plenty)) < 1e-10
    assert stats.clip_high_fraction == pytest.approx(wanted.clip_high_fraction)
    assert all(parameter.grad is None for parameter in short.policy.model.parameters())


def test_later_steps_keep_the_smaller_budget_and_run_out_of_nothing():
    half, forward = learner(tokens=20)
    first = half.step(GROUPS, learning_rate=1e-3)
    made, done = forward.made, len(forward.sizes)
    second = half.step(GROUPS, learning_rate=1e-3)
    assert second.micro_batch_tokens == first.micro_batch_tokens
    assert (first.micro_batches_halved > 0, second.micro_batches_halved) == (True, 0)
    assert forward.made - made == len(forward.sizes) - done > 0  # each pass that was begun was done


@pytest.mark.long
def test_where_one_completion_alone_is_too_much_the_run_ends_with_the_remedy_and_its_weights():
    half, _ = learner(tokens=8)
    before = weights(half)
    with pytest.raises(
        TrainingError,
        match=r"ran out with one completion of at most 13 tokens in each micro-batch; give --gradient-checkpointing",
    ):
        half.step(GROUPS, learning_rate=1e-3)
    assert torch.equal(weights(half), before)


def test_another_error_of_a_pass_is_not_taken_for_want_of_memory():
    half, forward = learner(calls=(1,))
    forward.error = RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        half.step(GROUPS, learning_rate=1e-3)
    assert not is_out_of_memory(forward.error)


@dataclass
class Told:
    """`Ranks` of one of two that hold copies; what the other says of its memory is scripted."""

    other: Iterator[float]
    parallel_layout: object = ONE_RANK.parallel_layout
    said: list[float] = field(default_factory=list)

    def collect(self, numbers):
        self.said.append(numbers["out_of_memory"])
        return [numbers, {"out_of_memory": next(self.other)}]


def test_a_rank_does_a_pass_again_because_another_one_ran_out_of_memory_there():
    ranks, made = Told(other=iter([1.0, 0.0])), []
    budget = Budget(tokens=64, ranks=ranks, device=torch.device("cpu"))
    sizes = [(3, 40), (1, 50)]  # samples, tokens
    assert budget.fit(lambda: made.append(budget.tokens) or len(made), lambda: sizes) == 2
    assert (made, ranks.said) == ([64, 20], [0.0, 0.0])  # half of the largest that can be cut


def test_ranks_that_share_a_model_end_with_the_remedy_as_the_others_are_in_the_middle_of_the_pass():
    def runs_out():
        raise MemoryError

    budget = Budget(tokens=64, ranks=Told(other=iter([]), parallel_layout=object()), device=torch.device("cpu"))
    with pytest.raises(TrainingError, match=r"at most 64 tokens, and ranks that share a model .* --micro-batch-tokens"):
        budget.fit(runs_out, list)


class Meeting:
    """Two ranks in threads of one process: what each sends is handed to both once both have sent something."""

    def __init__(self) -> None:
        self.barrier, self.sent = Barrier(2, timeout=60), [None, None]

    def exchange(self, rank: int, value):
        self.sent[rank] = value
        self.barrier.wait()
        found = [*self.sent]
        self.barrier.wait()  # nobody sends the next before both have read
        return found


class Copy(Ranks):
    """One of two ranks that hold whole copies; numbers and texts go the same way, as between processes."""

    size = shares = 2

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = self.share = rank
        self.meeting = meeting

    def passes(self, counts):
        return counts[self.share]

    def add_up_gradients(self, model):
        own = [parameter.grad for parameter in model.parameters()]
        first, second = self.meeting.exchange(self.rank, own)
        for parameter, one, other in zip(model.parameters(), first, second, strict=True):
            parameter.grad = one + other

    def collect(self, numbers):
        return [json.loads(text) for text in self.all_gather_text(json.dumps(dict(numbers)))]

    def all_gather_text(self, text):
        return self.meeting.exchange(self.rank, text)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(1, 6))
def test_ranks_find_the_same_high_entropies_where_memory_runs_out_on_one(number):
    """At whichever of its passes: of the reference, then twice for the entropies and for the gradient."""
    options = {"top": 0.4, "micro_batch_tokens": 32, "num_iterations": 2}
    plenty, _ = learner(**options)
    wanted = plenty.step(GROUPS, learning_rate=1e-3)
    meeting = Meeting()
    (one, _), (other, _) = (
        learner(ranks=Copy(rank, meeting), calls=calls, **options) for rank, calls in enumerate([(number,), ()])
    )
    with ThreadPoolExecutor(2) as threads:
        stats, _ = threads.map(lambda half: half.step(GROUPS, learning_rate=1e-3), (one, other))
    assert stats.micro_batches_halved == 1
    for half in (one, other):
        assert relative(weights(half), weights(plenty)) < 1e-10
    assert (stats.loss, stats.policy_loss) == pytest.approx((wanted.loss, wanted.policy_loss), rel=1e-10)
