#!/usr/bin/env python3
"""Writes testdata/golden-geometry: where torchvision's v2 moves boxes, keypoints and masks, for crates/forebay-image's tests.

    python3 tools/golden/make_golden_geometry.py [TABLE...]        (needs torchvision, Pillow and numpy)

Goldens are immutable: run this only for new ones, and say with which versions (they are in each file's first line).
Masks and pictures are kept as checksums. Boxes and keypoints are computed in binary64.
"""

import pathlib
import random
import sys
import unittest.mock
import zlib

import numpy
import PIL
import torch
import torchvision
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from make_golden_pixels import Draws, IMAGES, bilinear, open_rgb, shipped

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "golden-geometry"
VERSION = f"# torchvision {torchvision.__version__}, torch {torch.__version__}, Pillow {PIL.__version__}"


def ids(width, height, dtype):
    """A mask: uint8 numbers that look random, or an int32 number for each pixel."""
    y, x = numpy.mgrid[0:height, 0:width]
    numbers = (x * 7 + y * 13 + x * y // 5) % 251 if dtype == numpy.uint8 else x + y * width + 1
    return tv_tensors.Mask(torch.from_numpy(numbers.astype(dtype)))


def checksum(array):
    return f"{zlib.crc32(numpy.ascontiguousarray(array).tobytes()):08x}"


def stored_numbers(numbers, count, low, high):
    """Binary32 numbers, as features store them."""
    return [float(numpy.float32(numbers.uniform(low, high))) for _ in range(count)]


def stored_boxes(numbers, count):
    """Normalized boxes; some reach over the border, some are very small."""
    boxes = []
    for _ in range(count):
        x, y = stored_numbers(numbers, 2, -0.05, 0.9)
        w, h = stored_numbers(numbers, 2, 0.005, 0.6)
        boxes.append([x, y, float(numpy.float32(x + w)), float(numpy.float32(y + h))])
    return boxes


def in_pixels(stored, width, height):
    scale = torch.tensor([width, height] * (len(stored[0]) // 2), dtype=torch.float64)
    return torch.tensor(stored, dtype=torch.float64) * scale


def as_boxes(stored, width, height):
    return tv_tensors.BoundingBoxes(in_pixels(stored, width, height), format="XYXY", canvas_size=(height, width))


def kept(boxes):
    """The boxes that ClampBoundingBoxes and SanitizeBoundingBoxes leave, and their indices."""
    boxes = v2.ClampBoundingBoxes()(boxes)
    narrow = tv_tensors.wrap(boxes.to(torch.float32), like=boxes)
    numbers = torch.arange(len(boxes))
    _, numbers = v2.SanitizeBoundingBoxes(labels_getter=lambda pair: pair[1])((narrow, numbers))
    return boxes, numbers.tolist()


def words(numbers):
    return ",".join(repr(float(number)) for number in numbers)


def listed(rows):
    return ";".join(map(words, rows))


def places(rows):
    """Results, which are compared within 1e-4 pixel."""
    return ";".join(",".join(f"{number:.6f}".rstrip("0").rstrip(".") for number in row) for row in rows.tolist())


# ---- chains of steps ------------------------------------------------------------------------------------------------


def step(numbers, width, height):
    """A random step of an image of this size: its text, and the function."""
    kind = numbers.choice(["crop", "resize", "hflip", "vflip", "rotate", "affine", "center"])
    if kind == "crop":
        w, h = numbers.randint(max(2, width // 2), width), numbers.randint(max(2, height // 2), height)
        x, y = numbers.randint(0, width - w), numbers.randint(0, height - h)
        return f"crop:{x},{y},{w},{h}", lambda value: F.crop(value, y, x, h, w)
    if kind == "resize":
        w, h = numbers.randint(5, 150), numbers.randint(5, 150)
        return f"resize:{w},{h}", lambda value: F.resize(value, [h, w], antialias=True)
    if kind == "hflip":
        return kind, F.horizontal_flip
    if kind == "vflip":
        return kind, F.vertical_flip
    if kind == "rotate":
        angle = numbers.choice([90.0, 180.0, 270.0, -45.0, numbers.uniform(-180, 180), numbers.uniform(-20, 20)])
        return f"rotate:{angle!r}", lambda value: F.rotate(value, angle, fill=fill(value))
    if kind == "affine":
        angle, scale = numbers.uniform(-30, 30), numbers.choice([1.0, numbers.uniform(0.5, 1.7)])
        move = [numbers.randint(-9, 9), numbers.randint(-9, 9)]
        shear = [numbers.choice([0.0, numbers.uniform(-15, 15)]), numbers.choice([0.0, numbers.uniform(-15, 15)])]
        text = f"affine:{words([angle, *move, scale, *shear])}"
        return text, lambda value: F.affine(value, angle, move, scale, shear, fill=fill(value))
    # Where the image is narrower by an odd number, torchvision's boxes and pixels differ by one.
    w, h = (numbers.choice([numbers.randint(side // 2, side), side + 2 * numbers.randint(1, 9)]) for side in (width, height))
    return f"center:{w},{h}", lambda value: F.center_crop(value, [h, w])


def fill(value):
    return 0 if isinstance(value, tv_tensors.Mask) else None


def chains():
    """Steps on boxes, keypoints and masks."""
    numbers = random.Random(190)
    lines = [VERSION, "# width height steps boxes points moved-boxes kept moved-points crc32-of-uint8 crc32-of-int32"]
    for count in [1] * 50 + [2] * 50 + [3] * 40 + [5] * 30:
        size = (numbers.randint(8, 160), numbers.randint(8, 160))
        stored, points = stored_boxes(numbers, 4), [stored_numbers(numbers, 2, 0, 1) for _ in range(3)]
        moved = as_boxes(stored, *size)
        where = tv_tensors.KeyPoints(in_pixels(points, *size), canvas_size=size[::-1])
        masks = [ids(*size, numpy.uint8), ids(*size, numpy.int32)]
        texts = []
        for _ in range(count):
            text, function = step(numbers, masks[0].shape[1], masks[0].shape[0])
            texts.append(text)
            moved, where = function(moved), function(where)
            masks = [function(mask) for mask in masks]
        moved, numbers_kept = kept(moved)
        row = [*map(str, size), "/".join(texts), listed(stored), listed(points), places(moved)]
        row += [",".join(map(str, numbers_kept)) or "-", places(where)]
        lines.append(" ".join([*row, *(checksum(mask.numpy()) for mask in masks)]))
    (GOLDEN / "chains.txt").write_text("\n".join(lines) + "\n")


def nearest():
    """The pixels that a mask of one row keeps: width, new width, their numbers."""
    lines = [VERSION, "# width new-width columns"]
    numbers = random.Random(191)
    pairs = [(w, n) for w in (1, 2, 3, 7, 16) for n in (1, 2, 3, 5, 14, 31)]
    pairs += [(numbers.randint(1, 2000), numbers.randint(1, 120)) for _ in range(30)]
    for width, new in pairs:
        row = torch.arange(width, dtype=torch.int32).reshape(1, width)
        found = F.resize_mask(row, [1, new])[0].tolist()
        lines.append(f"{width} {new} {','.join(map(str, found))}")
    (GOLDEN / "nearest.txt").write_text("\n".join(lines) + "\n")


# ---- whole lists, with the random numbers that forebay-image documents --------------------------------------------

FLIP, ROTATION, IOU_CROP, DISTORT = 2, 13, 15, 16


def draws(sample, purpose):
    return Draws(1, 2, sample, purpose)


def iou_crop(boxes, image, sample):
    """The parameters that torchvision's RandomIoUCrop draws from our random numbers."""
    numbers = draws(sample, IOU_CROP)
    integer = lambda low, high, size: torch.tensor([low + numbers.below(high - low)])
    units = lambda count: torch.tensor([numbers.unit() for _ in range(count)], dtype=torch.float64)
    with unittest.mock.patch("torch.randint", integer), unittest.mock.patch("torch.rand", units):
        return v2.RandomIoUCrop().make_params([boxes, image])


def distort(image, sample):
    numbers = draws(sample, DISTORT)
    factors = []
    for low, high in [(0.875, 1.125), (0.5, 1.5), (0.5, 1.5), (-0.05, 0.05)]:
        applies = numbers.unit() < 0.5
        factor = low + (high - low) * numbers.unit()
        factors.append(factor if applies else None)
    before, permutes = numbers.unit() < 0.5, numbers.unit() < 0.5
    order = [0, 1, 2]
    for last in (2, 1):
        other = numbers.below(last + 1)
        order[last], order[other] = order[other], order[last]
    names = ["brightness_factor", "contrast_factor", "saturation_factor", "hue_factor"]
    params = dict(zip(names, factors)) | {"contrast_before": before, "channel_permutation": order if permutes else None}
    return v2.RandomPhotometricDistort().transform(image, params)


def detection():
    """RandomIoUCrop(), Resize((48, 64)), RandomHorizontalFlip(), RandomPhotometricDistort(), RandomRotation(10)."""
    lines = [VERSION, "# image boxes crop moved-boxes kept crc32-of-mask crc32-of-pixels; seed 1, epoch 2"]
    numbers = random.Random(192)
    for sample, path in enumerate(shipped()):
        image = open_rgb(path)
        stored = stored_boxes(numbers, 3)
        boxes, mask = as_boxes(stored, *image.size), ids(*image.size, numpy.uint8)
        params = iou_crop(boxes, image, sample)
        crop = v2.RandomIoUCrop()
        image, boxes, mask = (crop.transform(value, params) for value in (image, boxes, mask))
        image, boxes, mask = bilinear(image, (64, 48)), F.resize(boxes, [48, 64]), F.resize(mask, [48, 64])
        if draws(sample, FLIP).unit() < 0.5:
            image, boxes, mask = map(F.horizontal_flip, (image, boxes, mask))
        image = distort(image, sample)
        angle = -10.0 + 20.0 * draws(sample, ROTATION).unit()
        image, boxes, mask = F.rotate(image, angle), F.rotate(boxes, angle), F.rotate(mask, angle, fill=0)
        moved, numbers_kept = kept(boxes)
        place = ",".join(str(params[name]) for name in ("left", "top", "width", "height")) if params else "-"
        row = [path.relative_to(IMAGES).as_posix(), listed(stored), place, places(moved)]
        row += [",".join(map(str, numbers_kept)) or "-", checksum(mask.numpy()), f"{zlib.crc32(image.tobytes()):08x}"]
        lines.append(" ".join(row))
    (GOLDEN / "detection.txt").write_text("\n".join(lines) + "\n")


TABLES = {"chains": chains, "nearest": nearest, "detection": detection}


def main():
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or TABLES:
        TABLES[name]()


if __name__ == "__main__":
    main()
