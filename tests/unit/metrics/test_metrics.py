"""A step's record has exactly the names of the metrics table."""

import pytest

from paceline.metrics.definitions import METRICS, OPTIONAL, check_record

WHOLE = dict.fromkeys(METRICS, 0)


def test_the_whole_table_is_a_record_and_only_optional_names_may_be_absent():
    check_record(WHOLE)
    check_record({name: 0 for name in METRICS if name not in OPTIONAL})


def test_an_unknown_name_is_refused_by_name():
    with pytest.raises(ValueError, match=r"unknown: \['acuracy'\], missing: \[\]"):
        check_record(WHOLE | {"acuracy": 1})


def test_a_missing_name_is_refused_by_name():
    with pytest.raises(ValueError, match=r"unknown: \[\], missing: \['reward_mean'\]"):
        check_record({name: 0 for name in METRICS if name != "reward_mean"})
