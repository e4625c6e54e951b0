#!/usr/bin/env python3
"""Writes the docstrings of the built package into its type stubs, for editors, and the options of loaders.

The documentation of the extension module lives in its Rust source, and editors do
not look there. Run it with the interpreter that has the package installed:

    .venv/bin/python tools/check/stub_docs.py           writes the stubs
    .venv/bin/python tools/check/stub_docs.py --check   exits with 1 if they are stale
"""

import ast
import inspect
import pathlib
import sys

STUB = pathlib.Path(__file__).resolve().parents[2] / "crates/forebay-python/python/forebay/_forebay.pyi"


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


def constructor(signature: inspect.Signature, indent: str) -> str:
    """The constructor of a class that knows its signature."""
    lines = ["def __new__(", "    cls,"]
    star = False
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            lines.append("    *,")
            star = True
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}".replace("'", '"')
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    lines.append(") -> Self: ...")
    return f"\n{indent}".join(lines)


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
                    found.append((child, constructor(thing.__signature__, " " * child.col_offset), True))

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

    source = STUB.read_text()
    made = rewritten(source, forebay._forebay)
    if made == source:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{STUB} has other docstrings than the package: run {sys.argv[0]}")
        return 1
    STUB.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
