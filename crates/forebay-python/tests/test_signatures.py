"""Notebooks and editors show the arguments of what the package has."""

from __future__ import annotations

import doctest
import inspect
import operator
import pydoc
import re

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


MOST_USED = [
    "Loader", "torch.Loader", "jax.Loader", "tf.Loader", "open", "Dataset", "Writer", "convert", "TrainTransform", "Mapped",
]  # fmt: skip


@pytest.mark.parametrize("name", MOST_USED)
def test_help_shows_defaults_meanings_and_an_example(name: str) -> None:
    thing = operator.attrgetter(name)(forebay)
    lines = [line.lstrip(" |") for line in pydoc.plain(pydoc.render_doc(thing)).splitlines()]
    shown: dict[str, tuple[str, str]] = {}
    for line, meaning in zip(lines, lines[1:], strict=False):
        if found := re.fullmatch(r"\**(\w+(?:, \w+)*) : (.+)", line):
            for parameter in found[1].split(", "):
                shown.setdefault(parameter, (found[2], meaning))
    for parameter, given in inspect.signature(thing).parameters.items():
        kind, meaning = shown[parameter]
        assert len(meaning.split()) > 1, parameter
        default = kind.partition(", default ")[2]
        if given.default is given.empty:
            assert not default and not kind.endswith("optional"), parameter
        elif given.default is None:
            assert default == "None" or kind.endswith("optional"), parameter
        else:
            assert eval(default) == given.default, parameter
    if isinstance(thing, type):
        methods = [method for key, method in vars(thing).items() if not key.startswith("_") and callable(method)]
        parameters = [p for method in methods for p in inspect.signature(method).parameters.values()]
        for parameter in {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - {"self"}:
            assert parameter in shown, parameter
    (examples,) = doctest.DocTestFinder(recurse=False).find(thing, name, module=False, globs={"forebay": forebay})
    assert examples.examples and doctest.DocTestRunner().run(examples).failed == 0
