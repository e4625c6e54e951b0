#!/usr/bin/env python3
"""One loader, measured: what tools/peers/bench_peers.py runs, each time in a process of its own.

    python tools/peers/bench_peer.py PEER IMAGES WORK --transform train|eval --threads N --seconds S --batch B

Prints a line of JSON: images/s of whole batches taken during S seconds after a warm-up, the processor time of an image
in that time, the seconds from before the peer's import to its first batch, the time of `next` when a batch had every
chance to be ready (for loaders that work ahead), and the peak of resident memory. Time and memory include worker
processes.

Every peer gives uint8 batches of 224 x 224, with labels where it has them. Peers that decode bytes get random crops from
the one function here, drawn as torchvision draws them; the others have the same distribution of their own.
"""

from __future__ import annotations

import argparse
import collections
import glob
import json
import math
import os
import pathlib
import random
import resource
import statistics
import sys
import time

SIZE, RESIZE = 224, 256


def files(args):
    """The pictures, shuffled, for ever."""
    paths = sorted(str(path) for path in args.images.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg", ".png"))
    order = random.Random(0)
    while True:
        order.shuffle(paths)
        yield from paths


def read(path):
    with open(path, "rb") as file:
        return file.read()


def train_crop(width, height, rng=random):
    """x, y, width, height of a random crop, and whether it is mirrored."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            break
    else:
        ratio = min(max(width / height, 3 / 4), 4 / 3)
        w, h = min(width, round(height * ratio)), min(height, round(width / ratio))
    return rng.randint(0, width - w), rng.randint(0, height - h), w, h, rng.random() < 0.5


def eval_crop(width, height):
    """The part of the picture that Resize(256) and CenterCrop(224) leave."""
    side = min(width, height) * SIZE / RESIZE
    return (width - side) / 2, (height - side) / 2, side, side, False


def pooled(args, one):
    """Batches of `one(path)`, worked on by a pool that is kept a batch ahead."""
    import numpy

    paths = files(args)
    if args.threads == 1:
        while True:
            yield numpy.stack([one(next(paths)) for _ in range(args.batch)])
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(args.threads) as pool:
        waiting = collections.deque(pool.submit(one, next(paths)) for _ in range(2 * args.batch))
        while True:
            batch = []
            for _ in range(args.batch):
                batch.append(waiting.popleft().result())
                waiting.append(pool.submit(one, next(paths)))
            yield numpy.stack(batch)


def box_of(args, width, height):
    return train_crop(width, height) if args.transform == "train" else eval_crop(width, height)


# ---- peers: each gives batches for ever -----------------------------------------------------------


def forebay(args, form="indexed", **options):
    import forebay

    train = args.transform == "train"
    transform = forebay.TrainTransform(SIZE) if train else forebay.EvalTransform(SIZE, resize=RESIZE)
    loader = forebay.Loader(
        args.work / form, batch_size=args.batch, transform=transform, shuffle=True, drop_last=True, threads=args.threads,
        **options,
    )  # fmt: skip
    while True:
        for images, _labels in loader:
            yield images


# Forebay from other forms of the same images, below the working directory.
FOREBAY_FORMS = {
    "forebay-learned": "plain",
    "forebay-fast": "fast",
    "forebay-fast-raw": "fast-raw",
    **{f"forebay-{form}": f"{form}-index" for form in ("webdataset", "mds", "parquet", "arrayrecord")},
}


def forebay_plain(args):
    """As in every first epoch: without what the loader learns of the images."""
    return forebay(args, "plain", learn_seek_points=0)


def forebay_torch(args):
    import torch
    import forebay
    from forebay.torch import IMAGENET_MEAN, IMAGENET_STD, Loader

    torch.set_num_threads(1)
    train = args.transform == "train"
    transform = forebay.TrainTransform(SIZE) if train else forebay.EvalTransform(SIZE, resize=RESIZE)
    loader = Loader(
        args.work / "indexed", batch_size=args.batch, transform=transform, shuffle=True, drop_last=True, threads=args.threads,
        channels_last=True, normalize=(IMAGENET_MEAN, IMAGENET_STD),
    )  # fmt: skip
    while True:
        for images, _labels in loader:
            yield images


def tfdata(args, fast=False):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    how = {"fancy_upscaling": not fast, "dct_method": "INTEGER_FAST" if fast else "INTEGER_ACCURATE"}

    def parse(record):
        features = tf.io.parse_single_example(record, {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        })
        encoded = features["image/encoded"]
        shape = tf.image.extract_jpeg_shape(encoded)
        if args.transform == "train":
            begin, size, _ = tf.image.sample_distorted_bounding_box(
                shape, tf.constant([[[0.0, 0.0, 1.0, 1.0]]]), min_object_covered=0.0,
                aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0), max_attempts=10,
                use_image_if_no_bounding_boxes=True)
            window = tf.stack([begin[0], begin[1], size[0], size[1]])
        else:
            side = tf.cast(tf.cast(tf.minimum(shape[0], shape[1]), tf.float32) * (SIZE / RESIZE), tf.int32)
            window = tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])
        image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3, **how)
        image = tf.cast(tf.image.resize(image, (SIZE, SIZE)), tf.uint8)
        if args.transform == "train":
            image = tf.image.random_flip_left_right(image)
        return image, features["image/class/label"]

    paths = sorted(glob.glob(str(args.work / "tfrecord" / "train-*")))
    options = tf.data.Options()
    options.threading.private_threadpool_size = args.threads
    data = tf.data.TFRecordDataset(paths).repeat().map(parse, num_parallel_calls=args.threads)
    for images, _labels in data.batch(args.batch).prefetch(2).with_options(options):
        yield images


def tfdata_fast(args):
    return tfdata(args, fast=True)


def dali(args):
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=args.batch, num_threads=args.threads, device_id=None, prefetch_queue_depth=2)
    def pipeline():
        encoded, labels = fn.readers.file(file_root=str(args.images), random_shuffle=True, name="files")
        if args.transform == "train":
            images = fn.decoders.image_random_crop(
                encoded, device="cpu", output_type=types.RGB, random_aspect_ratio=[3 / 4, 4 / 3],
                random_area=[0.08, 1.0], num_attempts=10)
            images = fn.resize(images, resize_x=SIZE, resize_y=SIZE, interp_type=types.INTERP_TRIANGULAR)
            images = fn.flip(images, horizontal=fn.random.coin_flip())
        else:
            images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
            images = fn.resize(images, resize_shorter=RESIZE, interp_type=types.INTERP_TRIANGULAR)
            images = fn.crop(images, crop=(SIZE, SIZE))
        return images, labels

    made = pipeline()
    made.build()
    while True:
        images, _labels = made.run()
        yield images.as_array()


def pillow(args):
    import io

    import numpy
    from PIL import Image

    def one(path):
        image = Image.open(io.BytesIO(read(path)))
        x, y, w, h, flip = box_of(args, *image.size)
        image = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))
        if flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return numpy.asarray(image)

    return pooled(args, one)


def opencv(args, reduced=False):
    import cv2
    import numpy

    cv2.setNumThreads(1)
    shapes = {}

    def one(path):
        encoded = numpy.frombuffer(read(path), numpy.uint8)
        if not reduced:
            image = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
            box = box_of(args, image.shape[1], image.shape[0])
        else:
            # The size is known after the first time, as an index would have it.
            if path not in shapes:
                shapes[path] = cv2.imdecode(encoded, cv2.IMREAD_COLOR).shape
            height, width = shapes[path][:2]
            box = box_of(args, width, height)
            by = next((n for n in (4, 2) if min(box[2], box[3]) >= n * SIZE), 1)
            flag = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4}[by]
            image = cv2.imdecode(encoded, flag)
            box = (*(side / by for side in box[:4]), box[4])
        x, y, w, h = (int(side) for side in box[:4])
        image = cv2.resize(image[y : y + h, x : x + w], (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
        if box[4]:
            image = cv2.flip(image, 1)
        return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)

    return pooled(args, one)


def opencv_reduced(args):
    return opencv(args, reduced=True)


def simplejpeg(args):
    import cv2
    import simplejpeg as codec

    cv2.setNumThreads(1)

    def one(path):
        data = read(path)
        if not codec.is_jpeg(data):
            import numpy

            image = cv2.cvtColor(cv2.imdecode(numpy.frombuffer(data, numpy.uint8), 1), cv2.COLOR_BGR2RGB)
        else:
            image = codec.decode_jpeg(data, "RGB", fastdct=True, fastupsample=True)
        x, y, w, h, flip = box_of(args, image.shape[1], image.shape[0])
        x, y, w, h = int(x), int(y), int(w), int(h)
        image = cv2.resize(image[y : y + h, x : x + w], (SIZE, SIZE), interpolation=cv2.INTER_AREA)
        return cv2.flip(image, 1) if flip else image

    return pooled(args, one)


def torchvision(args):
    import torch
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    if args.transform == "train":
        steps = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
    else:
        steps = v2.Compose([v2.Resize(RESIZE, antialias=True), v2.CenterCrop(SIZE)])

    def one(path):
        data = torch.frombuffer(bytearray(read(path)), dtype=torch.uint8)
        return steps(decode_image(data, ImageReadMode.RGB)).numpy()

    return pooled(args, one)


def pillow_steps(args):
    """torchvision's transforms of a PIL image, to a tensor of bytes."""
    import numpy
    import torch
    from torchvision.transforms import v2

    if args.transform == "train":
        steps = [v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()]
    else:
        steps = [v2.Resize(RESIZE), v2.CenterCrop(SIZE)]
    # Bytes, not floats: what every other peer gives, and less to carry between processes.
    return v2.Compose([*steps, numpy.asarray, numpy.array, torch.from_numpy])


def webdataset(args):
    import torch
    import webdataset as wds

    steps = pillow_steps(args)
    tars = sorted(str(path) for path in (args.work / "webdataset").glob("train-*.tar"))
    data = wds.WebDataset(tars, shardshuffle=len(tars), nodesplitter=None, empty_check=False).shuffle(1000)
    data = data.decode("pilrgb").rename(image="jpg;jpeg;png").map_dict(image=steps).to_tuple("image", "cls")
    data = data.repeat().batched(args.batch, partial=False)
    loader = torch.utils.data.DataLoader(data, None, num_workers=args.threads, persistent_workers=True)
    while True:
        for images, _labels in loader:
            yield images


def mosaicml(args):
    import torch
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    # Of an earlier run that was ended.
    clean_stale_shared_memory()
    steps = pillow_steps(args)

    class Pictures(StreamingDataset):
        def __getitem__(self, number):
            sample = super().__getitem__(number)
            return steps(sample["image"].convert("RGB")), sample["label"]

    data = Pictures(local=str(args.work / "mds/train"), shuffle=True, batch_size=args.batch)
    loader = torch.utils.data.DataLoader(data, args.batch, num_workers=args.threads, persistent_workers=True, drop_last=True)
    while True:
        for images, _labels in loader:
            yield images


def hf_datasets(args):
    import datasets
    import torch

    steps = pillow_steps(args)
    data = datasets.load_dataset("parquet", data_dir=str(args.work / "parquet/data"), split="train",
                                 cache_dir=str(args.work / "hf-cache"))

    def apply(rows):
        rows["image"] = [steps(image.convert("RGB")) for image in rows["image"]]
        return rows

    data = data.select_columns(["image", "label"]).with_transform(apply)
    loader = torch.utils.data.DataLoader(
        data, args.batch, shuffle=True, num_workers=args.threads, persistent_workers=True, drop_last=True)
    while True:
        for batch in loader:
            yield batch["image"]


def torch_dataloader(args):
    import torch
    from PIL import Image
    from torchvision.datasets import ImageFolder

    def load(path):
        return Image.open(path).convert("RGB")

    data = ImageFolder(args.images, transform=pillow_steps(args), loader=load)
    loader = torch.utils.data.DataLoader(
        data, args.batch, shuffle=True, num_workers=args.threads, persistent_workers=True, drop_last=True)
    while True:
        for images, _labels in loader:
            yield images


def kornia_rs(args):
    from kornia_rs import imgproc, io

    def one(path):
        image = io.decode_image_jpegturbo(read(path), "rgb")
        x, y, w, h, flip = box_of(args, image.shape[1], image.shape[0])
        image = imgproc.crop(image, int(x), int(y), int(w), int(h))
        image = imgproc.resize(image, (SIZE, SIZE), "bilinear")
        return imgproc.horizontal_flip(image) if flip else image

    return pooled(args, one)


def datago(args):
    import numpy
    from datago import DatagoClient

    config = {
        "source_type": "file",
        "source_config": {"root_path": str(args.images), "random_sampling": True, "rank": 0, "world_size": 1},
        "image_config": {
            "crop_and_resize": True, "default_image_size": SIZE, "downsampling_ratio": SIZE,
            "min_aspect_ratio": 1.0, "max_aspect_ratio": 1.0, "image_to_rgb8": True,
        },
        "limit": 10**9,
        "prefetch_buffer_size": 2 * args.batch,
        "samples_buffer_size": 2 * args.batch,
    }  # fmt: skip
    # Its folder scan ends: a client for each pass.
    while True:
        client = DatagoClient(json.dumps(config))
        batch = []
        while (sample := client.get_sample()) is not None:
            image = numpy.asarray(sample.image.to_numpy() if hasattr(sample.image, "to_numpy") else sample.image)
            if image.shape != (SIZE, SIZE, 3):
                raise ValueError(f"images of {image.shape}")
            batch.append(image)
            if len(batch) == args.batch:
                yield numpy.stack(batch)
                batch = []


def spdl(args):
    import spdl.io

    shapes = {}

    def one(path):
        data = read(path)
        if path not in shapes:
            whole = spdl.io.to_numpy(spdl.io.load_image(data, filter_desc="format=pix_fmts=rgb24"))
            shapes[path] = whole.shape
        x, y, w, h, flip = box_of(args, shapes[path][1], shapes[path][0])
        steps = f"crop={int(w)}:{int(h)}:{int(x)}:{int(y)}:exact=1,scale=w={SIZE}:h={SIZE}:flags=bilinear"
        steps += ",hflip" * flip + ",format=pix_fmts=rgb24"
        return spdl.io.to_numpy(spdl.io.load_image(data, filter_desc=steps))

    return pooled(args, one)


# Loaders that prefetch batches.
AHEAD = {
    "forebay", "forebay-plain", *FOREBAY_FORMS, "forebay-torch", "tfdata", "tfdata-fast", "dali", "torch-dataloader", "datago",
}  # fmt: skip


def workers():
    """The folders in /proc of the worker processes that run now."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"PPid:\t{os.getpid()}\n" in (folder / "status").read_text():
                yield folder
        except OSError:
            continue


def cpu_seconds():
    """Processor time of this process and of its workers since they began."""
    ticks = 0
    for folder in workers():
        # After the name, which may hold spaces: user time and system time are the 12th and 13th words.
        words = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return sum(os.times()[:2]) + ticks / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer")
    parser.add_argument("images", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--transform", choices=["train", "eval"], default="train")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    name = "pillow" if args.peer == "pillow-simd" else args.peer
    began = time.perf_counter()
    form = FOREBAY_FORMS.get(name)
    batches = forebay(args, form) if form else globals()[name.replace("-", "_")](args)
    shape = next(batches).shape
    first = time.perf_counter() - began
    if sorted(shape)[-3:] != sorted((args.batch, SIZE, SIZE)) and args.batch not in shape:
        sys.exit(f"batches of {tuple(shape)}")

    # Warm: as long again as it will be measured, at most one pass over the pictures.
    total = sum(1 for _ in args.images.rglob("*.*"))
    until, images = time.perf_counter() + args.seconds, 0
    while time.perf_counter() < until and images < total:
        images += len(next(batches))
    images, used, began = 0, cpu_seconds(), time.perf_counter()
    while (spent := time.perf_counter() - began) < args.seconds:
        images += len(next(batches))
    rate, used = images / spent, cpu_seconds() - used

    hand_over = None
    if args.peer in AHEAD:
        times = []
        for _ in range(8):
            # Twice what a batch takes, and some: it is ready.
            time.sleep(2 * args.batch / rate + 0.05)
            began = time.perf_counter()
            next(batches)
            times.append(time.perf_counter() - began)
        hand_over = statistics.median(times) * 1e6
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peaks = 0
    for folder in workers():
        lines = (folder / "status").read_text().splitlines()
        peaks += next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    print(json.dumps({
        "images_per_s": rate, "cpu_us": used / images * 1e6, "first_batch_s": first, "hand_over_us": hand_over,
        "rss_mib": (own + peaks) / 1024,
    }), flush=True)  # fmt: skip
    # Threads of some peers do not end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main()
