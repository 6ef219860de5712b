"""A reward function is found by name, module or file, and a wrong name is refused with the nearest."""

import pytest

from paceline.errors import RewardError
from paceline.rewards.function import BuiltIn, RewardContext
from paceline.rewards.resolving import BUILT_IN, resolve


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_name_gives_its_function(name):
    function = resolve(name, RewardContext(max_completion_length=100))
    assert isinstance(function, BuiltIn)
    assert function.name == name


def test_a_name_may_carry_parameters():
    short, long = (resolve(f"soft_overlong(max_length={length}, cache=10)") for length in (20, 200))
    assert short(completion_ids=[[0] * 20]) == [-1.0]
    assert long(completion_ids=[[0] * 20]) == [0.0]
    assert short.name == "soft_overlong"


def test_a_module_and_a_file_give_their_functions(tmp_path):
    path = tmp_path / "my rewards.py"
    path.write_text("calls = []\ndef one(completions):\n    return [1.0] * len(completions)\ndef two(): return calls\n")
    assert resolve("operator:neg")(3) == -3
    assert resolve(f"{path}:one")(["a", "b"]) == [1.0, 1.0]
    assert resolve(f"{path}:two").__globals__ is resolve(f"{path}:one").__globals__


def test_two_files_of_one_name_and_a_changed_file_stay_apart(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "math.py").write_text(f"def f(): return {folder!r}\n")
    a, b = (resolve(f"{tmp_path}/{folder}/math.py:f") for folder in "ab")
    assert (a(), b()) == ("a", "b")
    (tmp_path / "a" / "math.py").write_text("def f(): return 'changed'\n")
    assert resolve(f"{tmp_path}/a/math.py:f")() == "changed"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acuracy", r"no built-in reward function 'acuracy'; did you mean 'accuracy'\?; choose from accuracy, format"),
        ("cosin(max_length=3)", r"no built-in reward function 'cosin'; did you mean 'cosine'\?"),
        ("boxed(x=1)", r"'boxed' takes no parameters, got 'x'"),
        ("operator:neg(x=1)", r"operator:neg\(x=1\): there is no 'neg\(x=1\)' in it"),
        ("zzz", r"no built-in reward function 'zzz'; choose from"),
        ("absent.py:f", r"absent\.py:f: the file cannot be read"),
        ("no_such_module:f", r"no_such_module:f: the module cannot be imported \(ModuleNotFoundError"),
        ("operator:negg", r"operator:negg: there is no 'negg' in it; did you mean 'neg'\?"),
        ("string:digits", r"string:digits: 'digits' is of type str, but must be a function"),
        ("operator:", r"no built-in reward function 'operator:'"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_with_the_nearest_one(name, message):
    with pytest.raises(RewardError, match=message) as refusal:
        resolve(name)
    assert refusal.value.exit_status == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def f(:\n    pass\n", r"SyntaxError: .*line 1"),
        ("x = undefined\n", r"NameError: name 'undefined'"),
        ("raise SystemExit(0)\n", r"SystemExit"),
        ("import no_such_module\n", r"ModuleNotFoundError"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_named_with_the_reason(tmp_path, content, message):
    path = tmp_path / "broken.py"
    path.write_text(content)
    for _ in range(2):
        with pytest.raises(RewardError, match=rf"broken\.py:f: the file cannot be loaded \({message}"):
            resolve(f"{path}:f")
