"""Checks of options that are not the native loader's: errors name the option."""

from __future__ import annotations

import importlib
import operator
from typing import Any

from forebay._errors import OptionError


def count(name: str, value: Any, least: int, why: str) -> int:
    """A whole number of at least `least`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"option {name}: expected a whole number, found a value of type {type(value).__name__}")
    if number < least:
        raise OptionError(f"option {name} is {number}: expected {least} or more, {why}")
    return number


def function(name: str, value: Any) -> None:
    """A callable, or None."""
    if value is not None and not callable(value):
        raise OptionError(f"option {name} is {value!r}: expected a function")


def library(name: str, extra: str) -> Any:
    """A library that is not installed with the package alone."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        message = f"{name} is not installed: pip install 'forebay[{extra}]'"
        raise ModuleNotFoundError(message, name=name) from error
