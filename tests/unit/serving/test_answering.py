"""Pieces of an answer add up to its turn, and tell nothing that a later token changes."""

import json
from collections.abc import Sequence

import pytest

from paceline.engines import Sampled
from paceline.environments import ModelReply
from paceline.openai_api.requests import ApiRequest, Refusal, read_request
from paceline.serving.choices import Choice, TextReader
from tests.support.endpoint_client import tool
from tests.support.served import END, ScriptedEngine, served
from tests.support.tiny import tiny_tokenizer

LOOK = tool("look", key="string")
CALL = '<tool_call>{"name": "look", "arguments": {"key": "tea"}}</tool_call>'
MODEL = served(ScriptedEngine(""), length=200)


def chat(**fields) -> ApiRequest:
    body = {"messages": [{"role": "user", "content": "Hi."}], **fields}
    return read_request("chat", json.dumps(body).encode(), is_served=True)


def written(text: str, request: ApiRequest, *, plain: bool = False, ends: bool = True):
    """Pieces and turn of a text that comes a byte at a time."""
    tokens = None if plain else MODEL.tokens.with_tools(request.wanted.tools)
    stop = tuple(request.wanted.settings.get("stop", ()))
    choice = Choice(TextReader(MODEL.tokenizer, MODEL.end_tokens, request.wanted, tokens, stop=stop), 7, (1, 2, 3, 4))
    ids, pieces = tiny_tokenizer().encode(text, add_special_tokens=False) + ([END] if ends else []), []
    for place, token in enumerate(ids, start=1):
        reason = None if place < len(ids) else "stop" if ends else "length"
        pieces += choice.add(Sampled(request=0, sample=0, token_ids=(token,), logprobs=(-1.0,), finish_reason=reason))
        if choice.turn is not None:
            break
    assert isinstance(choice.turn, ModelReply)
    return pieces, choice.turn


def told(pieces: Sequence[dict], key: str = "content") -> str:
    return "".join(piece.get(key, "") for piece in pieces)


@pytest.mark.parametrize(
    "text",
    [
        *("Hello there.", "  naïve 😀 — ok \n", "", " ", "a < b <thin", "x\n\ny  z", "I <think>maybe</think> know."),
        *("\n😀", "a naïve 😀 <b> " * 9),
    ],
)
def test_pieces_add_up_to_the_content(text):
    pieces, turn = written(text, chat())
    assert told(pieces) == turn.content
    assert "\N{REPLACEMENT CHARACTER}" not in told(pieces)
    assert (turn.finish_reason, turn.num_read, turn.number) == ("stop", 4, 7)


def test_a_piece_comes_with_its_token():
    pieces, _ = written("abc", chat())
    assert [piece["content"] for piece in pieces] == ["a", "b", "c"]


def test_thinking_is_told_apart_and_before_the_content():
    pieces, turn = written("<think>\nfour?\n</think>\n\nIt is 4.", chat())
    assert (turn.content, turn.reasoning) == ("It is 4.", "four?")
    assert pieces[0] == {"role": "assistant", "reasoning_content": "four?"}
    assert told(pieces) == "It is 4."
    assert all("<" not in piece.get("content", "") for piece in pieces)


@pytest.mark.parametrize(("stop", "content"), [(["END"], "one"), (["wo", "END"], "one"), (["two"], "one")])
def test_a_stop_string_ends_the_text_before_it_and_no_part_of_it_is_told(stop, content):
    text = {"END": "oneENDtwo", "wo": "onewo", "two": "one two"}[stop[0]]
    pieces, turn = written(text, chat(stop=stop))
    assert (turn.content, told(pieces), turn.finish_reason) == (content, content, "stop")


def test_the_start_of_a_stop_string_that_does_not_come_is_told():
    pieces, turn = written("oneENtwo", chat(stop=["END"]))
    assert told(pieces) == turn.content == "oneENtwo"
    assert [piece["content"] for piece in pieces][3:5] == ["ENt", "w"]


def test_text_before_a_call_is_told_and_the_call_is_not():
    pieces, turn = written(f"So: {CALL}", chat(tools=[LOOK]))
    assert told(pieces) == turn.content == "So:"
    ((name, arguments),) = [(call.name, call.arguments) for call in turn.calls]
    assert (name, arguments) == ("look", {"key": "tea"})


def test_a_call_that_is_none_is_told_at_the_end():
    pieces, turn = written("So: <tool_call>{", chat(tools=[LOOK]))
    assert turn.malformed is not None
    assert told(pieces) == turn.content == "So: <tool_call>{"


def test_with_tool_choice_none_a_call_is_text():
    pieces, turn = written(CALL, chat(tools=[LOOK], tool_choice="none"))
    assert (told(pieces), turn.calls) == (CALL, ())


def test_plain_text_is_told_as_it_is():
    request = read_request("text", b'{"prompt": "1 + 2 ="}', is_served=True)
    pieces, turn = written("  3 <think>\n", request, plain=True, ends=False)
    assert told(pieces, "text") == turn.text == "  3 <think>\n"
    assert turn.finish_reason == "length"


def test_a_model_without_a_chat_template_continues_text_alone():
    model = served(ScriptedEngine("3"), chat_template=None)
    with pytest.raises(Refusal, match="it has no chat template; ask /v1/completions"):
        model.begin(chat())
    answer = model.begin(read_request("text", b'{"prompt": "1 + 2 ="}', is_served=True))
    assert answer.turns == []


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            {"messages": [{"role": "user", "content": "x" * 300}]},
            "the prompt must have from 1 to 199 tokens, and has 3",
        ),
        ({"temperature": -1}, "temperature must lie in [0, 100], got -1"),
        ({"top_p": 0}, "top_p must lie in (0, 1], got 0"),
        ({"top_k": 2.5}, "top_k must be a whole number from 1 on, or 0 or -1 for none, got 2.5"),
        ({"min_p": 1}, "min_p must lie in [0, 1), got 1"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"stop": [""]}, "stop must hold at most 16 texts of 1 to 1000 characters"),
        ({"frequency_penalty": 0.5}, "frequency_penalty must be 0, as there is none, got 0.5"),
        ({"reasoning_effort": "low"}, "reasoning_effort is not known here; leave it out"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls must be true"),
        ({"top_logprobs": 2}, "top_logprobs is not taken, got 2: only those of the sampled tokens are known"),
        ({"logprobs": 3}, "logprobs is not taken, got 3"),
        ({"logit_bias": {"5": 1}}, "logit_bias is not taken"),
        ({"tool_choice": "required"}, 'tool_choice must be "auto" or "none"'),
    ],
)
def test_what_cannot_be_kept_to_is_refused(body, sentence):
    with pytest.raises(Refusal) as refused:
        MODEL.begin(chat(**body))
    assert str(refused.value).startswith(sentence)
