"""Secrets are hidden in text of others: values of variables, parts of addresses, headers; nothing else is touched."""

import pytest

from paceline.runtime.secrets import hidden


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("backend refused key sk-live-4f9a: 401", "backend refused key (SHOP_API_KEY): 401"),
        ("-----BEGIN\nAAAABBBBCCCC\n", "-----BEGIN\n(Deploy_Secret)\n"),
        ("GET https://judge.org/ask?api_key=12#top", "GET https://judge.org/ask?(hidden)#top"),
        ("postgres://me:pw@db:5432/shop", "postgres://(hidden)@db:5432/shop"),
        ("{'Authorization': 'Bearer ab12'}", "{'Authorization': '(hidden)'}"),
        ("authorization: Basic bWU6cHc=", "authorization: (hidden)"),
        ("OpenAI(api_key='sk-mine')", "OpenAI(api_key='(hidden)')"),
        ("sent bearer abcdefgh1234", "sent bearer (hidden)"),
    ],
)
def test_a_secret_is_hidden(text, shown, monkeypatch):
    monkeypatch.setenv("SHOP_API_KEY", "sk-live-4f9a")
    monkeypatch.setenv("Deploy_Secret", "short\nAAAABBBBCCCC")
    assert hidden(text) == shown


@pytest.mark.parametrize(
    "text", ["is it false?", "the bearer of news", "see https://judge.org/ask.", "me@host, 3 < 4?"]
)
def test_other_text_stays(text, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert hidden(text) == text


def test_the_longest_value_is_hidden_first(monkeypatch):
    monkeypatch.setenv("A_KEY", "abcdefgh")
    monkeypatch.setenv("B_KEY", "abcdefgh-ijkl")
    assert hidden("abcdefgh-ijkl abcdefgh") == "(B_KEY) (A_KEY)"
