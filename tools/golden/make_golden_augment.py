#!/usr/bin/env python3
"""Writes testdata/golden-augment: what torchvision makes of PIL images, for crates/forebay-image's tests.

    python3 tools/golden/make_golden_augment.py [TABLE...]        (needs torchvision, Pillow and numpy)

Goldens are immutable: run this only for new ones, and say with which versions (they are in each file's first line).
Pictures are kept as checksums.
"""

import pathlib
import sys
import zlib

import numpy
import PIL
import torch
import torchvision
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from make_golden_pixels import Draws, IMAGES, bilinear, open_rgb, random_resized_crop, shipped

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "golden-augment"
VERSION = f"# torchvision {torchvision.__version__}, torch {torch.__version__}, Pillow {PIL.__version__}"

# A wide, a square and a tall part of one picture, with dark, light and saturated colours.
PARTS = [(100, 60, 196, 132), (60, 40, 124, 104), (150, 20, 190, 110)]
OPERATIONS = list(v2.RandAugment._AUGMENTATION_SPACE)


def checksum(image):
    return f"{zlib.crc32(image.tobytes()):08x}"


def apply(image, operation, magnitude):
    augment = v2.RandAugment()
    return augment._apply_image_or_video_transform(
        image, operation, magnitude, interpolation=augment.interpolation, fill=augment._fill
    )


def magnitudes(space, operation, bins, width, height):
    function, signed = space._AUGMENTATION_SPACE[operation]
    values = function(bins, height, width)
    return ([0.0] * bins if values is None else [float(value) for value in values]), signed


def operations():
    """One operation with one magnitude: operation, magnitude, part, checksum."""
    picture = open_rgb(IMAGES / "train" / "n02782093" / "n02782093_11.JPEG")
    lines = [VERSION, "# operation magnitude x y x1 y1 crc32"]

    def add(name, magnitude, box, image):
        lines.append(" ".join([name, repr(magnitude), *map(str, box), checksum(image)]))

    for box in PARTS:
        part = picture.crop(box)
        for operation in OPERATIONS:
            chosen = set()
            for space in (v2.RandAugment, v2.TrivialAugmentWide):
                values, signed = magnitudes(space, operation, 31, *part.size)
                some = values[::5] + values[-1:]
                chosen |= set(some) | ({-value for value in some if value} if signed else set())
            for magnitude in sorted(chosen):
                add(operation, magnitude, box, apply(part, operation, magnitude))
        for factor in (0.0, 0.1, 0.5, 1.0, 1.4, 3.0):
            add("brightness", factor, box, F.adjust_brightness(part, factor))
            add("contrast", factor, box, F.adjust_contrast(part, factor))
            add("saturation", factor, box, F.adjust_saturation(part, factor))
        for turn in (-0.5, -0.1, -0.001, 0.0, 0.003, 0.1, 0.33, 0.5):
            add("hue", turn, box, F.adjust_hue(part, turn))
        add("grayscale", 0.0, box, F.rgb_to_grayscale(part, 3))
    (GOLDEN / "operations.txt").write_text("\n".join(lines) + "\n")


MOVING = ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"]
MODES = [InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC]


def motions():
    """Operations that move pictures, by interpolation and fill: operation, magnitude, mode, fill, part, checksum."""
    picture = open_rgb(IMAGES / "train" / "n02782093" / "n02782093_11.JPEG")
    lines = [VERSION, "# operation magnitude interpolation fill(r g b) x y x1 y1 crc32"]
    for box in PARTS:
        part = picture.crop(box)
        for operation in MOVING:
            chosen = set()
            for space in (v2.RandAugment, v2.TrivialAugmentWide):
                values, _signed = magnitudes(space, operation, 31, *part.size)
                chosen |= set(values[::5]) | {-value for value in values[::5] if value}
            if operation == "Rotate":
                chosen |= {90.0, -90.0, 180.0}
            for magnitude in sorted(chosen):
                for mode in MODES:
                    for fill in ((0, 0, 0), (124, 116, 104)):
                        if mode == InterpolationMode.NEAREST and not any(fill):
                            continue  # in operations.txt
                        given = v2.RandAugment(interpolation=mode, fill=list(fill) if any(fill) else None)
                        image = given._apply_image_or_video_transform(
                            part, operation, magnitude, interpolation=given.interpolation, fill=given._fill
                        )
                        words = [operation, repr(magnitude), mode.value, *map(str, fill), *map(str, box)]
                        lines.append(" ".join([*words, checksum(image)]))
    (GOLDEN / "motions.txt").write_text("\n".join(lines) + "\n")


def crops():
    """CenterCrop of parts, also of more than there is: part, height, width, checksum."""
    picture = open_rgb(IMAGES / "train" / "n02782093" / "n02782093_11.JPEG")
    lines = [VERSION, "# x y x1 y1 height width crc32"]
    for box in PARTS:
        part = picture.crop(box)
        for size in ((32, 32), (33, 40), (72, 96), (100, 20), (20, 100), (111, 97), (150, 151)):
            image = F.center_crop(part, list(size))
            lines.append(" ".join([*map(str, box), *map(str, size), checksum(image)]))
    (GOLDEN / "crops.txt").write_text("\n".join(lines) + "\n")


def bins():
    """Magnitudes of all bins: space, operation, bins, width, height, values."""
    lines = [VERSION, "# space operation bins width height magnitudes"]
    for space in (v2.RandAugment, v2.TrivialAugmentWide):
        for count, width, height in ((31, 224, 224), (10, 200, 96), (2, 64, 64)):
            for operation in OPERATIONS:
                values, _signed = magnitudes(space, operation, count, width, height)
                numbers = map(repr, values)
                lines.append(" ".join([space.__name__, operation, str(count), str(width), str(height), *numbers]))
    (GOLDEN / "bins.txt").write_text("\n".join(lines) + "\n")


# ---- whole lists, with the random numbers that forebay-image documents --------------------------------------------

VERTICAL, JITTER, GRAYSCALE, RAND_AUGMENT, TRIVIAL = 3, 4, 5, 6, 7


def draws(sample, purpose, before=0):
    return Draws(1, 2, sample, purpose + (before << 32))


def jitter(image, numbers, bounds):
    order = [0, 1, 2, 3]
    for last in (3, 2, 1):
        other = numbers.below(last + 1)
        order[last], order[other] = order[other], order[last]
    factors = [low + (high - low) * numbers.unit() for low, high in bounds]
    change = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
    for which in order:
        image = change[which](image, factors[which])
    return image


def augment(image, space, numbers, bin_):
    operation = OPERATIONS[numbers.below(len(OPERATIONS))]
    if bin_ is None:
        bin_ = numbers.below(31)
    negative = numbers.unit() < 0.5
    values, signed = magnitudes(space, operation, 31, *image.size)
    magnitude = values[bin_]
    return apply(image, operation, -magnitude if signed and negative else magnitude)


def train(image, sample):
    """RandomResizedCrop((48, 64)), flips, ColorJitter, RandomGrayscale, RandAugment(2, 9), another flip."""
    x, y, w, h, flipped = random_resized_crop(*image.size, 1, 2, sample)
    image = bilinear(image.crop((x, y, x + w, y + h)), (64, 48))
    if flipped:
        image = F.horizontal_flip(image)
    if draws(sample, VERTICAL).unit() < 0.5:
        image = F.vertical_flip(image)
    image = jitter(image, draws(sample, JITTER), [(0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1)])
    if draws(sample, GRAYSCALE).unit() < 0.2:
        image = F.rgb_to_grayscale(image, 3)
    numbers = draws(sample, RAND_AUGMENT)
    for _ in range(2):
        image = augment(image, v2.RandAugment, numbers, 9)
    if draws(sample, 2, before=1).unit() < 0.5:
        image = F.horizontal_flip(image)
    return image


def evaluate(image, sample):
    """Resize(80), CenterCrop((64, 72)), TrivialAugmentWide()."""
    w, h = image.size
    long = int(80 * max(w, h) / min(w, h))
    image = F.center_crop(bilinear(image, (80, long) if w <= h else (long, 80)), [64, 72])
    return augment(image, v2.TrivialAugmentWide, draws(sample, TRIVIAL), None)


def lists():
    lines = [VERSION, "# image crc32 of train, crc32 of evaluate (see tools/golden/make_golden_augment.py); seed 1, epoch 2"]
    for sample, path in enumerate(shipped()):
        image = open_rgb(path)
        sums = [checksum(train(image, sample)), checksum(evaluate(image, sample))]
        lines.append(" ".join([path.relative_to(IMAGES).as_posix(), *sums]))
    (GOLDEN / "lists.txt").write_text("\n".join(lines) + "\n")


# ---- AutoAugment and GaussianBlur ------------------------------------------------------------------------------------

AUTO_AUGMENT = 12
POLICIES = list(v2.AutoAugmentPolicy)


def auto_operation(image, choice, negative):
    operation, _probability, bin_ = choice
    values, signed = magnitudes(v2.AutoAugment, operation, 10, *image.size)
    magnitude = values[bin_ or 0]
    return apply(image, operation, -magnitude if signed and negative else magnitude)


def auto_pairs():
    """Both operations of each pair of each policy: policy, pair, whether negative, part, checksum."""
    picture = open_rgb(IMAGES / "train" / "n02782093" / "n02782093_11.JPEG")
    lines = [VERSION, "# policy pair negative x y x1 y1 crc32"]
    for policy in POLICIES:
        for number, pair in enumerate(v2.AutoAugment(policy)._policies):
            for negative in (0, 1):
                box = PARTS[number % len(PARTS)]
                image = picture.crop(box)
                for choice in pair:
                    image = auto_operation(image, choice, negative)
                lines.append(" ".join([policy.value, str(number), str(negative), *map(str, box), checksum(image)]))
    (GOLDEN / "auto-pairs.txt").write_text("\n".join(lines) + "\n")


def auto_augment(image, sample, policy):
    numbers = draws(sample, AUTO_AUGMENT)
    policies = v2.AutoAugment(policy)._policies
    for choice in policies[numbers.below(len(policies))]:
        applies = numbers.unit() < choice[1]
        negative = numbers.unit() < 0.5
        if applies:
            image = auto_operation(image, choice, negative)
    return image


def auto_lists():
    """CenterCrop((48, 64)) and AutoAugment with the documented random numbers: image, checksum for each policy."""
    lines = [VERSION, "# image crc32 of imagenet, of cifar10, of svhn; seed 1, epoch 2"]
    for sample, path in enumerate(shipped()):
        image = F.center_crop(open_rgb(path), [48, 64])
        sums = [checksum(auto_augment(image, sample, policy)) for policy in POLICIES]
        lines.append(" ".join([path.relative_to(IMAGES).as_posix(), *sums]))
    (GOLDEN / "auto-lists.txt").write_text("\n".join(lines) + "\n")


def blurs():
    """Blurred parts, as pictures, since values may differ by one: part, kernel width and height, sigma, file."""
    picture = open_rgb(IMAGES / "train" / "n02782093" / "n02782093_11.JPEG")
    lines = [VERSION, "# x y x1 y1 width height sigma file"]
    for box in PARTS:
        for width, height, sigma in ((3, 3, 0.5), (5, 9, 2.0), (23, 23, 1.3), (35, 35, 9.0)):
            name = f"blur-{len(lines) - 2}.png"
            F.gaussian_blur(picture.crop(box), [width, height], [sigma, sigma]).save(GOLDEN / name, optimize=True)
            lines.append(" ".join([*map(str, box), str(width), str(height), repr(sigma), name]))
    (GOLDEN / "blurs.txt").write_text("\n".join(lines) + "\n")


def affines():
    """Affine maps: degrees, translation, scale, shears, interpolation, fill, part, checksum."""
    picture = open_rgb(IMAGES / "train" / "n02782093" / "n02782093_11.JPEG")
    lines = [VERSION, "# degrees x y scale shear-x shear-y interpolation red green blue x y x1 y1 crc32"]
    maps = [
        (0.0, (0, 0), 1.0, (0.0, 0.0)),
        (90.0, (0, 0), 1.0, (0.0, 0.0)),
        (-33.7, (0, 0), 1.0, (0.0, 0.0)),
        (0.0, (7, -12), 1.0, (0.0, 0.0)),
        (0.0, (0, 0), 0.6, (0.0, 0.0)),
        (0.0, (0, 0), 1.9, (0.0, 0.0)),
        (0.0, (0, 0), 1.0, (21.5, 0.0)),
        (0.0, (0, 0), 1.0, (0.0, -17.25)),
        (12.5, (-3, 5), 0.83, (9.0, 4.5)),
        (-171.3, (20, 1), 1.31, (-40.0, 33.3)),
        (359.99, (0, 0), 0.05, (1.0, 1.0)),
    ]
    for box in PARTS:
        part = picture.crop(box)
        for degrees, move, scale, shear in maps:
            for mode in (InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC):
                for fill in ([0, 0, 0], [124, 7, 255]):
                    found = F.affine(part, degrees, list(move), scale, list(shear), interpolation=mode, fill=fill)
                    numbers = [degrees, *move, scale, *shear]
                    lines.append(" ".join([*map(repr, numbers), mode.value, *map(str, fill), *map(str, box), checksum(found)]))
    (GOLDEN / "affines.txt").write_text("\n".join(lines) + "\n")


def numbers():
    """ToDtype(float32, scale=True) and Normalize of every byte, as hexadecimal binary32."""
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    image = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16).repeat(3, 1, 1)
    scaled = F.to_dtype(image, torch.float32, scale=True)
    lines = [VERSION, "# byte scaled red green blue float16-of-red, bits in hexadecimal"]
    for v in range(256):
        place = (v // 16, v % 16)
        found = [scaled[0][place], *(F.normalize(scaled, mean, std)[c][place] for c in range(3))]
        bits = [f"{numpy.float32(value.item()).view(numpy.uint32):08x}" for value in found]
        half = f"{numpy.float32(found[1].item()).astype(numpy.float16).view(numpy.uint16):04x}"
        brain = f"{found[1].to(torch.bfloat16).view(torch.uint16).item():04x}"
        lines.append(" ".join([str(v), *bits, half, brain]))
    lines[1] += ", bfloat16-of-red"
    (GOLDEN / "numbers.txt").write_text("\n".join(lines) + "\n")


TABLES = {
    "operations": operations,
    "motions": motions,
    "crops": crops,
    "bins": bins,
    "lists": lists,
    "numbers": numbers,
    "auto-pairs": auto_pairs,
    "auto-lists": auto_lists,
    "blurs": blurs,
    "affines": affines,
}


def main():
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or TABLES:
        TABLES[name]()


if __name__ == "__main__":
    main()
