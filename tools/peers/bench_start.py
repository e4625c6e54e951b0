#!/usr/bin/env python3
"""The first batch of a large dataset from a store behind a slow link.

    python tools/peers/bench_start.py --work DIR [--records 1000000] [--latency 30] [--bandwidth 1000] [--rounds 5]

`forebay-lab start` makes the dataset, of tiny images in 16 indexed shards, and an S3 server on loopback holds it
(crates/forebay-rigs); each request takes the latency, in ms, and all answers share the bandwidth, in MB/s. Run it with an
interpreter that has Forebay. A new process each time opens the dataset and takes the first batch of 256, without a cache directory,
with an empty one, and with what that run left in it. The time begins after the imports. Prints Markdown: seconds, median and range.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import common

CHILD = """
import sys, time
import numpy
import forebay
url, cache = sys.argv[1:]
began = time.perf_counter()
options = {"cache_dir": cache, "cache_bytes": "4GiB"} if cache else {}
with forebay.Loader(url, batch_size=256, transform=forebay.TrainTransform(224), storage_options=options) as loader:
    images, _ = next(iter(loader))
    assert len(images) == 256
    print(time.perf_counter() - began, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--latency", type=float, default=30)
    parser.add_argument("--bandwidth", type=float, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    dataset, cache = args.work / "million", args.work / "cache"
    dataset.mkdir(parents=True, exist_ok=True)
    command, _, s3_server = common.build()
    lab = ["cargo", "run", "--release", "--quiet", "-p", "forebay-lab", "--", "start", "--scratch", dataset, "--records", str(args.records), "--runs", "1"]
    subprocess.run(lab, cwd=common.ROOT, check=True, stdout=subprocess.DEVNULL)
    times: dict[str, list[float]] = {"no cache directory": [], "an empty one": [], "the same again": []}
    with common.Server("s3s-fs", args.work, s3_server, [str(args.latency), str(args.bandwidth)]) as server:
        os.environ["AWS_ENDPOINT_URL"] = server.url
        url = f"s3://{server.bucket}/million"
        subprocess.run([command, "cp", dataset, url], check=True, stdout=subprocess.DEVNULL)
        for _ in range(args.rounds):
            shutil.rmtree(cache, ignore_errors=True)
            for name, runs in times.items():
                child = [sys.executable, "-c", CHILD, url, "" if name == "no cache directory" else str(cache)]
                done = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True)
                runs.append(float(done.stdout))
    print(f"{args.records:,} records, requests of {args.latency:g} ms, {args.bandwidth:g} MB/s; {common.processor()}\n")
    print("| | s | lowest - highest |\n| --- | --- | --- |")
    for name, runs in times.items():
        print(f"| {name} | {statistics.median(runs):.3f} | {min(runs):.3f} - {max(runs):.3f} |")


if __name__ == "__main__":
    main()
