#!/usr/bin/env python3
"""How batches reach a trainer, from Forebay's server and by other roads: the same bytes, one machine, in turns.

    python3 tools/peers/bench_serve_peers.py [--ways A,B] [--batches 100] [--paced 20] [--step-ms 200] [--rounds 3]
                                             [--batch 256] [--side 224] [--work DIRECTORY]
                                             [--forebay PYTHON] [--tensorflow PYTHON] [--torch PYTHON] [--json FILE]

Batches cost nothing to make, so what is measured is the way from one process to the other: 38.5 MB each unless --batch
and --side say otherwise. Each round runs every way once, both sides in processes of their own that are started for it, so
that a disturbance meets all alike. What each way does is in tools/peers/bench_serve_peer.py.

Forebay is built from this checkout in the release profile, unless --forebay names an interpreter that has it.
TensorFlow is installed into an environment of its own below --work, unless --tensorflow names one that has it. PyTorch is
large and never installed: --torch names an interpreter that has it, this one is tried otherwise, and without it its rows
are left out. Whatever is left out is named, with the reason. TLS needs openssl to make a certificate with.

Prints Markdown, with medians over the rounds; progress goes to stderr. --json FILE keeps every run.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import bench_peers
from common import ROOT, say

WORKER = ROOT / "tools/peers/bench_serve_peer.py"

# Way: whose interpreter it needs, and what a reader has to know about it.
WAYS = {
    "memcpy": ("forebay", "one thread copies a batch from one place to another, within one process"),
    "iperf3": ("", "one connection on loopback, 1 MiB writes; no batches, and nobody keeps what came"),
    "forebay-shm": ("forebay", "`forebay serve` to `forebay.Loader`, shared memory"),
    "forebay-tcp": ("forebay", "the same over one TCP connection"),
    "forebay-tls": ("forebay", "the same with TLS 1.3"),
    "tfdata": ("tensorflow", "tf.data service, dispatcher and worker in one process, default options"),
    "tfdata-plain": ("tensorflow", "as above with compression off"),
    "torch": ("torch", "DataLoader, one worker process: 256 pictures, default collate into shared memory"),
    "torch-whole": ("torch", "as above, but the worker hands over whole batches: nothing is put together"),
}
CERTIFICATE = [
    "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
    "-subj", "/CN=forebay", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
]  # fmt: skip
GB = 1e9


class Missing(Exception):
    """Why a way cannot be measured here."""


def interpreters(args: argparse.Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """For each package an interpreter that has it, or why there is none."""
    found, missing = {}, {}
    wanted = {WAYS[way][0] for way in args.ways}
    if "forebay" in wanted:
        found["forebay"] = args.forebay or bench_peers.forebay(args.work, [])
    if "tensorflow" in wanted:
        python, reason = (args.tensorflow, "") if args.tensorflow else bench_peers.peer_environment("tfdata", args.work)
        if python:
            found["tensorflow"] = str(python)
        else:
            missing["tensorflow"] = reason
    if "torch" in wanted:
        python = args.torch or sys.executable
        tried = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True)
        if tried.returncode == 0:
            found["torch"] = python
        else:
            missing["torch"] = f"{python} has no torch; --torch names an interpreter that has it"
    return found, missing


def certificate(work: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    if shutil.which("openssl") is None:
        raise Missing("no openssl to make a certificate with")
    cert, key = work / "cert.pem", work / "key.pem"
    subprocess.run([*CERTIFICATE, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


class Giver:
    """The side that has batches, until the end of the `with`."""

    def __init__(self, way: str, python: str, args: argparse.Namespace) -> None:
        self.options: list[str | pathlib.Path] = []
        self.process: subprocess.Popen[str] | None = None
        command: list[str | pathlib.Path]
        if way.startswith("forebay"):
            command = [python, "-m", "forebay", "serve", "synthetic://imagenet?records=50000000&decode=off"]
            command += ["--listen", "127.0.0.1:0"]
            if way == "forebay-tls":
                cert, key = certificate(args.work)
                command += ["--tls-cert", cert, "--tls-key", key]
                self.options = ["--tls-ca", cert]
        elif way.startswith("tfdata"):
            command = [python, WORKER, "give", way]
        else:
            return
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        assert self.process.stdout is not None
        found = re.search(r'(forebays?|grpc)://[^\s"]+', self.process.stdout.readline())
        if found is None:
            self.log.seek(0)
            self.__exit__()
            raise Missing((self.log.read().strip().splitlines() or ["it did not start"])[-1][:200])
        self.options += ["--url", found.group(), "--server", str(self.process.pid)]

    def __enter__(self) -> Giver:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def iperf3(args: argparse.Namespace) -> dict:
    """Throughput of iperf3 between two processes."""
    program = shutil.which("iperf3")
    if program is None:
        raise Missing("iperf3 is not installed")
    total = args.batches * args.batch_bytes
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    server = subprocess.Popen(
        [program, "--server", "--one-off", "--bind", "127.0.0.1", "--port", port],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    client = [program, "--client", "127.0.0.1", "--port", port, "--json", "--length", "1M", "--bytes", str(total)]
    try:
        for _ in range(100):
            done = subprocess.run(client, capture_output=True, text=True)
            report = json.loads(done.stdout or "{}")
            if done.returncode == 0 and "error" not in report:
                break
            # Its server needs a moment to listen.
            time.sleep(0.05)
        else:
            raise Missing(report.get("error", "iperf3 failed without a word"))
    finally:
        server.kill()
        server.wait()
    end = report["end"]
    received, used = end["sum_received"], end["cpu_utilization_percent"]
    seconds = received["seconds"] * total / received["bytes"]
    cpu = [used["host_total"] / 100 * received["seconds"], used["remote_total"] / 100 * received["seconds"]]
    return {"seconds": seconds, "waits_s": [], "paced_s": [], "cpu_s": cpu, "rss_mib": [0, 0]}


def run(way: str, python: str, args: argparse.Namespace) -> dict:
    """The result of one run."""
    if way == "iperf3":
        return iperf3(args)
    with Giver(way, python, args) as giver:
        command = [python, WORKER, "take", way, *giver.options]
        for name in ("batch", "side", "batches", "paced", "step_ms"):
            command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
        patience = 300 + args.batches + args.paced * (1 + args.step_ms / 1000)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
        except subprocess.TimeoutExpired as e:
            raise Missing("took far too long") from e
    if done.returncode or not done.stdout.strip():
        raise Missing((done.stderr.strip().splitlines() or ["it failed without a word"])[-1][:200])
    return json.loads(done.stdout.splitlines()[-1])


def at(values: list[float], part: float) -> float:
    """The value below which this part of them lies."""
    ordered = sorted(values)
    return ordered[round((len(ordered) - 1) * part)]


def spread(values: list[float]) -> str:
    """Median and 99th percentile, in ms."""
    if not values:
        return ""
    return " / ".join(f"{ms:.3f}" if ms < 1 else f"{ms:.1f}" for ms in (at(values, 0.5) * 1e3, at(values, 0.99) * 1e3))


def table(runs: dict[str, list[dict]], args: argparse.Namespace) -> list[str]:
    """A row a way, in their order."""
    gigabytes = args.batches * args.batch_bytes / GB
    out = [
        f"| | GB/s | lowest - highest | batches/s | asked until there, ms: p50 / p99 | the same, a trainer that takes {args.step_ms:g} ms "
        "| CPU s/GB, giving / taking | peak RSS, MiB, giving / taking |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way, mine in runs.items():
        rates = [gigabytes / run["seconds"] for run in mine]
        sides = [statistics.median(run["cpu_s"][side] for run in mine) / gigabytes for side in (0, 1)]
        peaks = [max(run["rss_mib"][side] for run in mine) for side in (0, 1)]
        waits = spread([wait for run in mine for wait in run["waits_s"]])
        paced = spread([wait for run in mine for wait in run["paced_s"]])
        rate = statistics.median(rates)
        # What a figure says nothing about stays empty.
        cpu = f"{sides[0]:.3f} / {sides[1]:.3f}" if way != "memcpy" else f"{sides[1]:.3f}"
        rss = f"{peaks[0]:,.0f} / {peaks[1]:,.0f}" if peaks[0] else ""
        out.append(
            f"| {way} | {rate:.2f} | {min(rates):.2f} - {max(rates):.2f} | {rate * GB / args.batch_bytes:,.1f} | "
            f"{waits if peaks[0] else ''} | {paced if peaks[0] else ''} | {cpu} | {rss} |"
        )
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--paced", type=int, default=20)
    parser.add_argument("--step-ms", type=float, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "forebay-serve-peers")
    parser.add_argument("--forebay", help="an interpreter with the package, built in the release profile")
    parser.add_argument("--tensorflow", help="an interpreter with TensorFlow")
    parser.add_argument("--torch", help="an interpreter with PyTorch")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    args.ways = args.ways.split(",")
    if unknown := set(args.ways) - set(WAYS):
        parser.error(f"no such way: {', '.join(unknown)}; there are {', '.join(WAYS)}")
    args.batch_bytes = args.batch * args.side * args.side * 3
    args.work.mkdir(parents=True, exist_ok=True)

    pythons, absent = interpreters(args)
    missing = {way: absent[WAYS[way][0]] for way in args.ways if WAYS[way][0] in absent}
    runs: dict[str, list[dict]] = {}
    for number in range(args.rounds):
        for way in args.ways:
            if way in missing:
                continue
            try:
                measured = run(way, pythons.get(WAYS[way][0], ""), args)
            except Missing as e:
                missing[way] = str(e)
                runs.pop(way, None)
                continue
            rate = args.batches * args.batch_bytes / GB / measured["seconds"]
            say(f"round {number + 1}, {way}: {rate:.2f} GB/s")
            runs.setdefault(way, []).append(measured)
    print("\n".join(table(runs, args)))
    print(f"\n{args.batches} batches of {args.batch_bytes / 1e6:.1f} MB a run, medians of {args.rounds} rounds; waits of all of them together.\n")
    for way in args.ways:
        print(f"- {way}: {f'not to be had here: {missing[way]}' if way in missing else WAYS[way][1]}")
    if args.json:
        args.json.write_text(json.dumps(runs, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
