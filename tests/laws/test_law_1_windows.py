"""Law 1 for models with windows, sinks, capped scores, experts or latent attention: packed, padded, and alone."""

import random

import pytest
import torch

from paceline.config.objective import LossConfig
from paceline.models.attention import PackedLayout
from tests.laws.splitting import FORWARDS, Splitter, random_cut, random_samples, relative
from tests.support.exact import Float64Kept

OTHERS = (
    "gemma4_text", "vaultgemma", "olmo3", "mistral", "ministral", "gemma3n_text, two layers share keys", "exaone4",
    "dots1", "mimo_v2_flash", "cohere2", "qwen3_moe", "deepseek_v3",
)  # fmt: skip
WINDOWED = [
    "gemma2", "gemma3_text", "gpt_oss", "qwen2, window",
    *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS),
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WINDOWED)
def test_a_model_has_one_gradient_however_a_step_is_cut_and_laid_out(name):
    with Float64Kept():
        splitter, chance = Splitter(random_samples(0), LossConfig(), torch.float64, kind=name), random.Random(0)
        whole = splitter.whole()
        assert whole.norm() > 1e-6
        everyone = range(len(splitter.samples))
        thirds = [list(everyone[start::3]) for start in range(3)]
        cuts = [thirds, [[row] for row in everyone], random_cut(chance, everyone)]
        for cut in cuts:
            for forward in FORWARDS:
                assert relative(splitter.gradient(cut, choose=lambda way=forward: way), whole) <= 1e-10


@pytest.mark.parametrize("name", ["gemma3_text", "gpt_oss"])
def test_a_model_whose_windows_were_left_out_would_break_the_law(name, monkeypatch):
    with Float64Kept():
        splitter = Splitter(random_samples(0), LossConfig(), torch.float64, kind=name)
        rows = [range(len(splitter.samples))]
        padded = splitter.gradient(rows, choose=lambda: FORWARDS[1])
        monkeypatch.setattr(PackedLayout, "within", lambda layout, window: layout)
        assert relative(splitter.gradient(rows), padded) > 1e-2
