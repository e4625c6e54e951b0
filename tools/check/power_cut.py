#!/usr/bin/env python3
"""Cuts the power of a running pack, by hand: needs root, a loop device and mkfs.ext4.

    cargo build --release && sudo tools/check/power_cut.py --cuts 50 target/release/forebay

A file system in a file is shut down at a random moment of a pack (EXT4_IOC_SHUTDOWN, without flushing its log), and
mounted again. What is there then is what a power cut leaves. Checked after each cut:

- a manifest means a whole dataset: `forebay verify` finds nothing wrong;
- the same command ends with 0, and the result is byte for byte that of an undisturbed run.

With --parts N each pack is N parts at once, and a `pack --finish` that is not interrupted.
"""

import argparse
import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# _IOR('X', 125, __u32), and the flag that leaves the log as it is.
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2


class Disk:
    """An ext4 file system in a file."""

    def __init__(self, image: Path, at: Path, mib: int) -> None:
        self.image, self.at = image, at
        with open(image, "wb") as file:
            file.truncate(mib << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
        at.mkdir()
        self.mount()

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.at)], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.at)], check=True)

    def cut(self) -> None:
        """From here on nothing reaches the disk."""
        handle = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(handle)


def make_source(images: Path, src: Path, copies: int) -> None:
    for image in sorted((images / "train").glob("*/*")):
        to = src / image.parent.name
        to.mkdir(parents=True, exist_ok=True)
        for copy in range(copies):
            shutil.copy(image, to / f"{copy:03}_{image.name}")


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forebay", type=Path)
    parser.add_argument("--cuts", type=int, default=50)
    parser.add_argument("--parts", type=int, default=0)
    parser.add_argument("--format", choices=["tfrecord", "indexed"], default="tfrecord")
    parser.add_argument("--shards", type=int, default=24)
    parser.add_argument("--copies", type=int, default=20, help="copies of the project's pictures in the source")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    forebay = str(args.forebay.resolve())
    images = Path(__file__).resolve().parents[2] / "testdata" / "images"
    rng = random.Random(args.seed)

    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        src, whole = scratch / "src", scratch / "whole"
        make_source(images, src, args.copies)
        disk = Disk(scratch / "disk.img", scratch / "disk", 512)
        dst = disk.at / "dst"

        def pack(to: Path, *step: str) -> list[str]:
            shards = str(args.shards)
            return [forebay, "pack", *step, str(src), str(to), "--format", args.format, "--shards", shards, "-qq"]

        def commands() -> list[list[str]]:
            if args.parts:
                return [pack(dst, "--part", f"{n}/{args.parts}") for n in range(1, args.parts + 1)]
            return [pack(dst)]

        def finish() -> None:
            if args.parts:
                subprocess.run([forebay, "pack", "--finish", str(dst), "-qq"], check=True, stdout=subprocess.DEVNULL)

        def run_all() -> None:
            for command in commands():
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            finish()

        subprocess.run(pack(whole), check=True, stdout=subprocess.DEVNULL)
        expected = contents(whole)
        begin = time.monotonic()
        run_all()
        duration = time.monotonic() - begin
        shutil.rmtree(dst)
        os.sync()

        published = resumed = empty = 0
        try:
            for cut in range(args.cuts):
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                moment = rng.random() * duration * 1.1
                running = [subprocess.Popen(command, **quiet) for command in commands()]
                time.sleep(moment)
                disk.cut()
                for process in running:
                    process.kill()
                    process.wait()
                disk.unmount()
                disk.mount()
                shards = len(list(dst.glob("train-*"))) if dst.exists() else 0
                if (dst / "forebay.json").exists():
                    published += 1
                    subprocess.run([forebay, "verify", str(dst), "-qq"], check=True, stdout=subprocess.DEVNULL)
                elif shards:
                    resumed += 1
                else:
                    empty += 1
                # Every third time the cuts go on into the same work.
                if cut % 3 != 2:
                    run_all()
                    found = contents(dst)
                    different = sorted(k for k in expected.keys() | found.keys() if expected.get(k) != found.get(k))
                    if different:
                        print(f"cut {cut} after {moment:.3f} s: {different[:5]} differ", file=sys.stderr)
                        return 1
                    shutil.rmtree(dst)
                    os.sync()
        finally:
            disk.unmount()
        kind = f"{args.parts} parts" if args.parts else "one run"
        print(
            f"{args.cuts} power cuts of {kind} ({args.format}): {published} met a published dataset, "
            f"{resumed} shards to go on with, {empty} nothing; every rerun gave the same bytes"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
