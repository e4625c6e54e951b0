#!/usr/bin/env python3
"""Compares the reads of an epoch, repeated by `forebay bench storage`, with the same reads by fio.

    python3 tools/peers/bench_fio.py DATASET --runs 5 [--cold off] [--forebay PATH]

Needs fio (Debian: `apt-get install fio`). Prints the rate of each tool for each round, in turns, and the ratio of the
medians. Both perform the same reads with the same number in flight; fio is told to leave the caches alone, and before its
rounds they are emptied as before those of forebay.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile


def forebay_rate(args, job):
    """MB/s of the replay of one run; also writes the fio job."""
    command = [args.forebay, "bench", "storage", args.dataset, "--runs", "1", "--cold", args.cold, "--json", "--emit-fio", str(job)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    row = json.loads(lines[0])["rows"][0]
    return row["median"], row["cache"]


def drop(job, cold):
    """Empties the caches of the files of the job."""
    if cold == "off":
        return
    for path in files_of(job):
        fd = os.open(path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def files_of(job):
    """The files that the logs of a job open."""
    found = set()
    for log in job.parent.glob(job.name + ".*.iolog"):
        for line in log.read_text().splitlines():
            if line.endswith(" add"):
                found.add(line[: -len(" add")])
    return found


def fio_rate(job, cold):
    """MB/s of fio."""
    drop(job, cold)
    command = ["fio", "--output-format=json", str(job)]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    read = [entry["read"] for entry in result["jobs"]]
    seconds = max(entry["runtime"] for entry in read) / 1e3
    return sum(entry["io_bytes"] for entry in read) / 1e6 / max(seconds, 1e-3)


def main():
    """Measures in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", choices=["off", "advise"], default="advise")
    parser.add_argument("--forebay", default="target/release/forebay")
    args = parser.parse_args()
    if shutil.which("fio") is None:
        sys.exit("fio is not installed: apt-get install fio")
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as directory:
        job = pathlib.Path(directory) / "epoch.fio"
        for number in range(args.runs):
            rate, cache = forebay_rate(args, job)
            ours.append(rate)
            theirs.append(fio_rate(job, args.cold))
            print(f"round {number + 1}: forebay {rate:.0f} MB/s ({cache}), fio {theirs[-1]:.0f} MB/s", flush=True)
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"median: forebay {a:.0f} MB/s, fio {b:.0f} MB/s, ratio {a / b:.3f}")


if __name__ == "__main__":
    main()
