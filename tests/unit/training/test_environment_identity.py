"""What a run says of its environments at its start, and what of them is compared when it is resumed."""

from dataclasses import replace

import pytest

from paceline.chat.turns import TurnTokens
from paceline.environments.resolving import specs
from paceline.training.identity import environment_digests
from tests.support.chat_families import BY_NAME, stop_ids_of, tokenizer_of
from tests.unit.training.test_conversations import conversations, counting


def held_by(*addresses, family="qwen3"):
    """Conversations with these environments and the chat template of a family of models."""
    own = specs(addresses, sandbox="none")
    tokens = {
        name: TurnTokens(
            tokenizer_of(family), tools=spec.tools, switches=BY_NAME[family].switches, stop_ids=stop_ids_of(family)
        )
        for name, spec in own.items()
    }
    return replace(conversations(), specs=own, tokens=tokens)


def test_without_environments_there_is_nothing_to_compare():
    assert environment_digests(None) == {}


@pytest.mark.parametrize(
    ("before", "after", "parts"),
    [
        ("n: int", "n: float", ["tools", "code or content"]),
        ("the number", "a number", ["tools", "code or content"]),
        ("n + 1", "n + 2", ["code or content"]),
    ],
)
def test_a_changed_tool_is_told_from_changed_code(tmp_path, before, after, parts):
    file = tmp_path / "mine.py"
    text = 'def next(n: int) -> int:\n    """Count on.\n\n    Args:\n        n: the number\n    """\n    return n + 1\n'
    file.write_text(text)
    (old,) = environment_digests(held_by(f"{file}:next")).values()
    file.write_text(text.replace(before, after))
    (new,) = environment_digests(held_by(f"{file}:next")).values()
    assert [part for part in old if old[part] != new[part]] == parts


def test_a_date_that_is_held_is_part_of_the_identity_and_said():
    with_clock, without = held_by("calculator", family="llama3.2"), held_by("calculator")
    assert environment_digests(with_clock)["calculator"]["date"] == "2024-07-26"
    assert "date" not in environment_digests(without)["calculator"]
    assert "the chat template's date is held at 2024-07-26" in with_clock.describe()[0]


def test_tools_and_how_they_are_shown_are_said_at_the_start():
    (said,) = held_by("calculator", "python").describe()
    assert said.startswith("environment 'tools': tools: calculator, python; python: Python 3.")
    assert "sandbox none, 5 s of processor time and 512 MiB" in said
    assert "; calls are read as hermes; tools are shown by the chat template" in said
    assert conversations(counting()).describe() == []


def test_what_a_template_does_to_earlier_turns_is_said():
    (said,) = held_by("calculator", family="qwen3-without-thinking").describe()
    assert "earlier turns may not stay as they were sampled, obligation 6 (equality): the chat template" in said
    assert said.endswith(": it is rendered anew where that matters (--history)")
