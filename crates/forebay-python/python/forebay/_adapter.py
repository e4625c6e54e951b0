"""Code shared by the adapters of the array libraries: creates a loader from a source and options."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Collection
from typing import Any, ParamSpec, TypeVar

from forebay._batch import TensorBatch
from forebay._errors import OptionError, UnknownOptionError
from forebay._forebay import Loader
from forebay._front import Source
from forebay._map import Mapped
from forebay._mix import Mix
from forebay._options import count

Shown = ParamSpec("Shown")
Result = TypeVar("Result")


# The docstring of a constructor, whose class documents all other parameters.
_CONSTRUCTOR = """Take the options of `forebay.Loader`, beside the parameters of the class.

Parameters
----------
**options
    Those.
"""


def with_options(
    shown: Callable[Shown, Result], *, of: Any = Loader, without: Collection[str] = (), **defaults: Any
) -> Callable[[Callable[..., Any]], Callable[Shown, Result]]:
    """Gives a function the options of `of` in the place of its `**options`: in its signature, its docstring and its errors.

    `without` are options that the function refuses, and `defaults` those that differ. Type checkers and editors read `shown`,
    which tools/check/stub_docs.py writes from these signatures.
    """
    found = inspect.signature(of).parameters
    options = [p.replace(default=defaults.get(p.name, p.default)) for p in found.values() if p.kind is p.KEYWORD_ONLY]
    entries = _documented(of)

    def decorate(function: Callable[..., Any]) -> Any:
        own = inspect.signature(function)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        taken = {*without, *(p.name for p in kept)}
        added = [p for p in options if p.name not in taken]
        signature = own.replace(parameters=[*kept, *added])
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def checked(*given: Any, **named: Any) -> Any:
            for option in named.keys() - taken - found.keys():
                # Imported for an error alone.
                from difflib import get_close_matches

                if near := get_close_matches(option.lower(), signature.parameters, 1, 0.85):
                    raise UnknownOptionError(f"{name}() got an unexpected keyword argument {option!r}: use {near[0]!r}")
            return function(*given, **named)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        texts = dict.fromkeys(
            re.sub("default (True|False)$", f"default {p.default}", entries.get(p.name, ""), count=1, flags=re.MULTILINE) for p in added
        )
        doc = inspect.cleandoc(function.__doc__ or _CONSTRUCTOR) + "\n"
        checked.__doc__ = re.sub(r"\*\*options\n(    .*\n)+", lambda _: "\n".join(texts) + "\n", doc)
        return checked

    return decorate


def _documented(thing: Any) -> dict[str, str]:
    """The entries of the docstrings of a class and of its constructor, by parameter; `python -OO` leaves none."""
    found: dict[str, str] = {}
    for doc in (thing.__doc__, thing.__init__.__doc__):
        section = re.search(r"Parameters\n-+\n(.*?)(\n\n|\Z)", inspect.cleandoc(doc or ""), re.DOTALL)
        for entry in re.split(r"\n(?=\S)", section[1].rstrip("\n")) if section else ():
            for name in entry.partition(" :")[0].split(", "):
                found.setdefault(name, entry)
    return found


def loader_of(
    source: str | os.PathLike[str] | Mix | Source, options: dict[str, Any], ahead: int, pad_last: bool = False, **functions: Any
) -> Source:
    """Creates the loader behind an adapter, with the functions of `Mapped` and their options, up to `ahead` batches ahead.

    `pad_last` is the default of that option.
    """
    ahead = count("prefetch", ahead, 1, "as batches are prepared before the trainer asks for them")
    loader: Source
    if isinstance(source, str | os.PathLike | Mix):
        loader = Loader(source, **{"pad_last": pad_last, **options})
    elif options:
        raise OptionError(
            f"{', '.join(options)}: a loader was given, which has its options already; "
            "give the dataset's path or address instead"
        )
    else:
        loader = source
    if all(value is None for value in functions.values()):
        return loader
    return Mapped(loader, ahead=ahead, **functions)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Applies `function` to all leaves of tuples, lists, dicts and batches, and keeps their structure."""
    if isinstance(tree, TensorBatch):
        return tree._with(function)
    if isinstance(tree, dict):
        return {key: tree_map(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, value) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(tree_map(function, value) for value in tree)
    return function(tree)
