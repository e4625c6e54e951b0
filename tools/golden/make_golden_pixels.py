#!/usr/bin/env python3
"""Writes testdata/golden-pixels: what Pillow makes of testdata/images, for crates/forebay-image's tests.

    python3 tools/golden/make_golden_pixels.py                 (needs Pillow; numpy for --compare)
    python3 tools/golden/make_golden_pixels.py --compare DIR   mean and greatest difference between DIR's raw samples,
                                                        written by `cargo run --example dump_samples`, and Pillow

Goldens are immutable: run this only for new ones, and say with which Pillow (the version is in each file's first
line). Full pictures are kept as checksums, small resizes as pixels.
"""

import argparse
import math
import pathlib
import zlib

from PIL import Image, features

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGES = ROOT / "testdata" / "images"
GOLDEN = ROOT / "testdata" / "golden-pixels"
MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def version():
    return f"# Pillow {features.version('pil')}, libjpeg-turbo {features.version('libjpeg_turbo')}"


# ---- random numbers and crops, from the definition in forebay-image's documentation -----------------------


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Draws:
    def __init__(self, seed, epoch, sample, purpose):
        key = mix((seed + GAMMA) & MASK)
        for part in (epoch, sample, purpose):
            key = mix(((key ^ part) + GAMMA) & MASK)
        self.state = key

    def next(self):
        self.state = (self.state + GAMMA) & MASK
        return mix(self.state)

    def unit(self):
        return (self.next() >> 11) * 2.0**-53

    def below(self, n):
        return ((self.next() >> 32) * n) >> 32


def random_resized_crop(width, height, seed, epoch, sample, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), flip=0.5):
    """torchvision's RandomResizedCrop.get_params with Forebay's random numbers."""
    flipped = Draws(seed, epoch, sample, 2).unit() < flip
    draws = Draws(seed, epoch, sample, 1)
    logs = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * draws.unit())
        aspect = math.exp(logs[0] + (logs[1] - logs[0]) * draws.unit())
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            y = draws.below(height - h + 1)
            x = draws.below(width - w + 1)
            return x, y, w, h, flipped
    w, h = width, height
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    return (width - w) // 2, (height - h) // 2, w, h, flipped


# ---- what torchvision's transforms do on PIL images --------------------------------------------------------


def bilinear(image, size):
    """Image.resize as Pillow did it up to version 12: columns first. Version 13 does rows first where the height
    shrinks much more, which moves some values by one; one side at a time, all versions agree."""
    return image.resize((size[0], image.height), Image.BILINEAR).resize(size, Image.BILINEAR)


def train(image, size, crop):
    x, y, w, h, flipped = crop
    image = bilinear(image.crop((x, y, x + w, y + h)), (size, size))
    return image.transpose(Image.FLIP_LEFT_RIGHT) if flipped else image


def evaluate(image, resize, crop):
    w, h = image.size
    short, long = min(w, h), max(w, h)
    other = int(resize * long / short)
    image = bilinear(image, (resize, other) if w <= h else (other, resize))
    w, h = image.size
    x, y = round((w - crop) / 2.0), round((h - crop) / 2.0)
    return image.crop((x, y, x + crop, y + crop))


def open_rgb(path):
    with Image.open(path) as image:
        return image.convert("RGB")


def shipped():
    return sorted(p for p in IMAGES.glob("*/*/*") if p.is_file())


def checksum(image):
    return f"{zlib.crc32(image.tobytes()):08x}"


def write_goldens():
    GOLDEN.mkdir(parents=True, exist_ok=True)
    lines = [version(), "# image  width  height  crc32 of the RGB pixels  of train(224, seed 1, epoch 2)  of eval(256, 224)"]
    for sample, path in enumerate(shipped()):
        image = open_rgb(path)
        crop = random_resized_crop(*image.size, 1, 2, sample)
        sums = [checksum(image), checksum(train(image, 224, crop)), checksum(evaluate(image, 256, 224))]
        lines.append(" ".join([path.relative_to(IMAGES).as_posix(), *map(str, image.size), *sums]))
    (GOLDEN / "images.txt").write_text("\n".join(lines) + "\n")

    # Pixels to look at when a checksum differs: one picture at several scales, up, down and by odd factors.
    picture = open_rgb(IMAGES / "train" / "n02782093" / "n02782093_11.JPEG")
    for name, box, size in [
        ("up", (3, 5, 20, 17), (40, 31)),
        ("down", (10, 20, 310, 221), (29, 23)),
        ("mixed", (7, 0, 27, 200), (33, 17)),
        ("same", (100, 60, 132, 84), (32, 24)),
    ]:
        bilinear(picture.crop(box), size).save(GOLDEN / f"resize-{name}-{'-'.join(map(str, box + size))}.png")

    lines = [version(), "# width height seed epoch sample  ->  x y w h flipped"]
    for sample in range(200):
        size = [(500, 375), (375, 500), (181, 137), (4000, 100), (90, 3000), (1, 1), (224, 224)][sample % 7]
        crop = random_resized_crop(*size, sample * 7919, sample % 5, sample)
        lines.append(" ".join(map(str, (*size, sample * 7919, sample % 5, sample, *crop[:4], int(crop[4])))))
    (GOLDEN / "crops.txt").write_text("\n".join(lines) + "\n")


def compare(folder):
    """Parity with Pillow on any images: `index.txt` lists path, kind and file of each raw sample."""
    import numpy as np

    totals = {}
    for line in (folder / "index.txt").read_text().splitlines():
        sample, kind, name, path = line.split(" ", 3)
        image = open_rgb(path)
        if kind == "train":
            image = train(image, 224, random_resized_crop(*image.size, 1, 2, int(sample)))
        elif kind == "eval":
            image = evaluate(image, 256, 224)
        ours = np.fromfile(folder / name, np.uint8).astype(int)
        difference = np.abs(ours - np.asarray(image).reshape(-1))
        entry = totals.setdefault(kind, [0, 0.0, 0, 0])
        entry[0] += 1
        entry[1] += difference.mean()
        entry[2] = max(entry[2], int(difference.max()))
        entry[3] += int(difference.max() == 0)
    print(version())
    for kind, (count, mean, greatest, equal) in totals.items():
        print(f"{kind}: {count} images, mean difference {mean / count:.6f}, greatest {greatest}, {equal} identical")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compare", type=pathlib.Path)
    options = parser.parse_args()
    if options.compare:
        compare(options.compare)
    else:
        write_goldens()


if __name__ == "__main__":
    main()
