"""Libraries are loaded without the collector, which finds nothing to do in them afterwards either."""

import gc
import importlib

import pytest

from paceline.cli.libraries import loading_libraries


@pytest.fixture(autouse=True)
def nothing_frozen():
    gc.unfreeze()
    yield
    gc.freeze()  # as all tests have it


def test_what_is_loaded_stays_out_of_the_collectors_sight(tmp_path, monkeypatch):
    (tmp_path / "loaded_for_the_first_time.py").write_text("made = [[]]\n")
    monkeypatch.syspath_prepend(tmp_path)
    with loading_libraries():
        assert not gc.isenabled()
        made = importlib.import_module("loaded_for_the_first_time").made
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    assert not any(one is made for one in gc.get_objects())


def test_where_nothing_is_loaded_nothing_is_kept_from_the_collector():
    with loading_libraries():
        importlib.import_module("json")
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_the_collector_is_back_after_a_library_that_fails(tmp_path, monkeypatch):
    (tmp_path / "fails_when_loaded.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError), loading_libraries():
        importlib.import_module("fails_when_loaded")
    assert gc.isenabled()
