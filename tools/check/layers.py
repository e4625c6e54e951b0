#!/usr/bin/env python3
"""Checks that the crates keep to their layers, and that their dependencies are
the ones a user may expect: no crate depends upward, the shard reader pulls in no
runtime and no object store (and without default features no C compiler), and every licence is permissive.
No crate parses JSON without a bound of its depth.
Within a crate, neither top-level modules nor files depend on each other in a circle. No two crates give
different public types the same name. The Python package of the tests links what `cargo test` has compiled.

Reads `cargo metadata` and `cargo tree`; prints each violation and exits with 1 if there is one.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import file_cycles
from module_cycles import cyclic_edges, dependencies, public_types

# From the bottom up. A crate may depend on crates of lower layers only.
LAYERS = [
    ["crc-fast"],  # in the place of a package
    ["forebay-shard", "forebay-batch", "forebay-jpeg"],
    ["forebay-store", "forebay-image", "forebay-wire", "forebay-options"],
    ["forebay-cache", "forebay-staging"],
    ["forebay-formats", "forebay-synthetic"],
    ["forebay-pack", "forebay-loader", "forebay-client"],
    ["forebay-server"],
    ["forebay-bench", "forebay-monitor"],
    ["forebay-cli"],
    ["forebay-python", "forebay-lab"],
    ["forebay-rigs"],  # servers for tests; only ever a dev-dependency
    [f"forebay-{crate}-fuzz" for crate in ("cache", "formats", "image", "jpeg", "pack", "shard", "staging", "store", "wire")],  # fuzz targets
]

# What a crate must never pull in, however deep.
FORBIDDEN = {
    "forebay-shard": ["tokio", "object_store", "prost", "rustls"],
    "forebay-synthetic": ["tokio", "object_store"],
    "forebay-client": ["object_store", "forebay-image", "forebay-jpeg", "forebay-loader"],
    "forebay-jpeg": ["libjpeg-turbo-rs", "rayon", "serde"],
    "forebay-batch": ["rustls", "prost", "tokio"],
    "forebay-loader": ["forebay-server", "forebay-client", "forebay-wire", "prost", "rustls", "tokio"],
    "forebay-server": ["forebay-client", "forebay-cli"],
}

# What a crate must not pull in with its default features off, build scripts included: `cc` is the crate
# that runs a C compiler.
FORBIDDEN_WITHOUT_FEATURES = {
    "forebay-shard": ["cc", "prost", "rustls", "tokio"],
}

# Names that several crates may use for a public type of their own.
SHARED_NAMES = {"Error", "Result"}

# Files that parse JSON with `serde_json` itself: the bounded parser, and what the crate itself contains.
JSON_ITSELF = {"forebay-shard/src/json.rs", "forebay-lab/src/published.rs"}

PERMISSIVE = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "IJG", "ISC", "MIT",
    "MIT-0", "NCSA", "Unicode-3.0", "Unlicense", "Zlib", "Apache-2.0 WITH LLVM-exception",
    "CDLA-Permissive-2.0",  # of root certificates, which are data
}


def permissive(expression):
    """Whether an SPDX expression can be satisfied with permissive licences."""
    if not expression:
        return False
    text = expression.replace("/", " OR ").replace("(", " ( ").replace(")", " ) ")
    text = re.sub(r"(\S+) WITH (\S+)", r"\1_WITH_\2", text)
    terms = []
    for word in text.split():
        if word in ("(", ")"):
            terms.append(word)
        elif word in ("AND", "OR"):
            terms.append(word.lower())
        else:
            terms.append(str(word.replace("_WITH_", " WITH ") in PERMISSIVE))
    return bool(eval(" ".join(terms), {"__builtins__": {}}))  # only True, False, and, or, ( )


def normal_closure(metadata, root):
    """Names of everything that `root` pulls in for a normal build, itself left out."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    names = {package["id"]: package["name"] for package in metadata["packages"]}
    start = next(ident for ident, name in names.items() if name == root)
    seen, queue = set(), [start]
    while queue:
        for dep in nodes[queue.pop()]["deps"]:
            if any(kind["kind"] is None for kind in dep["dep_kinds"]) and dep["pkg"] not in seen:
                seen.add(dep["pkg"])
                queue.append(dep["pkg"])
    return {names[ident] for ident in seen} - {root}


def tree(*options):
    """The lines of `cargo tree`: all packages that these options select, each once."""
    command = ["cargo", "tree", "--locked", "--prefix", "none", *options]
    # Unifying the features of the whole workspace, which saves builds, would answer for all crates at once.
    environment = {name: value for name, value in os.environ.items() if name != "CARGO_RESOLVER_FEATURE_UNIFICATION"}
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.splitlines()
    return {line.removesuffix(" (*)") for line in lines if line.strip()}


def featureless_closure(root):
    """Names of everything that building `root` without default features pulls in."""
    lines = tree("--package", root, "--no-default-features", "--edges", "normal,build", "--format", "{p}")
    return {line.split()[0] for line in lines} - {root}


def shared_build_violations(packaged, tested):
    """Each package that the Python package of the tests compiles again, as a sentence. Both are lines of name, version and features."""
    return [
        f"the Python package compiles {line.split('|')[0]} again: `cargo test` has it with other features than `test-build` asks for"
        for line in sorted(packaged - tested)
        if not line.startswith("forebay-python ")
    ]


def shared_build():
    """The packages of the Python package as tools/test builds it, and those of `cargo test`, with their features."""
    edges, form = ("--edges", "normal,build"), ("--format", "{p}|{f}")
    packaged = tree("--package", "forebay-python", "--features", "test-build", *edges, *form)
    return packaged, tree("--workspace", "--exclude", "*-fuzz", "--edges", "normal,build,dev", *form)


def featureless_violations():
    """Each forbidden package of a crate without default features, as a sentence."""
    return [
        f"{name} without default features pulls in {bad}"
        for name, banned in FORBIDDEN_WITHOUT_FEATURES.items()
        for bad in sorted(featureless_closure(name) & set(banned))
    ]


def violations(metadata):
    """Each way in which the workspace breaks its rules, as a sentence."""
    members = set(metadata["workspace_members"])
    level = {name: depth for depth, names in enumerate(LAYERS) for name in names}
    found = []
    for package in metadata["packages"]:
        name = package["name"]
        if package["id"] not in members:
            if not permissive(package.get("license")):
                found.append(f"{name} {package['version']}: licence {package.get('license')!r} is not permissive")
            continue
        if name not in level:
            found.append(f"{name} has no layer: add it to LAYERS")
            continue
        for dep in package["dependencies"]:
            if dep["kind"] is None and dep["name"] in level and level[dep["name"]] >= level[name]:
                found.append(f"{name} depends on {dep['name']}, which is not below it")
    for name, banned in FORBIDDEN.items():
        pulled = normal_closure(metadata, name)
        found.extend(f"{name} pulls in {bad}" for bad in banned if bad in pulled)
    return found


def module_violations(graphs):
    """Each dependency on a cycle of modules within a crate, as a sentence."""
    return [
        f"{crate}: the module {module} depends on {target}, which depends on {module}"
        for crate, graph in sorted(graphs.items())
        for module, target in sorted(cyclic_edges(graph))
    ]


def file_violations(crates):
    """Each set of files of a crate that depend on each other in a circle, as a sentence."""
    return [
        f"{crate}: the files {', '.join('::'.join(path) for path in group)} depend on each other in a circle"
        for crate, source in sorted(crates.items())
        for group in file_cycles.circles(file_cycles.dependencies(source))
    ]


def name_violations(types):
    """Each name that several crates give to different public types, as a sentence."""
    owners = {}
    for crate, names in sorted(types.items()):
        for name in names - SHARED_NAMES:
            owners.setdefault(name, []).append(crate)
    return [
        f"the public type {name} is defined by {' and by '.join(crates)}: a name has one meaning"
        for name, crates in sorted(owners.items())
        if len(crates) > 1
    ]


def json_violations(crates):
    """Each call that parses JSON of others with whatever depth it has, as a sentence. Tests may."""
    calls = re.compile(r"serde_json::(?:from_(?:slice|str|reader)|Deserializer)\b|^\s*//.*", re.MULTILINE)
    found = []
    for source in crates.values():
        for path in sorted(source.rglob("*.rs")):
            place = path.relative_to(source.parent.parent).as_posix()
            if place in JSON_ITSELF or path.name == "tests.rs" or "tests" in path.parts[:-1]:
                continue
            text = path.read_text().split("#[cfg(test)]\nmod tests")[0]
            if any(call.startswith("serde_json") for call in calls.findall(text)):
                found.append(f"{place} calls a parser of serde_json: use forebay_shard::json, which bounds the depth")
    return found


def sources(metadata):
    """The `src` directory of each crate of the workspace."""
    members = set(metadata["workspace_members"])
    packages = (package for package in metadata["packages"] if package["id"] in members)
    return {package["name"]: pathlib.Path(package["manifest_path"]).parent / "src" for package in packages}


def main():
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    crates = sources(metadata)
    found = violations(metadata) + featureless_violations()
    found += json_violations(crates)
    found += shared_build_violations(*shared_build())
    found += module_violations({name: dependencies(source) for name, source in crates.items()})
    found += file_violations(crates)
    # forebay-rigs is for tests only.
    found += name_violations({name: public_types(source) for name, source in crates.items() if name != "forebay-rigs"})
    for sentence in found:
        print(f"error: {sentence}", file=sys.stderr)
    if not found:
        print(f"layers: {len(metadata['workspace_members'])} crates keep to their layers, no modules and files form a circle, and public types have names of their own")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
