"""Finds circles between the files of a crate.

A file depends on another one if its code, tests left out, names an item that the other file defines: by a path
(`crate::other::Item`, `super::Item`, `child::item`) or by a `use`. A name that a module only passes on (`pub use`) counts
for the file that defines it. What a module takes from the files of its own folder does not count: it assembles them, and
they may use what it defines. Methods are found by their type, not by their name, and do not count either.
"""

import pathlib
import re

from module_cycles import block_end, code, module_files

ITEM = re.compile(
    r"\b(?:fn|struct|enum|trait|type|union|const|static)\s+(?:mut\s+)?(r#)?([A-Za-z_]\w*)|\bmacro_rules!\s*(\w+)"
)
USE = re.compile(r"(\bpub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);")
INLINE_PATH = re.compile(r"(?<![\w:])((?:crate|self|super|[a-z]\w*)(?:::\w+)+)")
MODULE_BLOCK = re.compile(r"\b(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*\{")
IMPL = re.compile(r"\b(impl|trait)\b[^;{]*\{")


def use_tree(text, prefix=()):
    """The (path, name) pairs of a use tree; the name of a glob is `*`."""
    text = text.strip()
    if text.startswith("{"):
        depth, start, parts = 0, 1, []
        for at, char in enumerate(text):
            depth += {"{": 1, "}": -1}.get(char, 0)
            if (char == "," and depth == 1) or (char == "}" and depth == 0):
                parts.append(text[start:at])
                start = at + 1
        for part in parts:
            if part.strip():
                yield from use_tree(part, prefix)
        return
    head, separator, rest = text.partition("::")
    if separator and not head.strip().startswith("{"):
        yield from use_tree(rest, (*prefix, head.strip()))
        return
    name, _, alias = (part.strip() for part in text.partition(" as "))
    path = prefix if name == "self" else (*prefix, name)
    yield path, alias or (prefix[-1] if name == "self" else name)


def without_bodies(text):
    """The code without the bodies of `impl` and `trait`: what is defined there has no path of its own."""
    out, position = [], 0
    for match in IMPL.finditer(text):
        if match.start() < position:
            continue
        out.append(text[position : match.end() - 1])
        position = block_end(text, match.end() - 1)
    return "".join(out) + text[position:]


class File:
    """The names that a file defines, passes on and uses."""

    def __init__(self, text):
        # The items of modules within the file are looked up by their last name only.
        self.inline = set(MODULE_BLOCK.findall(text))
        self.items = {found[1] or found[2] for found in ITEM.findall(without_bodies(text))}
        self.imports, self.globs, self.used = {}, [], []
        body = USE.sub(" ", text)
        words = set(re.findall(r"\w+", body))
        for public, tree in USE.findall(text):
            for path, name in use_tree(re.sub(r"\s+", " ", tree)):
                if name == "*":
                    self.globs.append(path)
                else:
                    self.imports[name] = path
                if not public or name in words:
                    self.used.append(path)
        self.used += [tuple(path.split("::")) for path in INLINE_PATH.findall(body)]


def dependencies(source):
    """The files below a `src` directory, as module paths, and those that each depends on."""
    files = {path: File(text) for path, text in module_files(pathlib.Path(source)).items()}

    def resolve(module, path, seen=()):
        """The file that defines what a path in `module` names, or None."""
        if (module, path) in seen:
            return None
        seen = (*seen, (module, path))
        here, first = module, True
        while path:
            head, path = path[0], path[1:]
            if head == "crate":
                here = ()
            elif head == "super":
                here = here[:-1]
            elif head == "self":
                pass
            elif (*here, head) in files:
                here = (*here, head)
            else:
                file = files.get(here)
                if file is None:
                    return None
                if head in file.items or head in file.inline or head == "*":
                    return here
                if head in file.imports:
                    return resolve(here, (*file.imports[head], *path), seen)
                for glob in file.globs:
                    target = resolve_module(here, glob)
                    if target is not None and target != here and (found := resolve(target, ("self", head, *path), seen)) is not None:
                        return found
                return None
            first = False
        return here if not first else None

    def resolve_module(module, path):
        here = module
        for head in path:
            if head == "crate":
                here = ()
            elif head == "super":
                here = here[:-1]
            elif head != "self":
                if (*here, head) not in files:
                    return None
                here = (*here, head)
        return here

    graph = {path: set() for path in files}
    for module, file in files.items():
        for path in file.used:
            target = resolve(module, path)
            if target is not None and target[: len(module)] != module:
                graph[module].add(target)
    return graph


def circles(graph):
    """The strongly connected sets of more than one file, sorted."""
    index, low, stack, on, found, counter = {}, {}, [], set(), [], [0]

    def visit(start):
        work = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = counter[0]
        counter[0] += 1
        stack.append(start)
        on.add(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = counter[0]
                    counter[0] += 1
                    stack.append(target)
                    on.add(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in on:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = []
                    while True:
                        member = stack.pop()
                        on.discard(member)
                        group.append(member)
                        if member == node:
                            break
                    if len(group) > 1:
                        found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)
