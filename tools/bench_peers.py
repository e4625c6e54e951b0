#!/usr/bin/env python3
"""Decode + RandomResizedCrop(224) + flip with other loaders, on the same TFRecord shards.

    python tools/bench_peers.py PEER DATASET [--threads N] [--seconds S] [--split train]

PEER is `tfdata` (tf.data with decode_and_crop_jpeg; needs TensorFlow), `tfdata-fast` (the same
with the fast DCT and plain upsampling), or `pillow` (Pillow through a thread pool; needs Pillow and
numpy). DATASET is a directory that `forebay pack --format tfrecord` made. Prints images/s of the passes
that fit into S seconds, after one that does not count, and the seconds to the first batch.

Pin it with `taskset -c 0` for figures of one core. `tfdata` does not antialias; `pillow` does, and
so does Forebay.
"""

import argparse
import glob
import json
import math
import os
import random
import struct
import time

SIZE, BATCH = 224, 64


def shard_paths(dataset, split):
    manifest = json.load(open(os.path.join(dataset, "forebay.json")))
    names = [shard["name"] for part in manifest["splits"] if part["name"] == split for shard in part["shards"]]
    return [os.path.join(dataset, name) for name in names] or sorted(glob.glob(os.path.join(dataset, split + "-*")))


def tfdata(paths, threads, fast):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)

    def parse(record):
        features = tf.io.parse_single_example(record, {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        })
        encoded = features["image/encoded"]
        whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(encoded), whole, min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0), max_attempts=10,
            use_image_if_no_bounding_boxes=True)
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(
            encoded, window, channels=3, fancy_upscaling=not fast,
            dct_method="INTEGER_FAST" if fast else "INTEGER_ACCURATE")
        image = tf.cast(tf.image.resize(image, (SIZE, SIZE)), tf.uint8)
        return tf.image.random_flip_left_right(image), features["image/class/label"]

    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.deterministic = True
    data = tf.data.TFRecordDataset(paths).map(parse, num_parallel_calls=threads)
    return data.batch(BATCH).prefetch(2).with_options(options)


def records(paths):
    """Payloads of TFRecords, checksums unread."""
    for path in paths:
        with open(path, "rb") as file:
            while head := file.read(12):
                payload = file.read(struct.unpack("<Q", head[:8])[0])
                file.read(4)
                yield payload


def jpeg_of(example):
    """The encoded image of a record: from its first JPEG or PNG mark to the longest end."""
    starts = [at for at in (example.find(b"\xff\xd8\xff"), example.find(b"\x89PNG")) if at >= 0]
    return example[min(starts):]


def pillow(paths, threads):
    from concurrent.futures import ThreadPoolExecutor
    import io

    import numpy
    from PIL import Image

    def one(example):
        image = Image.open(io.BytesIO(jpeg_of(example)))
        width, height = image.size
        for _ in range(10):
            area = width * height * random.uniform(0.08, 1.0)
            ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                break
        else:
            w = h = min(width, height)
        x, y = random.randint(0, width - w), random.randint(0, height - h)
        image = image.convert("RGB").crop((x, y, x + w, y + h)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return numpy.asarray(image)

    class Batches:
        def __iter__(self):
            with ThreadPoolExecutor(threads) as pool:
                batch = []
                for image in pool.map(one, list(records(paths))):
                    batch.append(image)
                    if len(batch) == BATCH:
                        yield numpy.stack(batch), None
                        batch = []
                if batch:
                    yield numpy.stack(batch), None

    return Batches()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=["tfdata", "tfdata-fast", "pillow"])
    parser.add_argument("dataset")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--split", default="train")
    args = parser.parse_args()
    begin = time.perf_counter()
    paths = shard_paths(args.dataset, args.split)
    data = pillow(paths, args.threads) if args.peer == "pillow" else tfdata(
        paths, args.threads, args.peer == "tfdata-fast")
    next(iter(data))
    first = time.perf_counter() - begin
    for _ in data:
        pass
    images, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        for batch, _ in data:
            images += len(batch)
    rate = images / (time.perf_counter() - begin)
    print(json.dumps({"peer": args.peer, "threads": args.threads, "images_per_s": round(rate, 1),
                      "first_batch_s": round(first, 2)}))


if __name__ == "__main__":
    main()
