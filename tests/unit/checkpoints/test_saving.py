"""A checkpoint restores weights, moments and progress exactly, and a damaged one is found and passed over."""

import pytest
import torch

from paceline.checkpoints.finding import TrainingState, newest_checkpoint
from paceline.checkpoints.optimizer_state import load_optimizer, load_reference_weights
from paceline.checkpoints.saving import TokenizerFiles
from paceline.errors import CheckpointError
from paceline.models.loaded import Loaded
from tests.support.checkpoint_files import save_checkpoint
from tests.support.tiny import tiny_model, tiny_tokenizer


def trained(*, seed: int = 0, make=None):
    """A model and an optimiser that has made a step."""
    model = tiny_model("qwen2", seed=seed)
    optimizer = (make or torch.optim.AdamW)(model.parameters(), lr=0.01)
    update(model, optimizer)
    return model, optimizer


def update(model, optimizer) -> None:
    model(torch.tensor([[1, 2, 3]])).logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def ready(model) -> Loaded:
    return Loaded(model=model, compute_dtype=torch.float32)


def save(root, step: int, *, keep: int = 2, trained_by=None, reference=None):
    model, optimizer = trained_by or trained(seed=step)
    return save_checkpoint(
        root,
        TrainingState(step=step, position=step * 4, policy_version=step),
        loaded=ready(model),
        tokenizer=TokenizerFiles(tiny_tokenizer()),
        optimizer=optimizer,
        keep=keep,
        reference=reference,
    )


class PythonMomentum(torch.optim.Optimizer):
    """Keeps a Python number, a whole number and a tensor in double precision for each parameter."""

    def __init__(self, params, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                mean = state.get("mean", torch.zeros_like(parameter, dtype=torch.float64))
                state |= {"mean": 0.9 * mean + parameter.grad, "calls": state.get("calls", 0) + 1, "rate": group["lr"]}
                parameter -= state["rate"] / state["calls"] * state["mean"]


class Remembering(torch.optim.SGD):
    """Keeps a list for each parameter."""

    def step(self) -> None:
        super().step()
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["history"] = [1.0]


def test_a_checkpoint_gives_back_weights_moments_and_progress_exactly(tmp_path):
    checkpoint = save(tmp_path, 7)
    found, damaged = newest_checkpoint(tmp_path)
    assert (found, damaged) == (checkpoint, ())
    assert found.state == TrainingState(step=7, position=28, policy_version=7)
    model, optimizer = trained(seed=7)
    loaded = type(model).from_pretrained(found.model)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    fresh = torch.optim.AdamW(loaded.parameters(), lr=0.5)
    load_optimizer(found, fresh, loaded)
    for mine, theirs in zip(optimizer.param_groups[0]["params"], loaded.parameters(), strict=True):
        for moment in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[mine][moment], fresh.state[theirs][moment])


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    for step in (1, 2, 10):
        save(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000010"]


def test_the_newest_checkpoint_is_that_of_the_largest_step_and_a_copy_beside_it_is_left_alone(tmp_path):
    for step in (999_999, 1_000_000):
        save(tmp_path, step, keep=2)
    (tmp_path / "step-1000000-best").mkdir()
    assert newest_checkpoint(tmp_path)[0].state.step == 1_000_000
    save(tmp_path, 1_000_001, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1000000", "step-1000000-best", "step-1000001"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("file", ["model/model.safetensors", "optimizer.safetensors", "progress.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(tmp_path, file, damage):
    save(tmp_path, 1)
    path = save(tmp_path, 2).path / file
    content = path.read_bytes()
    middle = len(content) // 2
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:middle] + (b"" if damage == "cut" else b"\0" + content[middle + 1 :]))
    found, damaged = newest_checkpoint(tmp_path)
    assert found.state.step == 1
    (sentence,) = damaged
    assert "step-000002" in sentence
    assert "skipped" in sentence


def test_by_size_a_cut_file_is_found_and_a_flipped_bit_is_not(tmp_path):
    path = save(tmp_path, 1).path / "optimizer.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\1")
    assert newest_checkpoint(tmp_path, by_size=True)[0].state.step == 1
    with pytest.raises(CheckpointError, match="is not the file that was saved"):
        newest_checkpoint(tmp_path)
    path.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match="is not the file that was saved"):
        newest_checkpoint(tmp_path, by_size=True)


def test_leftovers_of_a_killed_save_are_neither_taken_nor_kept(tmp_path):
    (tmp_path / "draft-000003").mkdir(parents=True)
    assert newest_checkpoint(tmp_path) == (None, ())
    save(tmp_path, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000004"]


def test_moments_of_another_model_are_refused(tmp_path):
    checkpoint = save(tmp_path, 1)
    other = tiny_model("qwen2", vocab_size=300)
    with pytest.raises(CheckpointError, match=r"no matching state for parameter model\.embed_tokens\.weight"):
        load_optimizer(checkpoint, torch.optim.AdamW(other.parameters()), other)
    part = list(other.model.norm.parameters())
    with pytest.raises(CheckpointError, match=r"no matching state for parameter"):
        load_optimizer(checkpoint, torch.optim.AdamW(part), other)


def fused(parameters, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, fused=True)


def momentum(parameters, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "make",
    [fused, momentum, torch.optim.SGD, torch.optim.Adafactor, torch.optim.Adagrad, PythonMomentum],
    ids=lambda make: make.__name__,
)
def test_any_optimiser_of_tensors_and_numbers_goes_on_bit_for_bit(tmp_path, make):
    model, optimizer = trained(make=make)
    checkpoint = save(tmp_path, 1, trained_by=(model, optimizer))
    update(model, optimizer)
    again = type(model).from_pretrained(checkpoint.model)
    fresh = make(again.parameters(), lr=0.01)
    load_optimizer(checkpoint, fresh, again)
    update(again, fresh)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_an_optimiser_that_keeps_something_else_is_refused_and_nothing_is_committed(tmp_path):
    with pytest.raises(CheckpointError, match=r"Remembering keeps 'history' as a list .* use another optimiser"):
        save(tmp_path, 1, trained_by=trained(make=Remembering))
    assert newest_checkpoint(tmp_path) == (None, ())


def test_the_state_of_another_optimiser_is_refused(tmp_path):
    checkpoint = save(tmp_path, 1)
    model = tiny_model("qwen2")
    with pytest.raises(CheckpointError, match="holds the state of AdamW, the run has SGD; give the --optimizer"):
        load_optimizer(checkpoint, torch.optim.SGD(model.parameters()), model)


def test_a_reference_that_moves_comes_back_exactly(tmp_path):
    moving, fresh = ready(tiny_model("qwen2", seed=5)), ready(tiny_model("qwen2", seed=6))
    checkpoint = save(tmp_path, 1, reference=moving)
    load_reference_weights(checkpoint, fresh.model)
    assert all(torch.equal(a, b) for a, b in zip(moving.model.parameters(), fresh.model.parameters(), strict=True))
    assert newest_checkpoint(tmp_path) == (checkpoint, ())
    (checkpoint.path / "reference.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"holds no whole checkpoint; restore one or .*reference"):
        newest_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"reference\.safetensors cannot be read"):
        load_reference_weights(checkpoint, fresh.model)
    with pytest.raises(CheckpointError, match=r"reference\.safetensors cannot be read"):
        load_reference_weights(save(tmp_path, 2), fresh.model)
