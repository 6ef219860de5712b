"""Laws 4 and 5 for a model with windows and one with states: the same bits again, and after `kill -9` in the middle."""

import shutil
import signal
from pathlib import Path

import pytest
import torch

from paceline.models.loaded import save_model
from tests.chaos.runs import OPTIONS, Place, furnish
from tests.chaos.sabotage import Trap
from tests.support.families import family, make_model
from tests.support.tiny import tiny_tokenizer

UNMEASURED = {name: value for name, value in OPTIONS.items() if not name.startswith("eval_")}
THREE_STEPS = UNMEASURED | {"max_steps": 3, "prompts_per_step": 2, "max_completion_length": 24}
"""A checkpoint after the second step; completions are three windows long."""
KILLS = {
    # rollouts of step 2 are committed, there is no checkpoint
    "gemma3_text": Trap(function="paceline.checkpoints.run_directory:RunDir.append_metrics", deed="SIGKILL", first=2),
    # in the update of step 3, behind a checkpoint
    "qwen3_5_text": Trap(function="paceline.training.learner.learner:Learner.step", deed="SIGKILL", first=3),
}


def furnished(folder: Path, name: str) -> Place:
    """A directory for a run of a tiny model of this family."""
    furnish(folder)
    shutil.rmtree(folder / "model")
    save_model(make_model(family(name)), tiny_tokenizer(), folder / "model", torch.float32)
    return Place(folder=folder, options=THREE_STEPS)


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param("gemma3_text", marks=pytest.mark.long), "qwen3_5_text"])
def test_a_run_is_the_same_again_and_after_a_kill(name, tmp_path):
    first, again, killed = (furnished(tmp_path / folder, name) for folder in ("first", "again", "killed"))
    for place in (first, again):
        ended = place.train()
        assert ended.returncode == 0, ended.said
    assert again.outcome() == first.outcome()
    assert killed.train(traps=[KILLS[name]]).returncode == -signal.SIGKILL
    assert len(killed.run.metrics()) < 3
    ended = killed.resume()
    assert ended.returncode == 0, ended.said
    assert killed.outcome() == first.outcome()
