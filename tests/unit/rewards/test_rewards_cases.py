"""Test cases of known datasets are read as they are meant, and others are refused with a remedy."""

import json

import pytest

from paceline.errors import DataError
from paceline.rewards.programs.cases import Cases, code_row_check, has_cases, parse_cases

STDIN = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
READS = Cases(inputs=("1 2\n", "3 4\n"), outputs=("3\n", "7\n"))
PRIME = {"fn_name": "add", "inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"]}
CALLS = Cases(inputs=("[1, 2]", "[3, 4]"), outputs=("3", "7"), function="add")
LISTED = [{"input": "1 2\n", "output": "3\n"}, {"input": "3 4\n", "output": "7\n"}]
OPEN_R1 = [{**test, "type": "stdin_stdout", "fn_name": None} for test in LISTED]
OPEN_R1_CALLS = [
    {"input": "1\n2", "output": "3", "type": "function_call", "fn_name": "add"},
    {"input": [3, 4], "output": 7, "type": "function_call", "fn_name": "add"},
]


def parsed(columns):
    return parse_cases(columns, "rows.jsonl:17")


@pytest.mark.parametrize(
    ("columns", "cases"),
    [
        ({"test_cases": STDIN}, READS),
        ({"test_cases": json.dumps(STDIN)}, READS),
        ({"test_cases": {**STDIN, "fn_name": None}}, READS),  # parquet fills what other rows have
        ({"test_cases": {**STDIN, "fn_name": ""}}, READS),
        ({"test_cases": LISTED}, READS),
        ({"test_cases": PRIME}, CALLS),
        ({"reward_model": {"style": "rule", "ground_truth": json.dumps(STDIN)}}, READS),
        ({"reward_model": {"ground_truth": json.dumps(PRIME)}}, CALLS),
        ({"reward_model": {"ground_truth": PRIME}}, CALLS),
        ({"verification_info": {"language": "python", "test_cases": OPEN_R1}}, READS),
        ({"verification_info": json.dumps({"language": "Python3", "test_cases": OPEN_R1_CALLS})}, CALLS),
        ({"verification_info": {"test_cases": json.dumps(STDIN)}}, READS),
        ({"verification_info": {"fn_name": "add", "test_cases": {**PRIME, "fn_name": None}}}, CALLS),
        ({"input_output": json.dumps(STDIN)}, READS),
        (
            {"input_output": {"inputs": [["1 2", ""]], "outputs": [["3", ""]]}},
            Cases(inputs=("1 2\n",), outputs=("3\n",)),
        ),
        ({"test_cases": None, "input_output": STDIN}, READS),
    ],
)
def test_test_cases_of_known_datasets_are_read_as_they_are_meant(columns, cases):
    assert parsed(columns) == cases


def test_a_call_without_arguments_is_an_empty_line_or_an_empty_list():
    assert parsed({"test_cases": {"fn_name": "f", "inputs": ["", []], "outputs": ["1", 1]}}).inputs == ("[]", "[]")


def test_text_beside_a_list_of_arguments_is_the_value_itself():
    cases = parsed({"input_output": {"fn_name": "f", "inputs": [["ab", 2]], "outputs": ["abab"]}})
    assert (cases.inputs, cases.outputs, cases.in_list) == (('["ab", 2]',), ('"abab"',), False)


@pytest.mark.parametrize(
    ("column", "outputs", "in_list"),
    [
        ("input_output", [[3], [7]], True),
        ("input_output", [[3], [7, 8]], False),
        ("input_output", [3, 7], False),
        ("test_cases", [[3], [7]], False),
    ],
)
def test_only_where_apps_may_have_written_lists_of_one_is_the_item_right_too(column, outputs, in_list):
    tests = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": outputs}
    assert parsed({column: tests}).in_list is in_list


@pytest.mark.parametrize(
    "columns",
    [
        {"answer": "3"},
        {"test_cases": None},
        {"reward_model": {"ground_truth": "3"}},
        {"reward_model": {"ground_truth": r"{1, 2}"}},
        {"reward_model": {"ground_truth": None}},
        {"reward_model": None},
    ],
)
def test_a_row_that_has_an_answer_instead_is_for_other_functions(columns):
    assert not has_cases(columns)
    code_row_check(columns, "rows.jsonl:17")
    with pytest.raises(DataError, match=r"^row rows\.jsonl:17: has no test cases in any of the columns test_cases, "):
        parsed(columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"test_cases": "{"}, "test_cases is text and no JSON"),
        ({"test_cases": ""}, "test_cases is text and no JSON"),
        ({"test_cases": "[" * 100_000}, "test_cases is text and no JSON"),
        ({"input_output": '{"inputs": ["1"], "outputs":'}, "input_output is text and no JSON"),
        ({"reward_model": {"ground_truth": '{"inputs": ["1"'}}, "reward_model.ground_truth is text and no JSON"),
        ({"test_cases": 5}, "test_cases holds a int"),
        ({"test_cases": "null"}, "test_cases holds nothing"),
        ({"test_cases": {"inputs": ["1"]}}, "has no list 'outputs'"),
        ({"test_cases": {"outputs": ["1"]}}, "has no list 'inputs'"),
        ({"test_cases": {"inputs": "1", "outputs": "1"}}, "has no list 'inputs'"),
        ({"test_cases": {"inputs": ["1", "2"], "outputs": ["1"]}}, "has 2 inputs and 1 outputs; give one output for"),
        ({"test_cases": {"inputs": [], "outputs": []}}, "has no test; give at least one"),
        ({"test_cases": []}, "has no test; give at least one"),
        ({"verification_info": {"test_cases": []}}, "has no test; give at least one"),
        ({"test_cases": [{"input": "1"}]}, "has no input and output in test 1"),
        ({"test_cases": ["1"]}, "has no input and output in test 1"),
        ({"test_cases": {"inputs": [1], "outputs": ["1"]}}, "has a int as input 1 of a program that reads and prints"),
        ({"test_cases": {"inputs": ["1"], "outputs": [None]}}, "has nothing as output 1 of a program"),
        ({"test_cases": {"inputs": [["1"]], "outputs": ["1"]}}, "has a list as input 1 of a program"),
        ({"test_cases": {"inputs": ["\ud800"], "outputs": ["1"]}}, "half a surrogate pair in input 1"),
        ({"test_cases": {**PRIME, "inputs": ["1\nx", "1"]}}, "has no JSON as input 1 of a function"),
        ({"test_cases": {**PRIME, "outputs": ["1", "x"]}}, "has no JSON as output 2 of a function"),
        ({"test_cases": {**PRIME, "inputs": [5, 6]}}, "has a int as input 1 of a function; give a list of arguments"),
        ({"test_cases": {**PRIME, "outputs": ["NaN", "1"]}}, "has NaN as output 1, which no value is equal to"),
        ({"test_cases": {**PRIME, "fn_name": "a b"}}, "has 'a b' as fn_name; give the name of a Python function"),
        ({"test_cases": {**PRIME, "fn_name": "class"}}, "has 'class' as fn_name"),
        ({"test_cases": {**PRIME, "fn_name": 5}}, "has 5 as fn_name"),
        ({"verification_info": {"language": "cpp", "test_cases": OPEN_R1}}, "is for the language 'cpp'; only Python"),
        ({"test_cases": [{**LISTED[0], "language": "java"}]}, "is for the language 'java'"),
        ({"test_cases": [{**LISTED[0], "type": "judge"}]}, "has the type 'judge' in test 1; the types are"),
        ({"test_cases": [{**LISTED[0], "type": ["x"]}]}, r"has the type \['x'\] in test 1"),
        ({"test_cases": [{**LISTED[0], "type": "function_call"}]}, "calls a function in test 1 and has no fn_name"),
        (
            {"test_cases": [OPEN_R1_CALLS[0], {**OPEN_R1_CALLS[1], "fn_name": "sub"}]},
            r"calls different functions in one row \(add, sub\)",
        ),
        ({"test_cases": {"inputs": ["x" * 10_000_001], "outputs": ["1"]}}, r"has 10\.0 MB, above 10 MB"),
        ({"test_cases": json.dumps({"inputs": ["é" * 2_000_000], "outputs": ["1"]})}, r"has 12\.0 MB, above 10 MB"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_judged_is_named_with_the_rule_and_the_remedy(columns, message):
    with pytest.raises(DataError, match=rf"^row rows\.jsonl:17: .*{message}") as caught:
        parsed(columns)
    assert str(caught.value).endswith("or remove such rows (--on-bad-row skip leaves them out)")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tests", "sentence"),
    [
        (
            {"inputs": ["1"], "outputs": ["2"], "assert_case": ["assert f(1) == 2"]},
            "the key 'assert_case', which is not",
        ),
        ([{"input": "1", "output": "2", "testtype": "stdin"}], "the key 'testtype' in test 1, which is not known"),
        ({"inputs": ["", ""], "outputs": ["", "\n"]}, "expects no output in any test"),
    ],
)
def test_tests_that_would_be_passed_over_are_refused(tests, sentence):
    for columns in (
        {"test_cases": tests},
        {"reward_model": {"ground_truth": tests}},
        {"input_output": json.dumps(tests)},
    ):
        with pytest.raises(DataError, match=sentence):
            parse_cases(columns, "row 1")


def test_keys_that_a_table_filled_with_nothing_are_no_tests():
    filled = {"inputs": ["1"], "outputs": ["2"], "assert_case": None, "other": []}
    assert parse_cases({"test_cases": filled}, "row 1").inputs == ("1",)


NONE_OF_ANOTHER_ROW = [None, "", "[]", [], {}, {"inputs": None, "outputs": None}, {"inputs": [], "outputs": []}]


@pytest.mark.parametrize("nothing", NONE_OF_ANOTHER_ROW)
def test_an_empty_source_of_tests_leaves_them_to_the_other(nothing):
    assert parsed({"test_cases": nothing, "input_output": STDIN}) == READS
    assert parsed({"input_output": STDIN, "reward_model": {"ground_truth": nothing}}) == READS
    assert parsed({"verification_info": {"language": "python", "test_cases": nothing, **STDIN}}) == READS
    assert parsed({"verification_info": {"test_cases": nothing}, "input_output": STDIN}) == READS
    assert parsed({"verification_info": {"test_cases": LISTED, "inputs": None, "outputs": []}}) == READS


def test_tests_in_two_places_are_refused():
    with pytest.raises(DataError, match="verification_info has test_cases beside inputs and outputs; keep one of the"):
        parsed({"verification_info": {"test_cases": LISTED, **STDIN}})
    with pytest.raises(DataError, match="has test cases in each of the columns test_cases, input_output; keep one of"):
        parsed({"test_cases": LISTED, "input_output": json.dumps(STDIN)})
    with pytest.raises(DataError, match="in each of the columns test_cases, reward_model; keep one of them"):
        parsed({"test_cases": LISTED, "reward_model": {"ground_truth": STDIN}})


def test_tests_of_a_reward_model_that_is_stored_as_text_are_read():
    assert parsed({"reward_model": json.dumps({"ground_truth": STDIN})}) == READS
