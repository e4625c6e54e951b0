#!/usr/bin/env python3
"""Writes testdata/tfrecord with TensorFlow: known answers for forebay-shard.

    python3 -m venv --without-pip /tmp/tf
    python3 -m pip --python /tmp/tf/bin/python install tensorflow-cpu
    /tmp/tf/bin/python tools/golden/make_golden_tfrecords.py [DIRECTORY]

Every byte of the .tfrecord files comes from TensorFlow: tf.io.TFRecordWriter
frames and compresses, protobuf's deterministic serialisation encodes. The
expected values are in expected.json, the text indexes are made by the loop of
NVIDIA DALI's tfrecord2idx, which asks the file for its position.
The files are golden: they are made once and then never changed.
"""

import hashlib
import json
import os
import struct
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf  # noqa: E402


def noise(length: int) -> bytes:
    """Bytes that do not compress, the same everywhere."""
    out = b""
    while len(out) < length:
        out += hashlib.sha256(len(out).to_bytes(8, "little")).digest()
    return out[:length]


def image_features(number: int) -> dict:
    """An ImageNet sample with the keys of TensorFlow's own tool."""
    box = [round(0.1 * number + 0.05 * i, 3) for i in range(number)]
    return {
        "image/height": ("int64", [300 + number]),
        "image/width": ("int64", [400 + number]),
        "image/channels": ("int64", [3]),
        "image/class/label": ("int64", [number]),
        "image/object/bbox/label": ("int64", [number] * number),
        "image/object/bbox/xmin": ("float", box),
        "image/object/bbox/xmax": ("float", box),
        "image/object/bbox/ymin": ("float", box),
        "image/object/bbox/ymax": ("float", box),
        "image/colorspace": ("bytes", [b"RGB"]),
        "image/format": ("bytes", [b"JPEG"]),
        "image/filename": ("bytes", [b"n01440764_%d.JPEG" % number]),
        "image/encoded": ("bytes", [b"\xff\xd8\xff" + noise(200 + number)]),
        "image/class/synset": ("bytes", [b"n01440764"]),
        "image/class/text": ("bytes", ["tench, Tinca tinca \u2013 Schleie".encode()]),
    }


ALL_TYPES = {
    "bytes/one": ("bytes", [b"\x00\xff\n"]),
    "bytes/many": ("bytes", [b"a", b"", b"ccc"]),
    "bytes/empty": ("bytes", []),
    "bytes/empty string": ("bytes", [b""]),
    "float/one": ("float", [1.5]),
    "float/many": ("float", [0.0, -0.0, 3.4028234663852886e38, 1e-45, float("inf"), -1.25]),
    "float/empty": ("float", []),
    "int64/one": ("int64", [7]),
    "int64/many": ("int64", [0, 1, -1, 127, 128, 2**63 - 1, -(2**63)]),
    "int64/empty": ("int64", []),
    "unset": ("unset", []),
    "": ("int64", [1]),
    "n\u00e4me/\u65e5\u672c": ("int64", [2]),
}

FILES = {
    # name: (compression, records; a record is features or plain bytes)
    "plain": ("", [image_features(i) for i in range(5)]),
    "gzip": ("GZIP", [image_features(i) for i in range(5)]),
    "zlib": ("ZLIB", [image_features(i) for i in range(5)]),
    "empty": ("", []),
    "gzip-empty": ("GZIP", []),
    "zlib-empty": ("ZLIB", []),
    "long-record": ("", [b"", noise(100_000), b"after"]),
    "all-types": ("", [ALL_TYPES, {}]),
}


def example(features: dict) -> bytes:
    """A tf.train.Example of these features."""
    proto = tf.train.Example()
    proto.features.SetInParent()
    for name, (kind, values) in features.items():
        feature = proto.features.feature[name]
        if kind == "bytes":
            feature.bytes_list.value.extend(values)
            feature.bytes_list.SetInParent()
        elif kind == "float":
            feature.float_list.value.extend(values)
            feature.float_list.SetInParent()
        elif kind == "int64":
            feature.int64_list.value.extend(values)
            feature.int64_list.SetInParent()
    return proto.SerializeToString(deterministic=True)


def json_features(features: dict) -> list:
    """Features for expected.json: bytes in hex, floats by their bits."""
    out = []
    for name in sorted(features, key=str.encode):
        kind, values = features[name]
        if kind == "bytes":
            values = [value.hex() for value in values]
        elif kind == "float":
            values = [struct.unpack("<I", struct.pack("<f", value))[0] for value in values]
        out.append({"name": name, "kind": kind, "values": values})
    return out


def tfrecord2idx(path: str) -> str:
    """The output of DALI's tfrecord2idx, from positions in the file."""
    lines = []
    with open(path, "rb") as file:
        while True:
            start = file.tell()
            length = file.read(8)
            if not length:
                return "".join(lines)
            file.read(4)
            file.read(struct.unpack("<q", length)[0])
            file.read(4)
            lines.append(f"{start} {file.tell() - start}\n")


def main() -> None:
    default = os.path.join(os.path.dirname(__file__), "..", "..", "testdata", "tfrecord")
    directory = sys.argv[1] if len(sys.argv) > 1 else default
    os.makedirs(directory, exist_ok=True)
    expected = {"tensorflow": tf.__version__, "files": []}
    for name, (compression, records) in FILES.items():
        path = os.path.join(directory, f"{name}.tfrecord")
        options = tf.io.TFRecordOptions(compression_type=compression)
        listed, payloads = [], []
        with tf.io.TFRecordWriter(path, options) as writer:
            for record in records:
                payload = record if isinstance(record, bytes) else example(record)
                writer.write(payload)
                payloads.append(payload)
                listed.append(
                    {
                        "bytes": len(payload),
                        "features": None if isinstance(record, bytes) else json_features(record),
                    }
                )
        back = [record.numpy() for record in tf.data.TFRecordDataset(path, compression)]
        assert back == payloads, path
        if not compression:
            with open(os.path.join(directory, f"{name}.idx"), "w") as file:
                file.write(tfrecord2idx(path))
        kind = {"": "none", "GZIP": "gzip", "ZLIB": "zlib"}[compression]
        expected["files"].append({"name": name, "compression": kind, "records": listed})
    with open(os.path.join(directory, "expected.json"), "w") as file:
        json.dump(expected, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
