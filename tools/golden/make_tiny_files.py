#!/usr/bin/env python3
"""Makes a tree of many tiny images, to see what a census and a pack of them cost.

    python tools/golden/make_tiny_files.py DIR --files 1000000 [--classes 1000] [--bytes 200]

DIR gets CLASSES directories with about as many JPEGs each: 64x64 grey pixels in the fewest bytes (196), and a comment that
fills the file up. Names are like ImageNet's. On a disk this takes 4 KiB a file; on tmpfs as well.
"""

import argparse
import os

FRAME = bytes.fromhex("080040004003011100021100031100")
# One code of one bit in each table: no difference, and the end of the block.
CODES = [bytes([kind, 1]) + bytes(16) for kind in (0x00, 0x10)]
SCAN = bytes.fromhex("03010002000300003f00")
BLOCKS = 3 * 64


def segment(marker, content):
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


def tiny_jpeg(size):
    start = b"\xff\xd8" + segment(0xDB, bytes([0]) + bytes([1] * 64)) + segment(0xC0, FRAME)
    start += b"".join(segment(0xC4, codes) for codes in CODES)
    end = segment(0xDA, SCAN) + bytes(2 * BLOCKS // 8) + b"\xff\xd9"
    left = size - len(start) - len(end) - 4
    comment = segment(0xFE, bytes(7 * at % 251 for at in range(left))) if left >= 0 else b""
    return start + comment + end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--bytes", type=int, default=200)
    args = parser.parse_args()
    content = tiny_jpeg(args.bytes)
    for number in range(args.classes):
        name = f"n{1440764 + 13 * number:08}"
        folder = os.path.join(args.dir, name)
        os.makedirs(folder, exist_ok=True)
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        for image in range(number, args.files, args.classes):
            file = os.open(f"{name}_{image}.JPEG", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644, dir_fd=at)
            os.write(file, content)
            os.close(file)
        os.close(at)


if __name__ == "__main__":
    main()
