#!/usr/bin/env python3
"""Streams boxes and masks: pictures of discs and bars, a list of transforms for detection, one for segmentation.

    python examples/objects.py [--data DIRECTORY] [--pictures N]

Renders pictures with up to four objects, writes them with `forebay.Writer`, and streams an epoch with each list. Boxes
and masks come out where the pixels are: the script compares the two. It ends with a contact sheet, on which both are
drawn over the pictures. Needs numpy and forebay.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import tempfile

import numpy as np

import forebay

CLASSES = ["disc", "bar"]
WIDTH, HEIGHT = 160, 120

DETECTION = [
    forebay.RandomIoUCrop(),
    forebay.Resize((96, 96)),
    forebay.RandomHorizontalFlip(),
    forebay.RandomPhotometricDistort(),
]
SEGMENTATION = [forebay.RandomResizedCrop(96, scale=(0.3, 1.0)), forebay.RandomHorizontalFlip(), forebay.RandomRotation(15)]


def picture(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[list[float]], list[int]]:
    """A picture, its mask (0 is background, 1 a disc, 2 a bar), the boxes of its objects and their labels from 0."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    image = rng.integers(40, 90, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    mask = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    boxes, labels = [], []
    for column in range(rng.integers(1, 5)):
        # Each object has a column of its own, so that none covers another.
        label, w, h = int(rng.integers(2)), int(rng.integers(12, 34)), int(rng.integers(12, 60))
        h = w if label == 0 else h
        left, top = column * 40 + int(rng.integers(0, 40 - w)), int(rng.integers(0, HEIGHT - h))
        inside = (x >= left) & (x < left + w) & (y >= top) & (y < top + h)
        if label == 0:
            inside &= np.hypot(x + 0.5 - left - w / 2, y + 0.5 - top - h / 2) <= w / 2
        image[inside] = rng.integers(150, 255, 3)
        mask[inside] = label + 1
        boxes.append([left / WIDTH, top / HEIGHT, (left + w) / WIDTH, (top + h) / HEIGHT])
        labels.append(label)
    return image, mask, boxes, labels


def write(place: pathlib.Path, count: int) -> None:
    rng = np.random.default_rng(1)
    features = {"image": "image", "boxes": "boxes", "mask": "mask"}
    with forebay.Writer(place, format="indexed", features=features, classes=CLASSES) as writer:
        for _ in range(count):
            image, mask, boxes, labels = picture(rng)
            writer.write(image=image, mask=mask, boxes={"boxes": boxes, "labels": labels})


def detect(place: pathlib.Path) -> None:
    loader = forebay.Loader(place, batch_size=16, transform=DETECTION, columns=["boxes", "mask"], drop_last=False)
    found = 0
    for batch in loader:
        for target, mask in zip(batch["boxes"], batch["mask"], strict=True):
            # {"boxes": float32 (n, 4), "labels": int64 (n,)}: torchvision's detectors count labels from 1 (label_base=1).
            for (x0, y0, x1, y1), label in zip(target["boxes"], target["labels"], strict=True):
                part = mask[int(y0) : int(np.ceil(y1)), int(x0) : int(np.ceil(x1))]
                found += bool((part == label + 1).any())
    print(f"detection: {found} boxes, each around pixels of its class")


def segment(place: pathlib.Path) -> None:
    loader = forebay.Loader(place, batch_size=16, transform=SEGMENTATION, columns=["mask"], drop_last=False)
    pixels = np.zeros(len(CLASSES) + 1, dtype=np.int64)
    for batch in loader:
        pixels += np.bincount(batch["mask"].ravel(), minlength=len(pixels))  # int32, (N, 96, 96)
        bright = batch.images.max(axis=-1) >= 150
        agree = (bright == (batch["mask"] > 0)).mean()
        assert agree > 0.95, agree  # all but the pixels at the edges of objects, which are blends
    print(f"segmentation: {dict(zip(['background', *CLASSES], pixels.tolist(), strict=True))} pixels")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, help="directory for the dataset and the sheet; by default a temporary one")
    parser.add_argument("--pictures", type=int, default=200)
    args = parser.parse_args()
    place = args.data or pathlib.Path(tempfile.mkdtemp(prefix="forebay-objects-"))
    write(place / "packed", args.pictures)
    detect(place / "packed")
    segment(place / "packed")
    sheet = place / "sheet.png"
    subprocess.run(["forebay", "inspect", place / "packed", "--contact-sheet", sheet], check=True, stdout=subprocess.DEVNULL)
    print(f"contact sheet: {sheet}")


if __name__ == "__main__":
    main()
