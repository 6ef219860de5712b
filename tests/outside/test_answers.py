"""A user grades the answers of a model with the built-in functions, from a script."""

from tests.outside.desk import Desk


def test_a_script_grades_answers_as_models_write_them(desk: Desk):
    desk.write(
        "grade.py",
        r"""
        from paceline.rewards.resolving import resolve

        marked = {
            "12": ["<answer>12 apples</answer>", r"<answer>\boxed{12} apples</answer>", r"so \boxed{= 12}"],
            "42": ["<answer>~42</answer>", r"<answer>not \boxed{42}</answer>", r"<answer>\boxed{42} thousand</answer>"],
        }
        plain = {
            "42": ["The answer is 42 apples.", "So it is 42 in total.", "The total is $42."],
            "43": ["The answer is negative 43.", "Less than 43.", "6 * 7 != 43", "It is 43 dozen.", "Twice 43"],
        }
        for name, cases in (("accuracy", marked), ("accuracy(plain=true)", plain)):
            for gold, texts in cases.items():
                rows = {"prompts": ["?"] * len(texts), "answer": [gold] * len(texts)}
                print(name, gold, resolve(name)(completions=texts, finish_reasons=["stop"] * len(texts), **rows))
        """,
    )

    graded = desk.python("grade.py")

    assert graded.returncode == 0, graded.stderr
    assert graded.stdout.splitlines() == [
        "accuracy 12 [1.0, 1.0, 1.0]",
        "accuracy 42 [0.0, 0.0, 0.0]",
        "accuracy(plain=true) 42 [1.0, 1.0, 1.0]",
        "accuracy(plain=true) 43 [0.0, 0.0, 0.0, 0.0, 0.0]",
    ]
