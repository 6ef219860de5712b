"""Law 8 for programs: the row's own solution scores full in the real sandbox, and programs that cheat score nothing."""

import pytest

from paceline.config.sampling import SamplingConfig
from paceline.config.sections import RewardConfig
from paceline.data.sources import load_rows
from paceline.errors import SandboxError
from paceline.rewards.resolving import resolve, reward_context
from paceline.rewards.startup import self_test
from paceline.types import Task

PROMPTS = ("Write a program.", "Write a program.\n<think>", "Write a program.\n<think>\n")
CHEATS = (
    "import sys\nsys.exit(0)",
    "import os\nos._exit(0)",
    "print(open('/proc/self/environ').read())",
    "import gc\nprint([one for one in gc.get_objects() if isinstance(one, dict) and 'outputs' in one])",
    "import sys\nprint(sys._getframe().f_back)",
    "class Always(str):\n    def __eq__(self, other):\n        return True\nprint(Always('x'))",
    "while True:\n    pass",
)


@pytest.fixture(scope="module")
def code():
    function = resolve("code(timeout=1)", reward_context(RewardConfig(), SamplingConfig(), seed=0))
    try:
        function.describe()
    except SandboxError as error:
        pytest.skip(str(error))
    return function


def tasks(prompt):
    rows = load_rows("programs", split="train", size=10)
    return [
        Task(task_id=row.row_id, prompt=prompt, prompt_ids=(1,), answer=None, columns=dict(row.columns)) for row in rows
    ]


def grades(function, made, completions):
    columns = {name: [task.columns[name] for task in made] for name in made[0].columns}
    given = function(prompts=[task.prompt for task in made], completions=completions, **columns)
    return [one.value for one in given]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_solution_scores_full_and_junk_does_not_also_where_the_prompt_opens_the_thought(code, prompt):
    made = tasks(prompt)
    assert grades(code, made, [code.gold(task) for task in made]) == [code.maximum] * len(made)
    for task in made:
        junk = code.junk(task)
        assert len(junk) >= 3
        assert max(grades(code, [task] * len(junk), list(junk))) < code.maximum
    assert self_test({"code": code}, made) == ()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_program_that_cheats_scores_nothing(code, cheat):
    made = tasks(PROMPTS[0])[:3]
    assert grades(code, made, [f"```python\n{cheat}\n```"] * 3) == [0.0] * 3
