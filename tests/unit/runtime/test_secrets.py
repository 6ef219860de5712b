"""Secrets are hidden in text of others: values of variables, parts of addresses, headers; nothing else is touched."""

import pytest

from paceline.runtime.shown_text import hidden


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("backend refused key sk-live-4f9a: 401", "backend refused key (SHOP_API_KEY): 401"),
        ("-----BEGIN\nAAAABBBBCCCC\n", "-----BEGIN\n(Deploy_Secret)\n"),
        ("GET https://judge.org/ask?api_key=12#top", "GET https://judge.org/ask?(hidden)"),
        ("postgres://me:pw@db:5432/shop", "postgres://(hidden)@db:5432/shop"),
        ("{'Authorization': 'Bearer ab12'}", "{'Authorization': '(hidden)'}"),
        ("at https://me:pa/ss@host/x.", "at https://(hidden)@host/x."),
        ("postgres://u:p@ss@host", "postgres://(hidden)@host"),
        ("ftp://me:p'w@h and a@b", "ftp://(hidden)@h and a@b"),
        ("https://me:p?w@host", "https://(hidden)"),
        ("https://h/ask?mail=a@b&key=12, then", "https://(hidden), then"),
        ("https://x/#access_token=abc", "https://x/#(hidden)"),
        ("X-Auth-Token: ab cd\nnext", "X-Auth-Token: (hidden)\nnext"),
        ("PRIVATE-TOKEN: ab", "PRIVATE-TOKEN: (hidden)"),
        ("Set-Cookie: a=b; c=d", "Set-Cookie: (hidden)"),
        ("Authorization: Token abc def", "Authorization: (hidden)"),
        ('Authorization: Digest user="me", response="ab"', "Authorization: (hidden)"),
        ("'Authorization': Bearer ab cd", "'Authorization': (hidden)"),
        ('{"Authorization": "Token abc def", "n": 1}', '{"Authorization": "(hidden)", "n": 1}'),
        ('{\\"X-Api-Key\\": \\"a b\\", \\"n\\": 1}', '{\\"X-Api-Key\\": \\"(hidden)\\", \\"n\\": 1}'),
        ("[(b'Authorization', b'Bearer ab cd')]", "[(b'Authorization', b'(hidden)')]"),
        ("curl -H 'X-Auth-Token: ab cd' host", "curl -H 'X-Auth-Token: (hidden)' host"),
        ("f(api_key=sk-mine, n=1)", "f(api_key=(hidden), n=1)"),
        ("authorization: Basic bWU6cHc=", "authorization: (hidden)"),
        ("OpenAI(api_key='sk-mine')", "OpenAI(api_key='(hidden)')"),
        ("sent bearer abcdefgh1234", "sent bearer (hidden)"),
    ],
)
def test_a_secret_is_hidden(text, shown, monkeypatch):
    monkeypatch.setenv("SHOP_API_KEY", "sk-live-4f9a")
    monkeypatch.setenv("Deploy_Secret", "short\nAAAABBBBCCCC")
    assert hidden(text) == hidden(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        *("is it false?", "the bearer of news", "see https://judge.org/ask.", "me@host, 3 < 4?"),
        *('{"url":"https://x/","mail":"a@b"}', "clone https://a/b me@host", "<https://x/y>, me@host"),
    ],
)
def test_other_text_stays(text, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert hidden(text) == text


def test_the_longest_value_is_hidden_first(monkeypatch):
    monkeypatch.setenv("A_KEY", "abcdefgh")
    monkeypatch.setenv("B_KEY", "abcdefgh-ijkl")
    assert hidden("abcdefgh-ijkl abcdefgh") == "(B_KEY) (A_KEY)"


@pytest.mark.parametrize(
    "text", ["a", "x-", "'a-", "authorization='", "authorization ", "://", "://a@", "a?#", "\n", " "]
)
def test_a_long_text_takes_no_longer_than_its_length(text):
    assert len(hidden(text * (100_000 // len(text)))) > 0
