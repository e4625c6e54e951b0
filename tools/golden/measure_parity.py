#!/usr/bin/env python3
"""Measures how far each parity profile is from the library it is named after, on any images.

    cargo run --release -p forebay-image --example dump_samples -- IMAGES /tmp/samples PROFILE [--dct-scaling]
    python3 tools/golden/measure_parity.py PROFILE /tmp/samples      (needs numpy, Pillow, and the library)

dump_samples writes what Forebay makes of each image: a training crop (seed 1, epoch 2, number of the image), an evaluation crop and
the full picture. This script makes the same with the library alone, by the crops of make_golden_pixels.py, and prints mean and
greatest difference of the bytes, and how many images are identical. TensorFlow's pictures are floats: they are compared as floats,
and rounded. docs/parity.md has the results.

    python3 tools/golden/measure_parity.py PROFILE --golden FILE     writes the goldens of a profile for testdata/images
"""

import argparse
import pathlib
import zlib

import numpy as np

from make_golden_pixels import IMAGES, bilinear, open_rgb, random_resized_crop, shipped


def eval_size(width, height, resize):
    short, long = min(width, height), max(width, height)
    other = int(resize * long / short)
    return (resize, other) if width <= height else (other, resize)


def train_and_eval(decode, crop, resize):
    """The two transforms, from a library's decode (path to pixels), its way to crop while decoding, and its resize."""

    def train(path, sample):
        image = decode(path)
        x, y, w, h, flipped = random_resized_crop(image.shape[1], image.shape[0], 1, 2, sample)
        out = resize(crop(path, image, (x, y, w, h)), (224, 224))
        return out[:, ::-1] if flipped else out

    def evaluate(path, _):
        image = decode(path)
        height, width = image.shape[:2]
        w, h = eval_size(width, height, 256)
        x, y = round((w - 224) / 2.0), round((h - 224) / 2.0)
        return resize(image, (w, h))[y : y + 224, x : x + 224]

    return {"train": train, "eval": evaluate, "full": lambda path, _: decode(path)}


def cut(_, image, box):
    x, y, w, h = box
    return image[y : y + h, x : x + w]


def pillow():
    from PIL import Image, features

    def resize(image, size):
        return np.asarray(bilinear(Image.fromarray(np.ascontiguousarray(image)), size))

    return f"Pillow {features.version('pil')}", train_and_eval(lambda path: np.asarray(open_rgb(path)), cut, resize)


def opencv():
    import cv2

    def decode(path):
        data = np.frombuffer(pathlib.Path(path).read_bytes(), np.uint8)
        return cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)[..., ::-1]

    def resize(image, size):
        return cv2.resize(np.ascontiguousarray(image), size, interpolation=cv2.INTER_LINEAR)

    return f"OpenCV {cv2.__version__}", train_and_eval(decode, cut, resize)


def tensorflow(dct_method, crop_while_decoding):
    import tensorflow as tf

    def decode(path):
        data = pathlib.Path(path).read_bytes()
        if data[:2] == b"\xff\xd8":
            return tf.io.decode_jpeg(data, channels=3, dct_method=dct_method).numpy()
        return tf.io.decode_image(data, channels=3).numpy()

    def crop(path, image, box):
        data = pathlib.Path(path).read_bytes()
        x, y, w, h = box
        if not crop_while_decoding or data[:2] != b"\xff\xd8":
            return cut(path, image, box)
        return tf.image.decode_and_crop_jpeg(data, [y, x, h, w], channels=3, dct_method=dct_method).numpy()

    def resize(image, size):
        return tf.image.resize(image, (size[1], size[0]), "bilinear", antialias=False).numpy()

    return f"TensorFlow {tf.__version__}", train_and_eval(decode, crop, resize)


def pillow_scaled(size=64, short=72):
    """With dct_scaling: Pillow's draft mode where the crop is large enough, then the crop between pixels."""
    from PIL import Image, features

    def scaled(path, box, target, window):
        with Image.open(path) as image:
            x, y, w, h = box
            fits = [s for s in (8, 4, 2) if target[0] * s <= w and target[1] * s <= h]
            s = fits[0] if fits and image.format == "JPEG" else 1
            if s > 1:
                image.draft(image.mode, (image.width // s, image.height // s))
                assert image.decoderconfig[0] == s, (path, image.decoderconfig)
            image = image.convert("RGB")
        if s == 1:
            return np.asarray(bilinear(image.crop((x, y, x + w, y + h)), target))[window]
        # One side at a time, as make_golden_pixels.bilinear.
        image = image.resize((target[0], image.height), Image.BILINEAR, box=(x / s, 0, (x + w) / s, image.height))
        image = image.resize(target, Image.BILINEAR, box=(0, y / s, target[0], (y + h) / s))
        return np.asarray(image)[window]

    def sizes(path):
        with Image.open(path) as image:
            return image.size

    def train(path, sample):
        *box, flipped = random_resized_crop(*sizes(path), 1, 2, sample)
        out = scaled(path, box, (size, size), slice(None))
        return out[:, ::-1] if flipped else out

    def evaluate(path, _):
        width, height = sizes(path)
        w, h = eval_size(width, height, short)
        x, y = round((w - size) / 2.0), round((h - size) / 2.0)
        return scaled(path, (0, 0, width, height), (w, h), (slice(y, y + size), slice(x, x + size)))

    return f"Pillow {features.version('pil')}", {"train": train, "eval": evaluate}


PROFILES = {
    "pillow": pillow,
    # Goldens alone: train(64) and eval(72, 64), which most of testdata/images are large enough for.
    "pillow-scaled": pillow_scaled,
    "opencv": opencv,
    # What tf.image.decode_and_crop_jpeg does when nothing is said, and with the accurate transform of all other libraries.
    "tensorflow": lambda: tensorflow("", True),
    "tensorflow-accurate": lambda: tensorflow("INTEGER_ACCURATE", False),
}


def compare(folder, name, make):
    version, kinds = make()
    totals = {}
    for line in (folder / "index.txt").read_text().splitlines():
        sample, kind, file, path = line.split(" ", 3)
        theirs = np.ascontiguousarray(kinds[kind](path, int(sample))).reshape(-1).astype(np.float64)
        ours = np.fromfile(folder / file, np.uint8).astype(np.float64)
        ways = {"": theirs, " (rounded)": np.rint(theirs)} if theirs.dtype != np.uint8 and kind != "full" and "tensorflow" in name else {"": theirs}
        for way, values in ways.items():
            difference = np.abs(ours - values)
            entry = totals.setdefault(kind + way, [0, 0.0, 0.0, 0])
            entry[0] += 1
            entry[1] += difference.mean()
            entry[2] = max(entry[2], difference.max())
            entry[3] += int(difference.max() == 0)
    print(f"{name} against {version}")
    for kind, (count, mean, greatest, equal) in totals.items():
        print(f"  {kind:16} {count} images, mean {mean / count:.4f}, greatest {greatest:g}, {equal} identical")


def golden(path, name, make):
    version, kinds = make()
    lines = [f"# {version}", f"# image  crc32 of the bytes of {'train(64, seed 1, epoch 2)  of eval(72, 64)' if 'scaled' in name else 'train(224, seed 1, epoch 2)  of eval(256, 224)'}"]
    for sample, image in enumerate(shipped()):
        sums = [zlib.crc32(np.ascontiguousarray(np.rint(kinds[kind](image, sample)).astype(np.uint8)).tobytes()) for kind in ("train", "eval")]
        lines.append(" ".join([image.relative_to(IMAGES).as_posix(), *(f"{crc:08x}" for crc in sums)]))
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", choices=PROFILES)
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("--golden", type=pathlib.Path)
    options = parser.parse_args()
    make = PROFILES[options.profile]
    if options.golden:
        golden(options.golden, options.profile, make)
    else:
        compare(options.folder, options.profile, make)


if __name__ == "__main__":
    main()
