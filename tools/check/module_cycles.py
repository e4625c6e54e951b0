"""Finds circular dependencies between the top-level modules of a crate, and the types that it makes public.

A module depends on another one if its code, tests left out, names it: `use crate::other::..`, `super::other::..`, or an
item of it that the crate root re-exports. Comments and strings do not count.
"""

import pathlib
import re

TOKEN = re.compile(
    r"//[^\n]*"
    r"|/\*.*?\*/"
    r'|b?r(#*)".*?"\1'
    r'|b?"(?:\\.|[^"\\])*"'
    r"|b?'(?:\\.[^']*|[^'\\])'",
    re.DOTALL,
)
TEST_MODULE = re.compile(r"#\[cfg\((?:test|any\(test\b[^\]]*)\)\](?:\s*#\[[^\]]*\])*\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*([;{])")
PATH = re.compile(r"\b(crate|super(?:::super)*)::(\{|\w+)")
MODULE = re.compile(r"\bmod\s+\w+\s*\{|[{}]")
TYPE = re.compile(r"\bpub (?:struct|enum|trait|type|union) ([A-Z]\w*)")
EXPORT = re.compile(r"\bpub use (?:crate::|self::)?(\w+)::([^;]*);")
IMPORT = re.compile(r"\buse\s+(?:crate::|self::)?([a-z]\w*)::([^;]*);")


def code(text):
    """The text without comments and strings."""
    return TOKEN.sub(lambda match: " " if match.group().startswith("/") else '""', text)


def block_end(text, start):
    """The position behind the block whose `{` is at `start`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.end()
    return len(text)


def without_tests(text):
    """The code without inline test modules, and the names of test modules that are files."""
    files = []
    while match := TEST_MODULE.search(text):
        end = match.end()
        if match.group(2) == "{":
            end = block_end(text, end - 1)
        else:
            files.append(match.group(1))
        text = text[: match.start()] + text[end:]
    return text, files


def tree_heads(text, start):
    """The first names of a use tree whose `{` is at `start`: of `{a::b, c::{d, e}}` a and c."""
    inside = text[start + 1 : block_end(text, start) - 1]
    while "{" in inside:
        at = inside.index("{")
        inside = inside[:at] + inside[block_end(inside, at) :]
    return [found.group() for part in inside.split(",") if (found := re.search(r"\w+", part))]


def outer_names(text, depth):
    """The names that code in a file at a depth below the root looks up in the root."""
    nesting, position = [], 0  # True for each open block that is an inline module
    for match in PATH.finditer(text):
        for brace in MODULE.finditer(text, position, match.start()):
            if brace.group() == "}":
                nesting = nesting[:-1]
            else:
                nesting.append(brace.group() != "{")
        position = match.start()
        up = match.group(1).count("super")
        if match.group(1) == "crate" or up == depth + sum(nesting):
            yield from tree_heads(text, match.end() - 1) if match.group(2) == "{" else [match.group(2)]


def module_files(source):
    """The files below `source` that are neither tests nor generated: (module path, code)."""
    texts, tests = {}, set()
    for file in sorted(source.rglob("*.rs")):
        relative = file.relative_to(source)
        if "generated" in relative.parts:
            continue
        parts = list(relative.with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        text, names = without_tests(code(file.read_text(encoding="utf-8")))
        texts[tuple(parts)] = texts.get(tuple(parts), "") + text
        tests.update((*parts, name) for name in names)
    is_test = lambda path: any(path[:length] in tests for length in range(1, len(path) + 1)) or path[-1:] == ("tests",)
    return {path: text for path, text in texts.items() if not is_test(path)}


def dependencies(source):
    """The top-level modules below a `src` directory, and those that each depends on."""
    files = module_files(pathlib.Path(source))
    modules = {path[0] for path in files if path}
    exported = {}
    for match in IMPORT.finditer(files.get((), "")):
        module, names = match.groups()
        if module in modules:
            exported.update((name, module) for name in re.findall(r"\w+", names))
    graph = {module: set() for module in modules}
    for path, text in files.items():
        for name in outer_names(text, len(path)) if path else ():
            target = name if name in modules else exported.get(name)
            if target and target != path[0]:
                graph[path[0]].add(target)
    return graph


def cyclic_edges(graph):
    """The dependencies that lie on a cycle."""
    def reachable(start):
        seen, queue = set(), [start]
        while queue:
            for module in graph[queue.pop()] - seen:
                seen.add(module)
                queue.append(module)
        return seen

    reach = {module: reachable(module) for module in graph}
    return {(module, target) for module in graph for target in graph[module] if module in reach[target]}


def public_types(source):
    """The types below a `src` directory that are defined there and reached from the crate root."""
    files = module_files(pathlib.Path(source))
    root = files.get((), "")
    of_module = {}
    for path, text in files.items():
        of_module.setdefault(path[0] if path else "", set()).update(TYPE.findall(text))
    found = set(TYPE.findall(root))
    for module, names in EXPORT.findall(root):
        found |= of_module.get(module, set()) & set(re.findall(r"\w+", names))
    for module in re.findall(r"\bpub mod (\w+)", root):
        found |= of_module.get(module, set())
    return found
