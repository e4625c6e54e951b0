#!/usr/bin/env python3
"""Makes docs/pictures/dashboard.png: a server's dashboard, 1280 pixels wide, while trainers take batches.

    .venv/bin/python tools/pictures/dashboard.py [DATASET] [--seconds 62] [--scheme dark] [--output FILE]

Packs testdata/images unless a dataset is given, starts `forebay serve` with a job on loopback, streams to its ranks for a minute, and
takes the picture in a headless Chromium. Needs an interpreter that has forebay, the command on the PATH, and Chromium:
FOREBAY_CHROMIUM names one. Says so where one is missing.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import browser
import png

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "docs/pictures/dashboard.png"
MOST_BYTES = 150_000
JOB, RANKS = "resnet50", 4
STEP_SECONDS = 0.15
WIDTH, HEIGHT = 1280, 920


def started(dataset: str, program: str) -> tuple[subprocess.Popen[str], str, str]:
    """A server, the URL of its job and that of its dashboard."""
    options = ["batch_size=32", "repeats=400", "split=train", f"world_size={RANKS}", "transform=train"]
    server = subprocess.Popen(
        [program, "serve", dataset, "--name", "photos", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--job", JOB,
         *(part for option in options for part in ("-o", option))],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    said, job, page = [], "", ""
    assert server.stdout
    for line in server.stdout:
        said.append(line)
        if found := re.search(rf"forebay://\S+/{JOB}", line):
            job = found[0].strip("'\"(),")
        if found := re.search(r"http://[\d.]+:\d+/", line):
            page = found[0]
        if job and page:
            threading.Thread(target=server.stdout.read, daemon=True).start()
            return server, job, page
    sys.exit(f"error: forebay serve ended: {''.join(said)}")


def train(url: str, rank: int, stop: threading.Event) -> None:
    """A rank that takes batches as a training would, a step after the other."""
    import forebay

    with forebay.Loader(url, rank=rank) as loader:
        while not stop.is_set():
            for _ in loader:
                if stop.wait(STEP_SECONDS):
                    break


def taken(dataset: str, program: str, chromium: str, scheme: str, seconds: float) -> bytes:
    """The screenshot, as the browser makes it, after so many seconds of training."""
    server, job, url = started(dataset, program)
    stop = threading.Event()
    ranks = [threading.Thread(target=train, args=(job, rank, stop), daemon=True) for rank in range(RANKS)]
    try:
        for rank in ranks:
            rank.start()
        with browser.Page(chromium) as page:
            page.go(url, WIDTH, HEIGHT, scheme)
            page.wait("document.querySelector('#state').dataset.state === 'serving'")
            page.wait("document.querySelectorAll('#pictures img').length >= 4")
            time.sleep(seconds)
            page.wait("[...document.querySelectorAll('#pictures img')].every((image) => image.naturalWidth > 0)")
            return page.screenshot()
    finally:
        stop.set()
        for rank in ranks:
            rank.join(timeout=10)
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?")
    parser.add_argument("--seconds", type=float, default=62)
    parser.add_argument("--output", type=pathlib.Path, default=OUTPUT)
    parser.add_argument("--scheme", choices=["light", "dark"], default="light")
    args = parser.parse_args()
    chromium, program = browser.find(), shutil.which("forebay")
    if chromium is None:
        sys.exit("error: no Chromium was found; FOREBAY_CHROMIUM names one")
    if program is None:
        sys.exit("error: no command forebay on the PATH")
    with tempfile.TemporaryDirectory() as scratch:
        dataset = args.dataset or f"{scratch}/photos"
        if not args.dataset:
            subprocess.run([program, "pack", ROOT / "testdata/images", dataset, "--format", "indexed", "-qq"],
                           check=True, stdout=subprocess.DEVNULL)
        picture = png.smaller(taken(dataset, program, chromium, args.scheme, args.seconds))
    args.output.write_bytes(picture)
    print(f"wrote {args.output.name}, {len(picture):,} bytes")
    if len(picture) > MOST_BYTES:
        sys.exit(f"error: more than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main()
