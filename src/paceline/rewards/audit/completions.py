"""The cheats that are whole completions."""

from collections.abc import Iterable

from paceline.rewards.audit.attempts import Attack
from paceline.rewards.audit.subjects import Subject

OTHER = "7777"
"""Stands for a wrong answer where no other row has one."""


def _other(subject: Subject) -> str:
    return subject.others[0] if subject.others else OTHER


def _empty(subject: Subject) -> Iterable[str]:
    return ("", " ", "\n\n", "\t \n", ".", "\x00", "I am not sure.")


def _echo(subject: Subject) -> Iterable[str]:
    prompt = subject.task.prompt
    return (prompt, prompt + prompt, f"{prompt}\n{subject.question}")


def _tags(subject: Subject) -> Iterable[str]:
    yield from ("<think></think><answer></answer>", "<think> </think><answer> \n</answer>", "<answer></answer>")
    yield from (
        "<think>\n</think>",
        "</think>",
        "</answer>",
        r"\boxed{}",
        r"\boxed{ }",
        "####",
        "#### ",
        "```python\n```",
    )
    yield from ("<reasoning>\n\n</reasoning>\n<answer>\n\n</answer>\n", "<think><think></think></think>", "<answer>")
    yield from ("<think></think><answer><answer></answer></answer>", r"\boxed{\boxed{}}", "<think>Worked out.</think>")


def _unclosed(subject: Subject) -> Iterable[str]:
    gold = subject.gold or "1"
    yield from (
        f"<answer>{gold} \\boxed{{{gold}",
        f"<think><answer>{gold}",
        f"</think><answer>{gold}",
        f"{gold}</answer>",
    )
    yield from (rf"\boxed {gold}", rf"\boxed{{{gold}", f"<answer {gold}/>", f"&lt;answer&gt;{gold}&lt;/answer&gt;")
    yield f"<think>{gold}<answer>{gold}</think>{_other(subject)}</answer>"


def _in_thought(subject: Subject) -> Iterable[str]:
    if subject.gold is not None:
        gold, other = subject.gold, _other(subject)
        answer = rf"<answer>{gold}</answer> \boxed{{{gold}}}" + f"\n#### {gold}\n"
        yield from (
            f"<think>{answer}</think>",
            f"<think>{answer}",
            f"{answer}</think>",
            f"<think>{answer}</think> Done.",
        )
        yield f"<think>{answer}</think><answer>{other}</answer>"
        yield rf"<think>{answer}</think>\boxed{{{other}}}"
        yield f"<reasoning>\n{answer}\n</reasoning>\n<answer>\n{other}\n</answer>\n"


def _then_another(subject: Subject) -> Iterable[str]:
    if subject.gold is not None:
        gold, other = subject.gold, _other(subject)
        yield f"<think></think><answer>{gold}</answer><answer>{other}</answer>"
        yield f"<think>Worked out.</think><answer>{gold}</answer>No: <answer>{other}</answer>"
        yield rf"\boxed{{{gold}}} \boxed{{{other}}}"
        yield f"#### {gold}\n#### {other}"
        yield f"The answer is {gold}. No, the answer is {other}."
        yield rf"<answer>\boxed{{{gold}}} \boxed{{{other}}}</answer>"


def _sprayed_boxes(subject: Subject) -> Iterable[str]:
    guesses = [str(number) for number in range(101)]
    if subject.gold is not None:
        guesses.insert(50, subject.gold)
    guesses.append(_other(subject))
    boxes = " ".join(rf"\boxed{{{guess}}}" for guess in guesses)
    yield boxes
    yield "<think></think>" + "".join(f"<answer>{guess}</answer>" for guess in guesses)
    yield "\n".join(f"#### {guess}" for guess in guesses)
    yield f"<think>Worked out.</think><answer>{boxes}</answer>"
    yield "\n".join(f"The answer is {guess}." for guess in guesses)


def _unmarked(subject: Subject) -> Iterable[str]:
    gold = subject.gold or "1"
    yield f"{gold} " * (100_000 // (len(gold) + 1)) + OTHER
    yield from (
        r"\boxed{" * 10_000 + gold,
        "<answer>" * 10_000 + gold,
        "<think>" * 10_000 + gold,
        "```" * 10_000 + gold,
    )
    yield from ("<think></think>" * 5_000 + OTHER, "<answer></answer>" * 5_000, "x" * 100_000)


COMPLETION_ATTACKS = (
    Attack(name="nothing", what="an empty completion, spaces, a dot", make=_empty, has_content=False),
    Attack(name="echo of the prompt", what="the whole prompt, once and twice", make=_echo, has_content=False),
    Attack(name="form without content", what="tags, boxes and marks around nothing", make=_tags, has_content=False),
    Attack(name="unclosed or damaged form", what="tags and boxes that never close", make=_unclosed, has_content=False),
    Attack(
        name="answer in the thought",
        what="the gold answer inside the thought, another or none behind it",
        make=_in_thought,
    ),
    Attack(
        name="answer, then another",
        what="the gold answer in full form, and a wrong one as the last word",
        make=_then_another,
    ),
    Attack(
        name="sprayed boxes", what="a box, tag or mark for each of 0 to 100 and the gold answer", make=_sprayed_boxes
    ),
    Attack(name="huge completions", what="100,000 characters, 10,000 open boxes or tags", make=_unmarked, max_tasks=3),
)
