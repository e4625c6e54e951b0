#!/usr/bin/env python3
"""Resident memory of a training process after each epoch: it has to stay flat.

    .venv/bin/python tools/peers/measure_memory.py DATASET [--epochs 10] [--batch-size 64] [--only NAME,...] [--json]

Each way to load runs in a process of its own: decoded in this process, as float32 through a list of transforms, encoded, mixed
from two, from a server on this machine (shared memory and TCP), and through forebay.Mapped. What is told: MiB after each
epoch, and how much more the last one has than the second (the first fills pools). Exits with 1 where that is more than
--allow MiB. DATASET is a directory with one split, or give --split; a server is started by the command `forebay`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

WAYS = ["train", "list", "raw", "mix", "shm", "tcp", "mapped"]


def resident() -> float:
    """MiB of this process that are in memory, and not those of files or shared with others."""
    text = pathlib.Path("/proc/self/status").read_text()
    parts = [int(found) for found in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", text)]
    return sum(parts) / 1024


@contextlib.contextmanager
def server(dataset: str) -> Iterator[str]:
    """A server of the dataset, and its URL."""
    process = subprocess.Popen(
        ["forebay", "serve", dataset, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"forebay://\S+", line):
                yield found.group()
                break
        else:
            sys.exit(f"forebay serve ended with {process.wait()}")
    finally:
        process.terminate()
        process.wait()


def epochs(source: Any, args: argparse.Namespace, **options: Any) -> list[float]:
    import forebay

    options.setdefault("transform", forebay.TrainTransform(224))
    found = []
    with forebay.Loader(source, batch_size=args.batch_size, split=args.split, **options) as loader:
        batches: Any = loader
        if args.way == "mapped":
            batches = forebay.Mapped(loader, map_batch=lambda batch: batch.images.mean())
        for _ in range(args.epochs):
            for batch in batches:
                del batch
            gc.collect()
            found.append(resident())
    return found


def measure(args: argparse.Namespace) -> list[float]:
    import forebay

    dataset = args.dataset
    match args.way:
        case "list":
            steps = [
                forebay.RandomResizedCrop(224),
                forebay.RandomHorizontalFlip(),
                forebay.RandAugment(),
                forebay.Normalize(),
                forebay.RandomErasing(0.25),
            ]
            return epochs(dataset, args, transform=steps, layout="nchw")
        case "raw":
            return epochs(dataset, args, transform=forebay.KeepEncoded())
        case "mix":
            return epochs(forebay.Mix([(dataset, 1.0), (dataset, 2.0)]), args)
        case "shm" | "tcp":
            with server(dataset) as url:
                return epochs(url, args, transport=args.way)
        case _:
            return epochs(dataset, args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--split", default=None)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--only", default=",".join(WAYS), help="ways, by name: " + ", ".join(WAYS))
    parser.add_argument("--allow", type=float, default=16.0, help="MiB that the last epoch may have more than the second")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(args)))
        return
    grown = False
    for way in args.only.split(","):
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--way", way]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"{way}: failed with {done.returncode}")
        found = json.loads(done.stdout)
        more = found[-1] - found[min(1, len(found) - 1)]
        grown |= more > args.allow
        if args.json:
            print(json.dumps({"way": way, "mib": found, "more": more}), flush=True)
        else:
            row = " ".join(f"{mib:7.1f}" for mib in found)
            print(f"{way:7} {row}   MiB, {more:+.1f} since the second", flush=True)
    sys.exit(1 if grown else 0)


if __name__ == "__main__":
    main()
