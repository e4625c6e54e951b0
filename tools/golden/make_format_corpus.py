#!/usr/bin/env python3
"""Writes testdata/formats: small images in every format and variant that is decoded, and what Pillow makes of them.

    python3 tools/golden/make_format_corpus.py                (needs Pillow with WebP, opencv-python-headless, numpy)

`pixels.txt` has a line for each file: name, width, height, CRC-32 of Image.convert("RGB") (JPEG with four inks: of
the inks, since Pillow's own conversion rounds otherwise), then width, height and CRC-32 after
ImageOps.exif_transpose. `scaled.txt` has what libjpeg's scaled transform gives (Pillow's draft mode) at 1/2, 1/4
and 1/8. Goldens are immutable: run this only for new ones.
"""

import io
import pathlib
import struct
import zlib

import cv2
import numpy as np
from PIL import Image, ImageOps, features

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "testdata" / "formats"


def picture(width, height, channels=3, seed=1):
    """Waves, edges and noise."""
    rng = np.random.default_rng(seed * 1000 + width * 7 + height)
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for c in range(channels):
        wave = 128 + 80 * np.sin(x * (0.11 + 0.03 * c) + y * 0.07) + 30 * ((x // 9 + y // 7) % 2)
        planes.append(wave + rng.normal(0, 9, (height, width)))
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def exif(orientation, big_endian=False, padding=0):
    """A TIFF structure with other tags around the orientation."""
    e = ">" if big_endian else "<"
    entries = [(0x010F, 2, 4, b"abc\0"), (0x0112, 3, 1, struct.pack(e + "HH", orientation, 0)), (0x0131, 2, 4, b"xyz\0")]
    body = struct.pack(e + "H", len(entries))
    for tag, kind, count, value in entries:
        body += struct.pack(e + "HHI", tag, kind, count) + value
    body += struct.pack(e + "I", 0)
    return (b"MM" if big_endian else b"II") + struct.pack(e + "HI", 42, 8 + padding) + bytes(padding) + body


def encoded(array, kind, mode=None, **options):
    out = io.BytesIO()
    Image.fromarray(array, mode).save(out, kind, **options)
    return out.getvalue()


def opencv(array, factors, progressive=False):
    """Samplings that Pillow does not write."""
    options = [cv2.IMWRITE_JPEG_QUALITY, 88, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factors]
    options += [cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive)]
    return cv2.imencode(".jpg", np.ascontiguousarray(array[..., ::-1]), options)[1].tobytes()


def corpus():
    files = {}
    rgb, grey = picture(61, 45), picture(61, 45, 1)[..., 0]
    for name, sampling in [("444", 0), ("422", 1), ("420", 2)]:
        files[f"{name}.jpg"] = encoded(rgb, "JPEG", quality=85, subsampling=sampling)
        files[f"{name}-progressive.jpg"] = encoded(rgb, "JPEG", quality=85, subsampling=sampling, progressive=True)
        files[f"{name}-restarts.jpg"] = encoded(rgb, "JPEG", quality=85, subsampling=sampling, restart_marker_blocks=3)
    files["440.jpg"] = opencv(rgb, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440)
    files["411.jpg"] = opencv(rgb, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411)
    files["440-progressive.jpg"] = opencv(rgb, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440, True)
    files["grey.jpg"] = encoded(grey, "JPEG", quality=85)
    files["grey-progressive.jpg"] = encoded(grey, "JPEG", quality=85, progressive=True)
    files["rgb.jpg"] = encoded(rgb, "JPEG", quality=85, keep_rgb=True)
    files["cmyk.jpg"] = encoded(picture(61, 45, 4), "JPEG", "CMYK", quality=90)
    files["cmyk-progressive.jpg"] = encoded(picture(61, 45, 4), "JPEG", "CMYK", quality=90, progressive=True)
    files["trailing.jpg"] = files["420.jpg"] + b"\0\xff\xd8 after the end"
    large = picture(203, 151, seed=3)
    for name, sampling in [("444", 0), ("422", 1), ("420", 2)]:
        files[f"large-{name}.jpg"] = encoded(large, "JPEG", quality=92, subsampling=sampling)
    files["large-440.jpg"] = opencv(large, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440)
    files["large-411.jpg"] = opencv(large, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411)
    files["large-progressive.jpg"] = encoded(large, "JPEG", quality=92, progressive=True)
    files["large-grey.jpg"] = encoded(large[..., 0], "JPEG", quality=92)

    alpha = picture(37, 29, 4)
    files["rgb.png"] = encoded(picture(37, 29), "PNG")
    files["rgba.png"] = encoded(alpha, "PNG")
    files["grey.png"] = encoded(alpha[..., 0], "PNG")
    files["grey-alpha.png"] = encoded(np.ascontiguousarray(alpha[..., :2]), "PNG", "LA")
    for bits, colours in [(1, 2), (2, 4), (4, 16), (8, 200)]:
        out = io.BytesIO()
        Image.fromarray(picture(37, 29)).quantize(colours).save(out, "PNG", bits=bits)
        files[f"palette-{bits}.png"] = out.getvalue()
    out = io.BytesIO()
    Image.fromarray(picture(37, 29)).quantize(16).save(out, "PNG", transparency=3)
    files["palette-transparent.png"] = out.getvalue()
    files["interlaced.png"] = adam7(picture(37, 29))
    files["bits-1.png"] = encoded((grey > 128).astype(np.uint8) * 255, "PNG", "L")

    for name, options in [("lossy", {"quality": 80}), ("lossless", {"lossless": True}), ("lossy-sharp", {"quality": 97, "method": 6})]:
        files[f"{name}.webp"] = encoded(picture(61, 45), "WEBP", **options)
        files[f"{name}-alpha.webp"] = encoded(picture(61, 45, 4), "WEBP", **options)
    files["lossy-grey.webp"] = encoded(np.stack([grey] * 3, -1), "WEBP", quality=60)
    files["lossless-few-colours.webp"] = encoded((picture(61, 45) // 128) * 128, "WEBP", lossless=True)
    for side in [1, 2, 17]:
        files[f"lossy-{side}.webp"] = encoded(picture(side, side + 1), "WEBP", quality=75)

    turned = picture(45, 30, seed=5)
    for i in range(1, 9):
        big = i % 2 == 0
        data = encoded(turned, "JPEG", quality=90, subsampling=i % 3)
        files[f"orientation-{i}.jpg"] = with_app1(data, exif(i, big, padding=i * 2))
    files["orientation-6.png"] = encoded(turned, "PNG", exif=exif(6))
    files["orientation-5-progressive.jpg"] = encoded(turned, "JPEG", quality=90, progressive=True, exif=b"Exif\0\0" + exif(5))
    files["orientation-8.webp"] = encoded(turned, "WEBP", quality=90, exif=exif(8, True))
    files["orientation-9.jpg"] = with_app1(encoded(turned, "JPEG", quality=90), exif(9))
    return files


def with_app1(jpeg, tiff):
    payload = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]


def adam7(array):
    """An interlaced PNG, which Pillow does not write."""
    height, width, _ = array.shape
    raw = b""
    for x0, y0, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]:
        part = array[y0::dy, x0::dx]
        if part.size:
            raw += b"".join(b"\0" + row.tobytes() for row in part)

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")


def described(image):
    return f"{image.width} {image.height} {zlib.crc32(image.tobytes()):08x}"


def pixels(image):
    """As RGB; inks as Forebay turns them to light, from Pillow's inks."""
    if image.mode != "CMYK":
        return image.convert("RGB")
    inks = 255 - np.asarray(image).astype(np.uint32)
    return Image.fromarray((inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8))


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    version = f"# Pillow {features.version('pil')}, libjpeg-turbo {features.version('libjpeg_turbo')}, libwebp {features.version('webp')}"
    lines = [version, "# file  width height crc32 of RGB  the same with EXIF orientation"]
    scaled = [version, "# file  scale  width height crc32 of RGB"]
    for name, data in corpus().items():
        (FOLDER / name).write_bytes(data)
        with Image.open(io.BytesIO(data)) as image:
            lines.append(f"{name} {described(pixels(image))} {described(pixels(ImageOps.exif_transpose(image)))}")
        if name.startswith("large"):
            for denominator in (2, 4, 8):
                with Image.open(io.BytesIO(data)) as image:
                    size = (image.width // denominator, image.height // denominator)
                    image.draft(image.mode, size)
                    assert image.decoderconfig[0] == denominator, image.decoderconfig
                    scaled.append(f"{name} {denominator} {described(image.convert('RGB'))}")
    (FOLDER / "pixels.txt").write_text("\n".join(lines) + "\n")
    (FOLDER / "scaled.txt").write_text("\n".join(scaled) + "\n")


if __name__ == "__main__":
    main()
