#!/usr/bin/env python3
"""Forebay beside other loaders: the same pictures, the same output, in turns.

    python3 tools/peers/bench_peers.py IMAGES [--peers A,B] [--threads 1,2] [--transforms train,eval]
                                       [--rounds 3] [--seconds 5] [--work DIRECTORY] [--forebay PYTHON] [--installed PYTHON]

IMAGES is an image folder, `<class>/<file>`. It is packed once, as TFRecords for the peers that read them and as
indexed shards for Forebay; the others read the files themselves. All is in the page cache: each round begins with
a pass that does not count.

A peer that is not there is installed into an environment of its own below --work; one that cannot be installed
here is named in the result, with the reason, and left out. With --installed all run in that interpreter, and those whose
packages it lacks are left out. Forebay itself is built from this checkout in the
release profile, unless --forebay names an interpreter that has it. Each round runs every peer once, as a process of
its own pinned to as many cores as threads, in turns, so that a disturbance meets all alike. What each peer
does, and with which settings, is in tools/peers/bench_peer.py.

Prints Markdown: the processor, and for each transform and number of threads the medians over the rounds. Ratios are
those of two runs of one round: their median, lowest and highest. The last table compares each form of Forebay's data with
the faster tf.data of each round. Progress goes to stderr. --json FILE keeps every run.

The forms of Forebay's data beside tf.data, with one thread and two:

    python3 tools/peers/bench_peers.py IMAGES --transforms train --rounds 7 \\
        --peers forebay-plain,forebay-learned,forebay,forebay-fast,forebay-fast-raw,tfdata,tfdata-fast
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import venv

from common import ROOT, STREAMING, environment, pinned, pip, processor, say

WORKER = ROOT / "tools/peers/bench_peer.py"

# Peer: what pip installs for it, and what a reader has to know about its pixels and settings.
PEERS = {
    "forebay": ([], "antialiased, Pillow's pixels, checksums verified, seek points as pack makes them"),
    "forebay-plain": ([], "as above, packed with --seek-points off: the first epoch of plain JPEGs"),
    "forebay-learned": ([], "as above, with the seek points that the loader learned in the epoch before"),
    "forebay-torch": (["torch"], "forebay.torch.Loader, float32 normalised on the CPU as a GPU would do it"),
    "tfdata": (["tensorflow-cpu"], "TFRecord, decode_and_crop_jpeg, default options, not antialiased"),
    "tfdata-fast": (["tensorflow-cpu"], "as above with the fast DCT and plain upsampling"),
    "dali": (["nvidia-dali-cuda120", "numpy"], "files, CPU pipeline, linear, antialiased"),
    "pillow": (["pillow", "numpy"], "files, thread pool, antialiased, crop and resize in one call"),
    "pillow-simd": (["pillow-simd", "numpy"], "as pillow, with its SIMD resize"),
    "opencv": (["opencv-python-headless", "numpy"], "files, thread pool, 2-tap linear, not antialiased"),
    "opencv-reduced": (["opencv-python-headless", "numpy"], "as above, decoded at 1/2 or 1/4 where the crop allows"),
    "simplejpeg": (["simplejpeg", "opencv-python-headless", "numpy"], "files, thread pool, fast DCT, area resize"),
    "torchvision": (["torch", "torchvision"], "files, thread pool, decode_jpeg, v2 transforms on tensors, antialiased"),
    "torch-dataloader": (["torch", "torchvision", "pillow"], "ImageFolder, one worker process a thread, antialiased"),
    "forebay-fast": ([], "as forebay, packed with --images fast"),
    "forebay-fast-raw": ([], "as forebay, packed with --images fast-raw"),
    "forebay-webdataset": ([], "as forebay, from tars read in place"),
    "forebay-mds": ([], "as forebay, from MDS read in place"),
    "forebay-parquet": ([], "as forebay, from Parquet read in place, images not compressed again"),
    "forebay-arrayrecord": ([], "as forebay, from ArrayRecord read in place"),
    "webdataset": (["torch", "torchvision", "webdataset", "pillow"], "tars, one worker process a thread, antialiased"),
    "hf-datasets": (["torch", "torchvision", "datasets", "pillow"], "Parquet, one worker process a thread, antialiased"),
    "mosaicml": (STREAMING, "MDS, one worker process a thread, antialiased"),
    "kornia-rs": (["kornia-rs", "numpy"], "files, thread pool, libjpeg-turbo, its resize"),
    "datago": (["datago", "numpy"], "files, its own threads; no random crop: it resizes, and cuts the middle out"),
    "spdl": (["spdl-core", "spdl-io", "numpy"], "files, thread pool, bilinear scaler; needs FFmpeg's libraries on the machine"),
    "ffcv": (["ffcv"], "needs OpenCV's and libjpeg-turbo's headers to build"),
}


def peer_environment(peer: str, work: pathlib.Path) -> tuple[pathlib.Path | None, str]:
    """An interpreter with the packages of a peer, which others may share, or why there is none."""
    packages, _ = PEERS[peer]
    return environment(work / "venvs" / re.sub(r"[^\w.-]+", "_", "-".join(sorted(packages))), packages)


def forebay(work: pathlib.Path, extra: list[str]) -> str:
    """An interpreter with this checkout's package in the release profile."""
    folder = work / "venvs" / "-".join(["forebay", *extra])
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        say("building Forebay in the release profile; this takes minutes")
        venv.create(folder, with_pip=False)
        package = ROOT / "crates/forebay-python"
        subprocess.run([*pip(python), "numpy", *extra], check=True)
        subprocess.run([*pip(python), "--config-settings=build-args=--profile=release --locked", package], check=True)
        (folder / "ready").write_text("")
    return str(python)


def pack(python: str, images: pathlib.Path, work: pathlib.Path) -> None:
    forms = {"tfrecord": ["--seek-points", "auto"], "indexed": ["--seek-points", "auto"], "plain": ["--seek-points", "off"],
             "fast": ["--images", "fast"], "fast-raw": ["--images", "fast-raw"]}  # fmt: skip
    for form, options in forms.items():
        target = work / form
        if not (target / "forebay.json").exists():
            say(f"packing {target}")
            words = ["-m", "forebay", "pack", images, target, "--format", form if form == "tfrecord" else "indexed"]
            words += ["--split", "train", "--shards", "8", *options]
            subprocess.run([python, *words], check=True, stdout=subprocess.DEVNULL)


def place(python: str, work: pathlib.Path, form: str) -> None:
    """Writes the records as files of another tool, and an index of these with seek points."""
    if not (work / f"{form}-index/forebay.json").exists():
        say(f"writing {work / form}")
        for words in (["convert", work / "plain", work / form, "--format", form],
                      ["index", work / form, "--output", work / f"{form}-index", "--seek-points", "auto"]):
            subprocess.run([python, "-m", "forebay", *words], check=True, stdout=subprocess.DEVNULL)


def run(python: str, peer: str, transform: str, threads: int, args: argparse.Namespace) -> dict[str, float] | str:
    """The result of one process, or why there is none."""
    command = [
        *pinned(threads), python, WORKER, peer, args.images, args.work,
        "--transform", transform, "--threads", threads, "--seconds", args.seconds, "--batch", args.batch,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, timeout=120 + 20 * args.seconds
        )
    except subprocess.TimeoutExpired:
        return "took far too long"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed without a word"])[-1][:200]
    return json.loads(done.stdout.splitlines()[-1])


TFDATA = {"tfdata", "tfdata-fast"}


def spread(values: list[float]) -> str:
    """The median, and the lowest and highest if there are several."""
    middle = f"{statistics.median(values):.2f}x"
    return f"{middle} ({min(values):.2f} - {max(values):.2f})" if len(values) > 1 else middle


def table(runs: list[dict], transform: str, threads: int) -> list[str]:
    """A row a peer, the fastest first."""
    mine = [run for run in runs if (run["transform"], run["threads"]) == (transform, threads)]
    rows = {peer: [run for run in mine if run["peer"] == peer] for peer in {run["peer"] for run in mine}}
    rounds = {run["round"]: run["images_per_s"] for run in rows.get("forebay", [])}

    def median(peer: str, what: str) -> float | None:
        values = [run[what] for run in rows[peer] if run[what] is not None]
        return statistics.median(values) if values else None

    name = {"train": "RandomResizedCrop(224) + flip", "eval": "Resize(256) + CenterCrop(224)"}[transform]
    out = [f"\n{name}, {threads} thread{'s' * (threads > 1)}:\n"]
    out.append("| | images/s | lowest - highest | Forebay is | CPU, us an image | first batch, s | hand-over, us a batch | RSS, MiB |")
    out.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for peer in sorted(rows, key=lambda peer: -(median(peer, "images_per_s") or 0)):
        each = [run["images_per_s"] for run in rows[peer]]
        ratios = [rounds[run["round"]] / run["images_per_s"] for run in rows[peer] if run["round"] in rounds]
        hand = median(peer, "hand_over_us")
        out.append(
            f"| {peer} | {median(peer, 'images_per_s'):,.0f} | {min(each):,.0f} - {max(each):,.0f} | "
            f"{spread(ratios) if ratios and peer != 'forebay' else ''} | {median(peer, 'cpu_us'):,.0f} | "
            f"{median(peer, 'first_batch_s'):.2f} | {'' if hand is None else f'{hand:,.0f}'} | {median(peer, 'rss_mib'):,.0f} |"
        )
    return out


def beside_tfdata(runs: list[dict]) -> list[str]:
    """Forebay's rates by those of the faster tf.data of the same round: a row a form of the data, a column a case."""
    cases: dict[tuple[str, int], dict[int, float]] = {}
    for run in runs:
        if run["peer"] in TFDATA:
            rounds = cases.setdefault((run["transform"], run["threads"]), {})
            rounds[run["round"]] = max(run["images_per_s"], rounds.get(run["round"], 0.0))
    if not cases:
        return []
    out = ["\nBeside the faster tf.data:\n"]
    out.append("| | " + " | ".join(f"{transform}, {threads} thread{'s' * (threads > 1)}" for transform, threads in cases) + " |")
    out.append("| --- " * (len(cases) + 1) + "|")
    for peer in dict.fromkeys(run["peer"] for run in runs if run["peer"] not in TFDATA and run["peer"].startswith("forebay")):
        ratios = [
            [run["images_per_s"] / rounds[run["round"]] for run in runs
             if (run["peer"], run["transform"], run["threads"]) == (peer, *case) and run["round"] in rounds]
            for case, rounds in cases.items()
        ]  # fmt: skip
        out.append(f"| {peer} | " + " | ".join(spread(each) if each else "" for each in ratios) + " |")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=pathlib.Path)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--transforms", default="train,eval")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "forebay-peers")
    parser.add_argument("--forebay", help="an interpreter with the package, built in the release profile")
    parser.add_argument("--installed", help="an interpreter with packages of the peers: nothing is installed then")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    wanted = args.peers.split(",")
    if unknown := set(wanted) - set(PEERS):
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    args.work.mkdir(parents=True, exist_ok=True)

    pythons, missing = {}, {}
    base = args.forebay or forebay(args.work, [])
    pack(base, args.images, args.work)
    for form, peer in {"webdataset": "webdataset", "mds": "mosaicml", "parquet": "hf-datasets", "arrayrecord": ""}.items():
        if {peer, f"forebay-{form}"} & set(wanted):
            place(base, args.work, form)
    for peer in wanted:
        if peer.startswith("forebay"):
            pythons[peer] = base if args.forebay or peer != "forebay-torch" else forebay(args.work, ["torch"])
            continue
        if args.installed:
            # What its packages are imported by is known when it runs.
            pythons[peer] = args.installed
            continue
        python, reason = peer_environment(peer, args.work)
        if python:
            pythons[peer] = str(python)
        else:
            missing[peer] = reason
    runs: list[dict] = []
    load = os.getloadavg()[0]
    for number in range(args.rounds):
        for transform in args.transforms.split(","):
            for threads in map(int, args.threads.split(",")):
                for peer in [peer for peer in wanted if peer in pythons]:
                    measured = run(pythons[peer], peer, transform, threads, args)
                    if isinstance(measured, str):
                        missing[peer] = measured
                        del pythons[peer]
                        continue
                    say(f"round {number + 1}, {transform}, {threads} threads, {peer}: {measured['images_per_s']:.0f}")
                    case = {"round": number, "peer": peer, "transform": transform, "threads": threads}
                    runs.append({**case, **measured})
    print(f"\n{processor()}; the machine's load before the first round was {load:.1f}.")
    for transform in args.transforms.split(","):
        for threads in map(int, args.threads.split(",")):
            print("\n".join(table(runs, transform, threads)))
    print("\n".join(beside_tfdata(runs)))
    print(f"\nBatches of {args.batch}, medians of {args.rounds} rounds.\n")
    for peer in wanted:
        text = f"not to be had here: {missing[peer]}" if peer in missing else PEERS[peer][1]
        print(f"- {peer}: {text}")
    if args.json:
        args.json.write_text(json.dumps(runs, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
