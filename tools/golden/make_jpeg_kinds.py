#!/usr/bin/env python3
"""Writes testdata/jpeg-kinds: small JPEGs of the kinds that ordinary encoders do not write, and Pillow's pixels of them.

    python3 tools/golden/make_jpeg_kinds.py        (needs Pillow, numpy, and cjpeg of libjpeg-turbo)

`pixels.txt` has a line for each file: name, denominator of the scale, width, height and CRC-32 of the RGB pixels. The
denominator is 1 for Image.convert("RGB"), and 2, 4 or 8 for Pillow's draft mode. JPEG with four inks: the CRC-32 is that
of Forebay's conversion of Pillow's inks, since Pillow's own conversion rounds otherwise. Goldens are immutable: run this only for new
ones.
"""

import io
import pathlib
import struct
import subprocess
import tempfile
import zlib

import numpy as np
from make_format_corpus import encoded, picture, pixels
from PIL import Image, features

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "jpeg-kinds"
SOS, EOI, APP14 = 0xDA, 0xD9, 0xEE

# As mozjpeg writes them: DC scans of their own, two bands, luma refined twice.
MOZJPEG = """0: 0-0, 0, 0; 1 2: 0-0, 0, 0;
0: 1-8, 0, 2; 1: 1-8, 0, 0; 2: 1-8, 0, 0; 0: 9-63, 0, 2;
0: 1-63, 2, 1; 0: 1-63, 1, 0; 1: 9-63, 0, 0; 2: 9-63, 0, 0;"""
# DC coefficients refined between AC scans.
SLOW = """0 1 2: 0-0, 0, 3; 0: 1-5, 0, 2; 0 1 2: 0-0, 3, 2; 2: 1-63, 0, 1; 0: 6-63, 0, 2;
0 1 2: 0-0, 2, 1; 0: 1-63, 2, 1; 0 1 2: 0-0, 1, 0;"""


def cjpeg(array, *options, scans=None):
    image = io.BytesIO()
    Image.fromarray(array).save(image, "PPM")
    with tempfile.NamedTemporaryFile("w") as script:
        if scans:
            script.write(scans)
            script.flush()
            options += ("-scans", script.name)
        return subprocess.run(["cjpeg", *options], input=image.getvalue(), stdout=subprocess.PIPE, check=True).stdout


def segments(data):
    """Marker, start and end of each segment; scans with their data."""
    at = 2
    while data[at + 1] != EOI:
        start, marker = at, data[at + 1]
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
        while marker == SOS and (data[at] != 0xFF or data[at + 1] in (0, *range(0xD0, 0xD8))):
            at += 1
        yield marker, start, at


def scan_count(data):
    return sum(marker == SOS for marker, _, _ in segments(data))


def first_scans(data, count):
    """The file with its first scans and the end marker."""
    ends = [end for marker, _, end in segments(data) if marker == SOS]
    return data[: ends[count - 1]] + b"\xff\xd9"


def with_adobe(data, transform):
    """Another colour transform in Adobe's marker, or no such marker."""
    start, end = next((start, end) for marker, start, end in segments(data) if marker == APP14)
    if transform is None:
        return data[:start] + data[end:]
    return data[: end - 1] + bytes([transform]) + data[end:]


def corpus():
    files = {}
    small, large = picture(45, 61), picture(129, 83, seed=3)
    for name, factors in [("420", "2x2"), ("440", "1x2"), ("luma-2x2-1x2-2x1", "2x2,1x2,2x1")]:
        data = cjpeg(small, "-progressive", "-quality", "60", "-sample", factors)
        for count in range(1, scan_count(data) + 1):
            files[f"scans-{count}-of-progressive-{name}.jpg"] = first_scans(data, count)
    grey = cjpeg(small, "-progressive", "-grayscale")
    for count in (1, 3):
        files[f"scans-{count}-of-progressive-grey.jpg"] = first_scans(grey, count)
    mozjpeg = cjpeg(large, "-optimize", "-quality", "70", scans=MOZJPEG)
    for count in (1, 2, 3, 5, 7, 8, 10):
        files[f"scans-{count}-of-mozjpeg.jpg"] = first_scans(mozjpeg, count)
    slow = cjpeg(large, "-quality", "30", scans=SLOW)
    for count in (1, 2, 3, 5, 6, 8):
        files[f"scans-{count}-of-slow.jpg"] = first_scans(slow, count)
    files["progressive-restarts.jpg"] = cjpeg(large, "-quality", "40", "-restart", "5B", scans=MOZJPEG)
    for name, scans in [("0-12", "0; 1 2;"), ("0-1-2", "0; 1; 2;"), ("2-01", "2; 0 1;")]:
        files[f"baseline-scans-{name}.jpg"] = cjpeg(small, "-quality", "70", scans=scans)
    files["baseline-scans-restarts.jpg"] = cjpeg(small, "-restart", "3B", scans="0; 1 2;")
    files["baseline-scan-1-of-2.jpg"] = first_scans(files["baseline-scans-0-12.jpg"], 1)
    for factors in ["1x1,2x1,2x1", "1x1,2x2,2x2", "2x1,1x1,2x1", "2x2,2x1,2x1", "4x2", "1x4", "3x1", "2x2,1x1,2x2"]:
        name = factors.replace(",", "-")
        files[f"large-sampling-{name}.jpg"] = cjpeg(large, "-quality", "50", "-sample", factors)
        files[f"sampling-{name}-progressive.jpg"] = cjpeg(small, "-sample", factors, "-progressive")
    inks = picture(45, 61, 4)
    for name, subsampling in [("444", 0), ("422", 1), ("420", 2)]:
        for progressive in (False, True):
            data = encoded(inks, "JPEG", "CMYK", quality=80, subsampling=subsampling, progressive=progressive)
            end = f"{name}{'-progressive' * progressive}.jpg"
            files[f"cmyk-{end}"] = data
            files[f"cmyk-without-adobe-{end}"] = with_adobe(data, None)
            files[f"ycck-{end}"] = with_adobe(data, 2)
    files["ycck-transform-1.jpg"] = with_adobe(files["cmyk-420.jpg"], 1)
    return files


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    turbo = features.version("libjpeg_turbo")
    lines = [f"# Pillow {features.version('pil')}, libjpeg-turbo {turbo}", "# file  denominator  width height crc32 of RGB"]
    for name, data in sorted(corpus().items()):
        (FOLDER / name).write_bytes(data)
        for denominator in (1, 2, 4, 8):
            with Image.open(io.BytesIO(data)) as image:
                if denominator > 1:
                    image.draft(image.mode, (image.width // denominator, image.height // denominator))
                    if image.decoderconfig[0] != denominator:
                        continue
                crc = zlib.crc32(np.asarray(pixels(image)).tobytes())
                lines.append(f"{name} {denominator} {image.width} {image.height} {crc:08x}")
    (FOLDER / "pixels.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
