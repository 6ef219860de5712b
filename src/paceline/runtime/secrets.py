"""Secrets in text that others wrote: hidden wherever it is recorded or printed."""

import os
import re

LEAST_LENGTH = 8
"""Characters of the shortest value that counts as a secret: a shorter one, such as `false`, is part of other words."""
_NAMED = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^\s/@'\"<>]+@")
_QUERY = re.compile(r"([a-z][a-z0-9+.-]*://[^\s?#'\"<>]*\?)[^\s#'\"<>]+", re.IGNORECASE)
_HEADER = re.compile(
    r"((?:proxy-)?authorization|(?:x-)?api[-_]?key)((?:\\?['\"])?\s*[:=,]\s*(?:b?\\?['\"])?)"
    r"(?:(?:bearer|basic|token|digest)\s+)?[^\s'\"\\,;)}\]]+",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)


def hidden(text: str) -> str:
    """Return a text with its secrets replaced: values of this process's environment variables whose names have KEY,
    TOKEN, SECRET, PASSWORD or CREDENTIAL in them, user and query of addresses, and values of headers that authorise.

    >>> hidden("403 from https://me:pw@judge.org/ask?api_key=1234#top, Authorization: Bearer abcdef")
    '403 from https://(hidden)@judge.org/ask?(hidden)#top, Authorization: (hidden)'
    """
    for name, value in _values():
        text = text.replace(value, f"({name})")
    text = _QUERY.sub(r"\1(hidden)", _USER.sub("(hidden)@", text))
    return _SCHEME.sub(r"\1 (hidden)", _HEADER.sub(r"\1\2(hidden)", text))


def _values() -> list[tuple[str, str]]:
    """Return names and values of variables that hold secrets, the longest value first: one may be part of another.

    Each line of a value counts, as of a private key, for what is printed may be cut into lines.
    """
    found = {
        line.strip(): name
        for name, value in os.environ.items()
        if _NAMED.search(name)
        for line in value.splitlines()
        if len(line.strip()) >= LEAST_LENGTH
    }
    return [(found[value], value) for value in sorted(found, key=len, reverse=True)]
