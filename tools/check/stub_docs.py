#!/usr/bin/env python3
"""Writes the docstrings of the built package into its type stubs, for editors, and the options of loaders.

The documentation of the extension module lives in its Rust source, and editors do
not look there. Functions that pass options on get their signatures when they are imported, and a
stub of its own has these. Run it with the interpreter that has the package installed:

    .venv/bin/python tools/check/stub_docs.py           writes the stubs
    .venv/bin/python tools/check/stub_docs.py --check   exits with 1 if they are stale
"""

import ast
import importlib
import inspect
import pathlib
import sys

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "crates/forebay-python/python/forebay"
STUB = PACKAGE / "_forebay.pyi"
SIGNATURES = PACKAGE / "_signatures.pyi"

# Names in SIGNATURES, with the module and the name that the signature is of.
SHOWN = {
    "torch_loader": ("torch", "Loader"),
    "jax_loader": ("jax", "Loader"),
    "tf_loader": ("tf", "Loader"),
    "tf_dataset": ("tf", "dataset"),
    "convert": ("_convert", "convert"),
}
SIGNATURES_HEAD = """\
# Written by tools/check/stub_docs.py from the schema of options: change that, not this.
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
import numpy.typing as npt
import tensorflow as tf
import torch

from forebay._convert import Key
from forebay._forebay import _BatchTransform, _NamedType, _Tensor, _Transform
from forebay._front import Source
from forebay._mix import Mix
from forebay._ops import Normalize
from forebay._writer import WriteSummary
"""


def documented(thing: object) -> str | None:
    """Its own docstring, not one that every object inherits."""
    doc = inspect.getdoc(thing)
    if isinstance(thing, type) and doc == inspect.getdoc(object):
        return None
    return doc


def literal(doc: str, indent: str) -> str:
    """The docstring as a literal at an indentation."""
    lines = doc.replace("\\", "\\\\").splitlines()
    lines = [lines[0], *((indent + line).rstrip() for line in lines[1:])]
    text = "\n".join(lines)
    return f'"""{text}\n{indent}"""' if len(lines) > 1 else f'"""{text}"""'


def function(name: str, first: str, signature: inspect.Signature, result: str, indent: str = "") -> str:
    """A function without a body, whose first parameter has no annotation in the signature."""
    lines = [f"def {name}(", *([f"    {first},"] if first else [])]
    star = False
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            lines.append("    *,")
            star = True
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}".replace("'", '"')
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    lines.append(f") -> {result}: ...")
    return f"\n{indent}".join(lines)


def signatures() -> str:
    """The stub of the adapters' signatures."""
    made = SIGNATURES_HEAD
    for name, (module, of) in SHOWN.items():
        thing = getattr(importlib.import_module(f"forebay.{module}"), of)
        is_class = isinstance(thing, type)
        signature = inspect.signature(thing)
        result = "None" if is_class else signature.return_annotation
        made += "\n" + function(name, "self: Any" if is_class else "", signature, result) + "\n"
    return made


def edits(tree: ast.Module, module: object) -> list[tuple[ast.stmt, str, bool]]:
    """Text for each statement: in its place, or before it."""
    found: list[tuple[ast.stmt, str, bool]] = []

    def visit(node: ast.FunctionDef | ast.ClassDef, thing: object) -> None:
        doc = documented(thing)
        indent = " " * (node.col_offset + 4)
        first = node.body[0]
        replaces = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if doc and not node.name.startswith("_"):
            found.append((first, literal(doc, indent), replaces))
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                if not isinstance(child, ast.FunctionDef):
                    continue
                if not child.name.startswith("_"):
                    visit(child, inspect.getattr_static(thing, child.name))
                elif child.name == "__new__" and "__signature__" in vars(thing):
                    shown = function("__new__", "cls", thing.__signature__, "Self", " " * child.col_offset)
                    found.append((child, shown, True))

    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and hasattr(module, node.name):
            visit(node, getattr(module, node.name))
    return found


def first_line(node: ast.stmt) -> int:
    """The line a statement begins on, its decorators included."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def rewritten(source: str, module: object) -> str:
    """The stub with the docstrings that the module has now."""
    lines = source.splitlines(keepends=True)
    found = edits(ast.parse(source), module)
    # From the end, so that lines still to be changed keep their numbers.
    for node, text, replaces in sorted(found, key=lambda e: first_line(e[0]), reverse=True):
        start, column = first_line(node) - 1, node.col_offset
        if not replaces:
            lines.insert(start, " " * column + text + "\n")
            continue
        before, after = lines[start][:column], lines[node.end_lineno - 1][node.end_col_offset :]
        if before.strip():  # `def name(self) -> None: ...`: onto lines of its own
            indent = " " * (len(before) - len(before.lstrip()) + 4)
            before = before.rstrip() + "\n" + indent
        lines[start : node.end_lineno] = [before + text + after]
    return "".join(lines)


def main() -> int:
    """Writes, or checks; returns the exit status."""
    import forebay._forebay

    stale = 0
    for path, made in ((STUB, rewritten(STUB.read_text(), forebay._forebay)), (SIGNATURES, signatures())):
        if path.exists() and path.read_text() == made:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{path} has other docstrings or options than the package: run {sys.argv[0]}")
            stale = 1
        else:
            path.write_text(made)
    return stale


if __name__ == "__main__":
    sys.exit(main())
