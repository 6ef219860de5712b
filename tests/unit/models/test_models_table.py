"""docs/models.md and its record are what a run with each family comes to: a few of them, one for each way."""

import pytest

from tests.support.models_table import LARGEST, NAMES, PAGE, RECORD, Refused, Trained, page, read_record, record, tried

pytestmark = pytest.mark.long

RESULTS = read_record()


@pytest.mark.parametrize(
    "name",
    [
        "llama, biases, tied",  # fused, packed
        "phi3, longrope",  # plain, packed
        "lfm2",  # plain, packed with states
        "openai-gpt",  # recomputing, padded
        "gemma2",  # with a soft cap of its logits, and one of its attention
        "cohere",  # with a scale of its logits
        "rwkv",  # refused by the probe
        "Gemma3ForConditionalGeneration",  # the language model of a checkpoint that reads images
    ],
)
def test_the_record_of_models_says_what_a_run_comes_to(name, tmp_path):
    result, recorded = tried(name, tmp_path), RESULTS[name]
    if isinstance(result, Refused):
        assert result == recorded
    else:
        assert isinstance(recorded, Trained)
        assert (result.engine, result.learner) == (recorded.engine, recorded.learner)
        assert max(result.mismatch, result.off) <= LARGEST


def test_the_record_of_models_has_every_family_and_no_large_difference():
    assert set(NAMES) <= RESULTS.keys()
    trained = [result for result in RESULTS.values() if isinstance(result, Trained)]
    assert len(trained) > 60
    assert max(max(result.mismatch, result.off) for result in trained) <= LARGEST


def test_the_pages_of_models_are_of_the_record():
    assert RECORD.read_text() == record(RESULTS)
    stripped = [text.split("(here")[0] + text.split("Engine, trainer")[1] for text in (PAGE.read_text(), page(RESULTS))]
    assert stripped[0] == stripped[1]  # but for the version of transformers
