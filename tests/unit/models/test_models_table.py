"""docs/models.md is what a run with each family comes to: a few of them, one for each way."""

import pytest

from tests.support.families import FAMILIES, family
from tests.support.models_table import LARGEST, PAGE, Refused, tried

ROWS = {
    line.split(" | ")[0].removeprefix("| "): line for line in PAGE.read_text().splitlines() if line.startswith("| ")
}


@pytest.mark.parametrize(
    "name",
    [
        "llama, biases, tied",  # fused, packed
        "phi3, longrope",  # plain, packed
        "lfm2",  # plain, padded
        "openai-gpt",  # recomputing, padded
        "gemma2",  # with a soft cap of its logits, and one of its attention
        "cohere",  # refused by config.json
        "rwkv",  # refused by the probe
    ],
)
def test_the_page_of_models_says_what_a_run_comes_to(name, tmp_path):
    found, row = tried(family(name), tmp_path), ROWS[name].split(" | ")
    if isinstance(found, Refused):
        assert found.row(name) == ROWS[name]
    else:
        assert [found.engine, found.learner] == row[1:3]
        assert max(found.mismatch, found.off) <= LARGEST


def test_the_page_of_models_has_every_family_and_no_large_difference():
    assert {one.name for one in FAMILIES} <= ROWS.keys()
    trained = [line.removesuffix(" |").split(" | ") for line in ROWS.values() if line.count(" | ") == 4]
    differences = [float(cell) for row in trained if row[1] in ("fused", "plain", "recomputing") for cell in row[3:]]
    assert len(differences) > 120
    assert max(differences) <= LARGEST
