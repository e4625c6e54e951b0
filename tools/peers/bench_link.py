#!/usr/bin/env python3
"""An epoch from an object store behind a link of known latency and bandwidth, beside what the link allows.

    python3 tools/peers/bench_link.py DATASET [DATASET ...] --work DIRECTORY [--links 20:100,50:50] [--rounds 3]

Copies each dataset to an S3 server on loopback that this script starts (crates/forebay-rigs). On each link, a request takes
LATENCY ms, and all answers share BANDWIDTH MB/s. `forebay bench storage` then measures, in turns: the reads of an epoch
without the loader, the loader with images that stay encoded, and with RandomResizedCrop(224). Every epoch begins with a
new client: its connections, the first batch and the end of the epoch are included, the opening of the dataset is not. The server
does little per byte, so the link is the limit. Prints Markdown: the rate, and its part of the bandwidth.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess

import common


def measure(command: pathlib.Path, url: str, server: common.Server, rounds: int) -> tuple[str, list[dict[str, object]]]:
    """Title and rows of `forebay bench storage`."""
    arguments = [command, "bench", "storage", url, "--endpoint", server.url, "--runs", str(rounds), "--json"]
    output = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout
    report = json.loads(output.splitlines()[0])
    return report["title"], report["rows"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=pathlib.Path, nargs="+", metavar="DATASET")
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--links", default="20:100,50:50", help="LATENCY:BANDWIDTH,... in ms and MB/s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forebay", type=pathlib.Path, help="another build of forebay")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    command, _, s3_server = common.build()
    command = args.forebay or command
    print("| latency, bandwidth | dataset | | MB/s | lowest - highest | of the bandwidth |")
    print("| --- | --- | --- | --- | --- | --- |")
    for link in args.links.split(","):
        latency, bandwidth = link.split(":")
        with common.Server("s3s-fs", args.work, s3_server, [latency, bandwidth]) as server:
            for dataset in args.datasets:
                url = f"s3://{server.bucket}/{dataset.name}"
                subprocess.run([command, "cp", dataset, url, "--endpoint", server.url], check=True, stdout=subprocess.DEVNULL)
                title, rows = measure(command, url, server, args.rounds)
                common.say(title)
                for row in rows:
                    rates = [float(rate) for rate in row["rates"]]
                    middle = float(row["median"])
                    share = middle / float(bandwidth)
                    print(
                        f"| {latency} ms, {bandwidth} MB/s | {dataset.name} | {row['name']} "
                        f"| {middle:.1f} | {min(rates):.1f} - {max(rates):.1f} | {share:.3f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
