#!/usr/bin/env python3
"""Applies the remedies that `forebay bench explain` prices, and compares the gains with the predictions.

    python3 tools/peers/measure_prices.py IMAGES --scratch DIR [--forebay PATH] [--rounds 3] [--run-time 1s]
                                          [--loader-time 4s] [--disks 0.1,0.25,0.6 | none] [--json FILE]

IMAGES is an image directory. It is packed without seek points below --scratch, and once more for each remedy that stores
images in another way. In each situation (one thread, all cores, disks that give a part of what decoding takes) it runs
`forebay bench explain`, and then `forebay bench loader` on the dataset as it is and with each remedy, in turns. A remedy without
a price is predicted to gain nothing, or to lose. Slow disks need root and the blkio controller of cgroups of the first version; they are left out
elsewhere. Another machine that decodes cannot be measured here.

Runs of the loader are whole epochs of at least --loader-time: their first batches wait for the windows of the shuffle, which counts less the longer they are. Runs of a slow disk
are one epoch, whose images no cache has, so IMAGES should take longer than --run-time to read there.

Prints Markdown. --scratch has to be on a disk: its files are dropped from the page cache before each run of a slow disk.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")
LEAST_ERROR = 0.05
PACKS = {
    "as it is": ["--seek-points", "off"],
    "seek points (later epochs learn them)": ["--seek-points", "auto"],
    "fast images": ["--images", "fast"],
    "fast images without codes": ["--images", "fast-raw"],
    "images with short sides of 256 pixels, which are other pixels": ["--resize-short", "256", "--quality", "90", "--seek-points", "auto"],
}
THREADS = "a decode thread for each core"
MEMORY = "storage as fast as the page cache"


class SlowDisk:
    """A cgroup whose reads of a disk are limited; processes of `command` run in it."""

    def __init__(self, name, place, bytes_per_s):
        device = os.stat(place).st_dev
        self.group = BLKIO / name
        self.group.mkdir(exist_ok=True)
        limit = f"{os.major(device)}:{os.minor(device)} {int(bytes_per_s)}"
        (self.group / "blkio.throttle.read_bps_device").write_text(limit)

    def join(self):
        """Called in the child process."""
        (self.group / "cgroup.procs").write_text("0")

    def close(self):
        self.group.rmdir()


def events(args, command, disk=None):
    """The JSON events of a command of forebay."""
    done = subprocess.run([args.forebay, *map(str, command), "--json"], stdout=subprocess.PIPE, text=True,
                          preexec_fn=disk.join if disk else None, check=True)  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def rate(args, dataset, threads, cold, disk):
    """Images a second of one run of the loader with random crops."""
    command = ["bench", "loader", dataset, "--threads", threads, "--transform", "train", "--runs", 1, "--batch-size", 64,
               "--run-time", args.run_time if disk else args.loader_time, "--cold", cold]  # fmt: skip
    (report,) = [event for event in events(args, command, disk) if event["type"] == "bench"]
    return report["rows"][0]["median"]


def explain(args, dataset, threads, cold, disk):
    """The bottleneck, and the prices by remedy."""
    command = ["bench", "explain", dataset, "--threads", threads, "--runs", args.rounds, "--run-time", args.run_time, "--cold", cold]
    (found,) = [event for event in events(args, command, disk) if event["type"] == "prices"]
    return found["bottleneck"], {price["remedy"]: price for price in found["prices"]}


def gained(args, packs, situation, remedy):
    """Ratios of the rates with a remedy and without it, in turns."""
    name, threads, cold, disk = situation
    ratios = []
    for _ in range(args.rounds):
        before = rate(args, packs["as it is"], threads, cold, disk)
        if remedy == THREADS:
            after = rate(args, packs["as it is"], os.cpu_count(), cold, disk)
        elif remedy == MEMORY:
            rate(args, packs["as it is"], threads, "off", None)
            after = rate(args, packs["as it is"], threads, "off", None)
        else:
            after = rate(args, packs[remedy], threads, cold, disk)
        ratios.append(after / before)
    return ratios


def situations(args, packs):
    """Situations by name, threads, what is done about caches, and the disk."""
    cores = os.cpu_count()
    yield ("one thread", 1, "off", None)
    yield (f"{cores} threads", cores, "off", None)
    if not (BLKIO / "blkio.throttle.read_bps_device").exists() or not os.access(BLKIO, os.W_OK):
        print("slow disks are left out: the blkio controller cannot be used here", file=sys.stderr)
        return
    rate(args, packs["as it is"], cores, "off", None)
    images = rate(args, packs["as it is"], cores, "off", None)
    bytes_per_s = images * args.image_bytes
    for part in args.disks:
        disk = SlowDisk(f"forebay-prices-{os.getpid()}", args.scratch, part * bytes_per_s)
        try:
            yield (f"{cores} threads, a disk of {part * bytes_per_s / 1e6:.0f} MB/s", cores, "auto", disk)
        finally:
            disk.close()


def main():
    """Prints a row for each remedy in each situation, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=pathlib.Path)
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--forebay", default="target/release/forebay")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run-time", default="1s")
    parser.add_argument("--loader-time", default="4s")
    parser.add_argument("--disks", type=lambda text: [] if text == "none" else [float(part) for part in text.split(",")], default=[0.1, 0.25, 0.6])
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    packs = {}
    for remedy, options in PACKS.items():
        packs[remedy] = args.scratch / remedy.split(",")[0].replace(" ", "-")
        if not (packs[remedy] / "forebay.json").exists():
            command = [args.forebay, "pack", args.images, packs[remedy], "--format", "indexed", "--split", "train", *options]
            subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    plain = json.loads((packs["as it is"] / "forebay.json").read_text())
    shards = [shard for split in plain["splits"] for shard in split["shards"]]
    args.image_bytes = sum(shard["bytes"] for shard in shards) / sum(shard["records"] for shard in shards)

    rows = []
    print("| situation | remedy | predicted | interval | measured | lowest - highest | error |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for situation in situations(args, packs):
        name, threads, cold, disk = situation
        bottleneck, prices = explain(args, packs["as it is"], threads, cold, disk)
        print(f"{name}: {bottleneck}", file=sys.stderr)
        remedies = [remedy for remedy in PACKS if remedy != "as it is"]
        remedies += [THREADS] if threads == 1 else []
        remedies += [MEMORY] if disk else []
        for remedy in remedies:
            nothing = {"gain": 1.0, "lowest": 0.0, "highest": 1 + LEAST_ERROR}
            price = prices.get(remedy, nothing)
            ratios = gained(args, packs, situation, remedy)
            measured = statistics.median(ratios)
            error = abs(price["gain"] / measured - 1)
            covered = price["lowest"] <= measured <= price["highest"]
            rows.append({"situation": name, "remedy": remedy, "predicted": price, "measured": ratios, "error": error, "covered": covered})
            print(f"| {name} | {remedy} | {price['gain']:.2f}{'' if remedy in prices else ' (no price)'} "
                  f"| {price['lowest']:.2f} - {price['highest']:.2f} | {measured:.2f} | {min(ratios):.2f} - {max(ratios):.2f} "
                  f"| {100 * error:.0f} %{'' if covered else ', not covered'} |", flush=True)  # fmt: skip
    errors = [row["error"] for row in rows]
    covered = sum(row["covered"] for row in rows)
    print(f"\n{len(rows)} predictions: median error {100 * statistics.median(errors):.1f} %, "
          f"{covered} of {len(rows)} intervals cover the measured gain.")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
