#!/usr/bin/env python3
"""Packing straight into an object store, against packing locally and uploading then.

    python tools/bench_pack_upload.py IMAGES s3://bucket/prefix --scratch DIR [--forebay target/release/forebay]
                                      [--rounds 5] [--staging-bytes 2GiB] [-- --endpoint URL ...]

What follows `--` is given to every command that speaks to the store. The contestants take turns, round by round:

  through staging   forebay pack IMAGES s3://.../a
  one by one        forebay pack IMAGES DIR/b, then forebay cp DIR/b s3://.../b
  aws               the same with `aws s3 cp --recursive` for the second step, where aws is installed

Each round writes below a prefix of its own, which stays: remove it when you have seen the figures. A row is the median with
the lowest and highest; MB are bytes of shards and indexes. Also told: the time of the local pack alone and of the upload alone, of which
the longer one is what packing through staging can reach at best. The table goes to stdout, as Markdown.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time


def timed(command, env=None):
    begin = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, env=env, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return time.monotonic() - begin, done.stdout


def bytes_below(root):
    return sum(os.path.getsize(os.path.join(top, name)) for top, _, names in os.walk(root) for name in names)


def main():
    arguments, beside = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, beside = arguments[:at], arguments[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images")
    parser.add_argument("destination")
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--forebay", default="target/release/forebay")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--staging-bytes", default="2GiB")
    parser.add_argument("--shard-size", default="64MiB")
    options = parser.parse_args(arguments)

    pack = [options.forebay, "pack", options.images]
    shape = ["--format", "tfrecord", "--shard-size", options.shard_size, "--json"]
    base = options.destination.rstrip("/") + f"/bench-{os.getpid()}"
    staging = os.path.join(options.scratch, "staging")
    local = os.path.join(options.scratch, "local")
    times = {"through staging": [], "one by one": [], "local pack": [], "upload": [], "aws upload": []}
    size = 0
    for number in range(options.rounds + 1):
        there = f"{base}/{number}"
        seconds, out = timed(pack + [f"{there}/a", "--staging", staging, "--staging-bytes", options.staging_bytes]
                             + shape + beside)
        summary = json.loads(out.splitlines()[-1])
        shutil.rmtree(local, ignore_errors=True)
        packing, out = timed(pack + [local] + shape)
        if json.loads(out.splitlines()[-1])["fingerprint"] != summary["fingerprint"]:
            sys.exit("the two packs differ")
        size = bytes_below(local)
        uploading, _ = timed([options.forebay, "cp", local, f"{there}/b"] + beside)
        # The first round warms the page cache and does not count.
        if number == 0:
            continue
        times["through staging"].append(seconds)
        times["local pack"].append(packing)
        times["upload"].append(uploading)
        times["one by one"].append(packing + uploading)
        if shutil.which("aws") and options.destination.startswith("s3://"):
            endpoint = [beside[i + 1] for i, word in enumerate(beside[:-1]) if word == "--endpoint"]
            words = ["aws"] + (["--endpoint-url", endpoint[0]] if endpoint else [])
            uploading, _ = timed(words + ["s3", "cp", "--recursive", "--quiet", local, f"{there}/c"])
            times["aws upload"].append(uploading)
    shutil.rmtree(local, ignore_errors=True)

    print(f"{size / 1e6:.0f} MB, {options.rounds} rounds\n")
    print("| what | seconds | lowest to highest | MB/s |\n| --- | --- | --- | --- |")
    for what, seconds in times.items():
        if seconds:
            middle = statistics.median(seconds)
            print(f"| {what} | {middle:.2f} | {min(seconds):.2f} to {max(seconds):.2f} | {size / 1e6 / middle:.0f} |")


if __name__ == "__main__":
    main()
