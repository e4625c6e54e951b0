#!/usr/bin/env python3
"""Runs the tests of the workspace as `cargo test` does, but two test programs at a time.

    run_tests.py CARGO_TEST_ARG...      such as --workspace --locked

`cargo test` runs one program after another, and waits for the longest test of each while cores are idle. The output of each
program is printed when it ends. Documentation tests run last. The exit status is 1 if anything failed.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

AT_ONCE = 2


def programs(arguments):
    """Builds the tests; returns the path of each program and the folder of its package, the largest first."""
    command = ["cargo", "test", *arguments, "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit(1)
    found = []
    for line in built.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message["profile"]["test"]:
            found.append((pathlib.Path(message["executable"]), pathlib.Path(message["manifest_path"]).parent))
    return sorted(found, key=lambda each: each[0].stat().st_size, reverse=True)


def run(program, folder):
    """Returns whether all tests of a program passed, and its output."""
    # As cargo sets it: the shared libraries of the build.
    libraries = f"{program.parent}:{program.parent.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment = dict(os.environ, CARGO_MANIFEST_DIR=str(folder), LD_LIBRARY_PATH=libraries.rstrip(":"))
    ended = subprocess.run(
        [program], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )
    return ended.returncode == 0, ended.stdout


def main():
    arguments = sys.argv[1:]
    found = programs(arguments)
    failed = []
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        running = {pool.submit(run, *each): each for each in found}
        for ended in concurrent.futures.as_completed(running):
            program, folder = running[ended]
            passed, output = ended.result()
            print(f"     Running {program.name} of {folder.name}\n{output}", flush=True)
            if not passed:
                failed.append(f"{folder.name}: {program.name}")
    if subprocess.run(["cargo", "test", *arguments, "--no-fail-fast", "--doc"]).returncode:
        failed.append("documentation tests")
    if failed:
        sys.exit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
