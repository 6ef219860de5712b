import pytest
import torch

from paceline.checkpoint import Progress, load_optimizer, newest_checkpoint, save_checkpoint
from paceline.errors import CheckpointError
from tests.tiny import tiny_model, tiny_tokenizer


def trained(*, seed: int = 0):
    """A model and an optimiser that has made a step."""
    model = tiny_model("qwen2", seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.tensor([[1, 2, 3]])).logits.square().mean().backward()
    optimizer.step()
    return model, optimizer


def save(root, step: int, *, keep: int = 2):
    model, optimizer = trained(seed=step)
    progress = Progress(step=step, position=step * 4, policy_version=step)
    return save_checkpoint(root, progress, model=model, tokenizer=tiny_tokenizer(), optimizer=optimizer, keep=keep)


def test_a_checkpoint_gives_back_weights_moments_and_progress_exactly(tmp_path):
    checkpoint = save(tmp_path, 7)
    found, damaged = newest_checkpoint(tmp_path)
    assert (found, damaged) == (checkpoint, ())
    assert found.progress == Progress(step=7, position=28, policy_version=7)
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
    assert found.progress.step == 1
    (sentence,) = damaged
    assert "step-000002" in sentence
    assert "skipped" in sentence


def test_leftovers_of_a_killed_save_are_neither_taken_nor_kept(tmp_path):
    (tmp_path / "draft-000003").mkdir(parents=True)
    assert newest_checkpoint(tmp_path) == (None, ())
    save(tmp_path, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000004"]


def test_moments_of_another_model_are_refused(tmp_path):
    checkpoint = save(tmp_path, 1)
    other = tiny_model("qwen2", vocab_size=300)
    with pytest.raises(CheckpointError, match=r"no matching moments for parameter model\.embed_tokens\.weight"):
        load_optimizer(checkpoint, torch.optim.AdamW(other.parameters()), other)
