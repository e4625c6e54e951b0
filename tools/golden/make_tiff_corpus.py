#!/usr/bin/env python3
"""Writes testdata/tiff: small TIFF files in every variant that is decoded, and the pixels that Pillow gives.

    python3 tools/golden/make_tiff_corpus.py                (needs Pillow and numpy)

`pixels.txt` has a line for each file: name, width, height, channels stored, CRC-32 of Image.convert("RGB"). Goldens are immutable: run
this only for new ones.
"""

import io
import pathlib
import struct
import zlib

import numpy as np
import PIL
from PIL import Image

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "tiff"
WIDTH, HEIGHT = 37, 29


def picture(channels):
    """Waves and noise."""
    rng = np.random.default_rng(channels)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    planes = [128 + 90 * np.sin(x * (0.2 + 0.1 * c) + y * 0.15) + rng.normal(0, 5, (HEIGHT, WIDTH)) for c in range(channels)]
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def big_endian(rgb):
    """An uncompressed big-endian file, whose directory comes first; Pillow writes the order of the processor."""
    entries = [(256, 3, 1, WIDTH << 16), (257, 3, 1, HEIGHT << 16), (258, 3, 3, 8 + 2 + 9 * 12 + 4), (259, 3, 1, 1 << 16), (262, 3, 1, 2 << 16)]
    pixels = 8 + 2 + 9 * 12 + 4 + 6
    entries += [(273, 4, 1, pixels), (277, 3, 1, 3 << 16), (278, 3, 1, HEIGHT << 16), (279, 4, 1, rgb.size)]
    body = struct.pack(">H", len(entries)) + b"".join(struct.pack(">HHII", *entry) for entry in entries) + struct.pack(">I", 0)
    return b"MM\0*" + struct.pack(">I", 8) + body + struct.pack(">HHH", 8, 8, 8) + rgb.tobytes()


def corpus():
    gray = Image.fromarray(picture(1)[..., 0])
    rgb = Image.fromarray(picture(3))
    rgba = Image.fromarray(picture(4))
    files = {
        "gray": (gray, {}),
        "gray-lzw": (gray, {"compression": "tiff_lzw"}),
        "gray-white-is-zero": (gray, {"tiffinfo": {262: 0}}),
        "rgb": (rgb, {}),
        "rgb-lzw": (rgb, {"compression": "tiff_lzw"}),
        "rgb-deflate": (rgb, {"compression": "tiff_adobe_deflate"}),
        "rgb-predictor": (rgb, {"compression": "tiff_lzw", "tiffinfo": {317: 2}}),
        "rgb-packbits": (rgb, {"compression": "packbits"}),
        "rgb-strips": (rgb, {"compression": "tiff_lzw", "strip_size": WIDTH * 3 * 4}),
        "rgba": (rgba, {}),
        "rgba-deflate": (rgba, {"compression": "tiff_adobe_deflate"}),
        "palette": (rgb.quantize(60), {}),
        "palette-lzw": (rgb.quantize(200), {"compression": "tiff_lzw"}),
    }
    for name, (image, options) in files.items():
        out = io.BytesIO()
        image.save(out, "TIFF", **options)
        yield name, out.getvalue()
    yield "rgb-big-endian", big_endian(picture(3))


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = [f"# Pillow {PIL.__version__}", "# name width height channels crc32"]
    for name, data in corpus():
        (FOLDER / f"{name}.tif").write_bytes(data)
        with Image.open(io.BytesIO(data)) as image:
            channels = len(image.getbands())
            rgb = image.convert("RGB")
        lines.append(f"{name} {rgb.width} {rgb.height} {channels} {zlib.crc32(rgb.tobytes()):08x}")
    (FOLDER / "pixels.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
