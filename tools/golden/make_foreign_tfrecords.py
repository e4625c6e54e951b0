#!/usr/bin/env python3
"""Writes testdata/tfrecord-foreign with TensorFlow: small datasets as other tools write them.

    /tmp/tf/bin/python tools/golden/make_foreign_tfrecords.py [DIRECTORY]

Needs tensorflow-cpu, as tools/golden/make_golden_tfrecords.py does. Every byte comes from TensorFlow: its JPEG encoder, its
deterministic protobuf serialization, its TFRecordWriter. The files are golden: made once and then never changed.
"""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDS = 6


def jpeg(number: int) -> bytes:
    """A picture of 16 by 16 pixels that no other number gives."""
    rows, columns = np.mgrid[0:16, 0:16]
    pixels = np.stack([rows * 8 + number * 20, columns * 8, np.full((16, 16), number * 40)], axis=-1)
    return tf.io.encode_jpeg(pixels.astype(np.uint8), quality=90).numpy()


def feature(value: object) -> tf.train.Feature:
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(features: dict) -> bytes:
    named = {name: feature(value) for name, value in features.items()}
    message = tf.train.Example(features=tf.train.Features(feature=named))
    return message.SerializeToString(deterministic=True)


def sequence(number: int) -> bytes:
    """A video as TensorFlow's SequenceExample: labels in the context, a list of frames."""
    frames = tf.train.FeatureList(feature=[feature(jpeg(number)), feature(jpeg(number + 1))])
    message = tf.train.SequenceExample(
        context=tf.train.Features(feature={"label": feature(number)}),
        feature_lists=tf.train.FeatureLists(feature_list={"frames": frames}),
    )
    return message.SerializeToString(deterministic=True)


def tfds(number: int) -> bytes:
    return example({"file_name": b"%d.jpg" % number, "image": jpeg(number), "label": number % 3})


DATASETS = {
    # directory: (file name, compression, shards, record by number)
    "tfds": ("pictures-train.tfrecord", "", 2, tfds),
    "gzip": ("train", "GZIP", 2, tfds),
    "zlib": ("train", "ZLIB", 2, tfds),
    "raw-name": ("train", "", 1, lambda n: example({"image_raw": jpeg(n), "y": n, "height": 16})),
    "other-name": ("train", "", 1, lambda n: example({"photo": jpeg(n), "class": n, "id": b"%d" % n})),
    "two-images": ("train", "", 1, lambda n: example({"left": jpeg(n), "right": jpeg(n + 1), "label": n})),
    "several": ("train", "", 1, lambda n: example({"image": [jpeg(n), jpeg(n + 1)], "label": [n, n + 1]})),
    "pixels": ("train", "", 1, lambda n: example({"image": bytes(range(48)), "label": n})),
    "sequence": ("train", "", 1, sequence),
    "text": ("train", "", 1, lambda n: b"line %d" % n),
}


def main() -> None:
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "testdata/tfrecord-foreign"
    for directory, (name, compression, shards, record) in DATASETS.items():
        (target / directory).mkdir(parents=True, exist_ok=True)
        for shard in range(shards):
            path = target / directory / f"{name}-{shard:05}-of-{shards:05}"
            with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
                for number in range(RECORDS * shard // shards, RECORDS * (shard + 1) // shards):
                    writer.write(record(number))
    (target / "tfds/label.labels.txt").write_text("ant\nbee\ncat\n", encoding="utf-8")


if __name__ == "__main__":
    main()
