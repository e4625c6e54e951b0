#!/usr/bin/env python3
"""Writes docs/python.md, the reference of the Python package, from its docstrings.

Run it with the interpreter that has the package installed:

    .venv/bin/python tools/check/python_reference.py           writes the reference
    .venv/bin/python tools/check/python_reference.py --check   exits with 1 if it is stale

All public names are in it, also those that are added later: exceptions among the exceptions,
and classes that no group names among the transforms. Neither torch nor other libraries are needed.
"""

from __future__ import annotations

import importlib
import inspect
import pathlib
import re
import sys

REFERENCE = pathlib.Path(__file__).resolve().parents[2] / "docs/python.md"
ADAPTERS = ("torch", "jax", "tf", "ray", "hf", "metrics", "checkpoint")
# Public, and not in `__all__`, as they have the names of builtins.
SHADOWS = ("TimeoutError", "open")
DATASETS = ("open", "Dataset", "Record", "RandomAccessDataset")
WRITING = ("Writer", "convert", "WriteSummary", "pack", "convert_files", "verify", "inspect", "index", "export", "Summary")
LOADERS = (
    "Loader",
    "Mix",
    "Batch",
    "Ragged",
    "Tensors",
    "Text",
    "Boxes",
    "Keypoints",
    "Json",
    "EpochDigest",
    "Mapped",
    "SampleInfo",
    "TensorBatch",
)

HEAD = """\
# Python reference

For people who look up a class or function: what `help()` says. Written by
`tools/check/python_reference.py` from the docstrings: change them, not this. N is the number of
samples of a batch; images are (N, H, W, 3) or (N, 3, H, W), labels (N,).
"""


def written(thing: object) -> object:
    """A function or constructor with its `**options`, which docstrings explain by a reference: `help()` has them all."""
    function = thing.__init__ if isinstance(thing, type) else thing  # type: ignore[misc]
    return getattr(function, "__wrapped__", thing)


def signature(thing: object) -> str:
    """The parameters as they are called; types are in the docstring."""
    try:
        found = inspect.signature(written(thing))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        # A default of a native function that Python cannot read.
        return getattr(thing, "__text_signature__", None) or "(...)"
    empty = inspect.Parameter.empty
    parameters = [p.replace(annotation=empty) for p in found.parameters.values()]
    # A slash says that names may change: of no use to a reader of self.
    if parameters and parameters[0].name in ("self", "$self"):
        parameters = parameters[1:]
    return str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def marked(text: str) -> str:
    """Markdown of a line of a docstring."""
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    return text.replace("*_", "\\*_") if "`" not in text else text


def sections(doc: str) -> list[tuple[str, list[str]]]:
    """The parts of a numpy-style docstring; the first has no title."""
    found: list[tuple[str, list[str]]] = [("", [])]
    lines = doc.splitlines()
    skip = False
    for number, line in enumerate(lines):
        if skip:
            skip = False
        elif number + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[number + 1].strip()) and line.strip():
            found.append((line.strip(), []))
            skip = True
        else:
            found[-1][1].append(line)
    return found


def items(lines: list[str]) -> list[str]:
    """`name : type` with its text below, as a list."""
    made: list[str] = []
    for line in lines:
        if not line.strip():
            continue
        if line.startswith(" "):
            made[-1] += " " + marked(line.strip())
        else:
            name, _, kind = line.partition(" : ")
            made.append(f"- **`{name.strip()}`**" + (f" ({marked(kind.strip())})" if kind else "") + ":")
    return [item.removesuffix(":") if item.endswith(":") else item for item in made]


def documented(doc: str | None) -> list[str]:
    """A docstring as Markdown."""
    made: list[str] = []
    for title, lines in sections(doc or ""):
        if title:
            made += [f"*{title}*", ""]
        if title in ("Parameters", "Returns", "Raises", "Attributes"):
            made += [*items(lines), ""]
        elif title == "Examples":
            code = [re.sub(r"\s*# doctest:.*", "", line[4:]) for line in lines if line[:3] in (">>>", "...")]
            made += ["```python", *code, "```", ""]
        else:
            made += [*code_blocks(lines), ""]
    return made


def code_blocks(lines: list[str]) -> list[str]:
    """Text as it is; what is indented by four is code in Markdown as well."""
    return [line if line.startswith("    ") else marked(line) for line in "\n".join(lines).strip("\n").splitlines()]


def class_of(thing: type, name: str, level: int) -> list[str]:
    """A class, its properties as a list, and its methods."""
    made = [f"{'#' * level} `{name}`", ""]
    doc = inspect.getdoc(thing)
    if any(title == "Parameters" for title, _ in sections(doc or "")):
        # Others are made by the package, not by its users.
        made += ["```python", f"{name}{signature(thing)}", "```", ""]
    made += documented(doc)
    own = sorted(key for key in vars(thing) if not key.startswith("_"))
    properties = [key for key in own if inspect.isdatadescriptor(inspect.getattr_static(thing, key))]
    if properties:
        made += ["*Properties*", ""]
        for key in properties:
            text = " ".join((inspect.getdoc(getattr(thing, key)) or "").split("\n\nRaises")[0].split())
            made.append(f"- **`{key}`**: {marked(text)}")
        made.append("")
    for key in own:
        method = getattr(thing, key)
        if callable(method) and key not in properties:
            made += [f"**`{key}{signature(method)}`**", "", *documented(inspect.getdoc(method))]
    if inherited := inherits(thing):
        made += [f"As in `forebay.Loader`: {', '.join(f'`{key}`' for key in inherited)}.", ""]
    return made


def inherits(thing: type) -> list[str]:
    """Public members of a base of the package, which `forebay.Loader` has as well."""
    found = {
        key
        for base in thing.__mro__[1:]
        if base.__module__.startswith("forebay._front")
        for key in vars(base)
        if not key.startswith("_")
    }
    return sorted(found - set(vars(thing)))


def reference() -> str:
    """The whole text."""
    import forebay

    names = sorted({*SHADOWS, *(name for name in forebay.__all__ if not name.startswith("__"))})
    errors = [n for n in names if isinstance(getattr(forebay, n), type) and issubclass(getattr(forebay, n), forebay.Error)]
    rest = [n for n in names if n not in (*DATASETS, *WRITING, *LOADERS, *errors)]
    made = [HEAD]

    def add(title: str, group: list[str]) -> None:
        made.append(f"\n## {title}\n")
        for name in group:
            thing = getattr(forebay, name)
            if isinstance(thing, type):
                made.extend(class_of(thing, f"forebay.{name}", 3))
            else:
                made.extend([f"### `forebay.{name}`", "", "```python", f"forebay.{name}{signature(thing)}", "```", ""])
                made.extend(documented(inspect.getdoc(written(thing))))

    add("Datasets", [name for name in DATASETS if name in names])
    add("Writing", [name for name in WRITING if name in names])
    add("Loaders", [name for name in LOADERS if name in names])
    add("Transforms", rest)
    for adapter in ADAPTERS:
        try:
            module = importlib.import_module(f"forebay.{adapter}")
        except ModuleNotFoundError:
            continue
        made += [f"\n## `forebay.{adapter}`\n", *documented(inspect.getdoc(module))]
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, type):
                made += class_of(thing, f"forebay.{adapter}.{name}", 3)
            elif callable(thing):
                made += [f"### `forebay.{adapter}.{name}`", "", "```python"]
                made += [f"forebay.{adapter}.{name}{signature(thing)}", "```", "", *documented(inspect.getdoc(written(thing)))]
            else:
                made += [f"**`forebay.{adapter}.{name}`** = `{thing!r}`", ""]
    made.append("\n## Exceptions\n")
    for name in ["Error", *(error for error in errors if error != "Error")]:
        kind = getattr(forebay, name)
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        made += [f"### `forebay.{name}`", "", f"Derives from {bases}.", "", *documented(inspect.getdoc(kind))]
    text = "\n".join(made)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def main() -> int:
    made = reference()
    if REFERENCE.exists() and REFERENCE.read_text() == made:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{REFERENCE} says something else than the docstrings: run {sys.argv[0]}")
        return 1
    REFERENCE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
