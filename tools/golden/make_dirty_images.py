#!/usr/bin/env python3
"""Writes testdata/dirty and testdata/golden-encode with Pillow, for the tests of forebay-image and forebay-pack.

    python3 tools/golden/make_dirty_images.py                  (needs Pillow 12)

testdata/dirty: small JPEGs of four inks. testdata/golden-encode: what libjpeg-turbo writes for known pixels, with the
settings of TensorFlow's encode_jpeg; its README names the versions. Goldens are immutable: run this only for new ones.
"""

import pathlib

from PIL import Image, features

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIRTY = ROOT / "testdata" / "dirty"
GOLDEN = ROOT / "testdata" / "golden-encode"
SOURCE = ROOT / "testdata" / "images" / "train" / "n02782093" / "n02782093_11.JPEG"


def pixels(width, height):
    """Gradients with hard edges; crates/forebay-image/tests/encode.rs has the same formula."""
    image = Image.new("RGB", (width, height))
    for y in range(height):
        for x in range(width):
            edge = 90 if (x // 8 + y // 5) % 2 else 0
            image.putpixel((x, y), ((x * 3 + edge) % 256, (y * 5 + edge) % 256, (x * y) % 256))
    return image


def save(image, name, quality):
    image.save(GOLDEN / name, "JPEG", quality=quality, subsampling=2, dpi=(300, 300))


def dirty():
    DIRTY.mkdir(exist_ok=True)
    inks = Image.new("CMYK", (48, 36))
    for y in range(36):
        for x in range(48):
            inks.putpixel((x, y), (x * 5, y * 7, 255 - x * 5, (x + y) % 64))
    cmyk = DIRTY / "cmyk.jpg"
    inks.save(cmyk, "JPEG", quality=90)
    data = bytearray(cmyk.read_bytes())
    adobe = data.index(b"Adobe")
    assert data[adobe + 11] == 0, "inks as they are"
    # The same bytes under the flag for YCCK: other colours, and as valid.
    data[adobe + 11] = 2
    (DIRTY / "ycck.jpg").write_bytes(data)


def golden():
    GOLDEN.mkdir(exist_ok=True)
    for quality in (75, 100):
        save(pixels(67, 45), f"rgb-67x45-q{quality}.jpg", quality)
    save(pixels(67, 45).getchannel(0), "grey-67x45-q95.jpg", 95)
    small = Image.open(SOURCE).resize((85, 64), Image.Resampling.BILINEAR)
    save(small, "shrunk-85x64-q95.jpg", 95)
    pil, turbo = features.version("pil"), features.version("libjpeg_turbo")
    (GOLDEN / "README").write_text(
        f"Written by tools/golden/make_dirty_images.py with Pillow {pil}, libjpeg-turbo {turbo}.\n"
    )


if __name__ == "__main__":
    dirty()
    golden()
