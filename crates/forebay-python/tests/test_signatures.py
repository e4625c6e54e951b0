"""Notebooks and editors show the arguments of what the package has."""

from __future__ import annotations

import inspect

import pytest

import forebay

# Without exceptions: CPython has no signatures for its own either.
NAMES = [
    name
    for name in sorted({*forebay.__all__, "open"})
    if callable(item := getattr(forebay, name)) and not (isinstance(item, type) and issubclass(item, BaseException))
]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_callable_has_a_signature(name: str) -> None:
    inspect.signature(getattr(forebay, name))


def test_the_loader_shows_its_defaults() -> None:
    found = inspect.signature(forebay.Loader).parameters
    assert found["batch_size"].default == 32
    assert found["threads"].kind is inspect.Parameter.KEYWORD_ONLY
