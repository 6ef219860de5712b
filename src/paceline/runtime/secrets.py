"""Hides secrets in text that is recorded or printed."""

import os
import re

LEAST_LENGTH = 8
"""Characters of the shortest value that counts as a secret: a shorter one, such as `false`, is part of other words."""
_NAMED = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_ADDRESS = re.compile(r"(?<=://)(?:[^\s'\"<>]|['\"<>](?=\w))+")
"""Rest of an address after its scheme, up to a space or a closing quote; a password may contain `/` and `@`."""
_NAME = (
    r"(?:authorization|api[-_]?key|cookie|(?:access|auth|id|private|refresh|security|session)[-_]token"
    r"|x-(?:[a-z]{1,20}-){0,3}(?:key|secret|token))"
)
_QUOTED = re.compile(
    rf"({_NAME}(?:\\?['\"])?\s*[:=,]\s*b?(\\?['\"]))(?:(?!\2).)+|((['\"])[a-z-]{{0,40}}{_NAME}\s*:)(?:(?!\4).)+",
    re.IGNORECASE,
)
"""A name and a value in quotes, or both in the same ones, as in a dictionary and on a command line."""
_HEADER = re.compile(rf"({_NAME}(?:\\?['\"])?\s*:\s*)(?!b?\\?['\"]|[(\s])[^\r\n]+", re.IGNORECASE)
_ASSIGNED = re.compile(rf"({_NAME}\s*[=,]\s*)(?!b?\\?['\"]|[(\s])[^\s'\"\\,;)}}\]]+", re.IGNORECASE)
_SCHEME = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)


def hidden(text: str) -> str:
    """Return a text with its secrets replaced: values of this process's environment variables whose names have KEY,
    TOKEN, SECRET, PASSWORD or CREDENTIAL in them, user, query and fragment of addresses, and values of headers that
    authorise, to the end of their line or quotes.

    >>> hidden("403 from https://me:pw@judge.org/ask?api_key=1234#top, Authorization: Bearer abcdef")
    '403 from https://(hidden)@judge.org/ask?(hidden), Authorization: (hidden)'
    """
    for name, value in _values():
        text = text.replace(value, f"({name})")
    text = _QUOTED.sub(lambda match: f"{match[1] or f'{match[3]} '}(hidden)", _ADDRESS.sub(_host_and_path, text))
    return _SCHEME.sub(r"\1 (hidden)", _ASSIGNED.sub(r"\1(hidden)", _HEADER.sub(r"\1(hidden)", text)))


def _host_and_path(address: re.Match[str]) -> str:
    """Return host and path of an address, as far as they can be told from what may be secret."""
    text = address[0].rstrip(".,;:")
    user, at, rest = text.rpartition("@")
    if "?" in user or "#" in user:  # of a query or a password: where the host begins, nobody can say
        at, rest = "", "(hidden)"
    else:
        rest = re.sub(r"([?#]).+", r"\1(hidden)", rest)
    return f"{'(hidden)@' * bool(at)}{rest}{address[0][len(text) :]}"


def _values() -> list[tuple[str, str]]:
    """Return names and values of variables that hold secrets, the longest value first: one may be part of another.

    Each line of a value counts, as of a private key, for what is printed may be cut into lines.
    """
    by_value = {
        line.strip(): name
        for name, value in os.environ.items()
        if _NAMED.search(name)
        for line in value.splitlines()
        if len(line.strip()) >= LEAST_LENGTH
    }
    return [(by_value[value], value) for value in sorted(by_value, key=len, reverse=True)]
