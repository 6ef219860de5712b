"""Law 1 for models that look back over a window, with sinks and caps of the scores: packed, padded, and alone."""

import random

import pytest
import torch

from paceline.config.objective import LossConfig
from tests.laws.splitting import FORWARDS, Splitter, random_cut, random_samples, relative
from tests.support.exact_numbers import ExactNumbers

WINDOWED = [
    "gemma2", "gemma3_text", "gemma4_text", "vaultgemma", "gpt_oss", "olmo3", "mistral", "ministral", "qwen2, window"
]  # fmt: skip


@pytest.mark.parametrize("name", WINDOWED)
def test_a_windowed_model_has_one_gradient_however_a_step_is_cut_and_laid_out(name):
    with ExactNumbers():
        splitter, chance = Splitter(random_samples(0), LossConfig(), torch.float64, kind=name), random.Random(0)
        whole = splitter.whole()
        assert whole.norm() > 1e-6
        everyone = range(len(splitter.samples))
        thirds = [list(everyone[start::3]) for start in range(3)]
        cuts = [thirds, [[row] for row in everyone], random_cut(chance, everyone)]
        for cut in cuts:
            for forward in FORWARDS:
                assert relative(splitter.gradient(cut, choose=lambda way=forward: way), whole) <= 1e-10
