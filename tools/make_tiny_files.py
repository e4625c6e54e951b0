#!/usr/bin/env python3
"""Makes a tree of many tiny images, to see what a census and a pack of them cost.

    python tools/make_tiny_files.py DIR --files 1000000 [--classes 1000] [--bytes 200]

DIR gets CLASSES directories with about as many JPEGs each; of every image there is only what a probe looks at
(a header for 64x64 pixels) and as many bytes of a made-up scan as it takes. Names are like ImageNet's. On a disk
this takes 4 KiB a file; on tmpfs as well.
"""

import argparse
import os

HEADER = bytes.fromhex("ffd8ffc0001108004000400301110002110003110"
                       "0ffda000c03010002000300003f00")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--bytes", type=int, default=200)
    args = parser.parse_args()
    content = HEADER + bytes(7 * at % 251 for at in range(max(0, args.bytes - len(HEADER) - 2))) + b"\xff\xd9"
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
