#!/usr/bin/env python3
"""Writes testdata/parquet: small Parquet files of pyarrow and of Hugging Face's `datasets`.

    pip install pyarrow datasets pillow
    tools/golden/make_parquet_corpus.py

`expected.json` has the rows of each file as pyarrow reads them back: for each row the key and, for each
column, its values as numbers or as hexadecimal text. The files hold what tools write in practice: structs
of images, lists, nulls, dictionaries, both versions of pages, several row groups, and all compressions.
"""

import io
import json
import struct
from pathlib import Path

import datasets
import numpy
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

OUT = Path(__file__).resolve().parents[2] / "testdata" / "parquet"


def png(number):
    pixels = numpy.full((4 + number, 6, 3), number * 9, numpy.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def hugging_face():
    """Images, class labels, text, lists and a double, as `datasets` lays them out, in groups of three rows."""
    rows = 8
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "émeu"]),
            "caption": datasets.Value("string"),
            "tags": datasets.Sequence(datasets.ClassLabel(names=["a", "b"])),
            "embedding": datasets.Sequence(datasets.Value("float32")),
            "score": datasets.Value("float64"),
        }
    )
    data = {
        "image": [{"bytes": png(n), "path": f"dir/{n}.png"} for n in range(rows)],
        "label": [n % 3 if n != 4 else None for n in range(rows)],
        "caption": [f"caption {n} é" for n in range(rows)],
        "tags": [[k % 2 for k in range(n % 3)] for n in range(rows)],
        "embedding": [[n / 2, -1.5] for n in range(rows)],
        "score": [n / 3 for n in range(rows)],
    }
    dataset = datasets.Dataset.from_dict(data, features=features)
    dataset.to_parquet(OUT / "hugging_face.parquet", batch_size=3)


def types():
    """Every type of number, nulls, and lists that are empty or null, as data pages of version 2 with Zstandard."""
    table = pa.table(
        {
            "jpg": pa.array([png(1), png(2), png(3), None], pa.binary()),
            "__key__": pa.array(["a/0", "a/1", None, "ü"], pa.string()),
            "cls": pa.array([1, None, -1, 2], pa.int32()),
            "i8": pa.array([-128, 127, None, 0], pa.int8()),
            "u8": pa.array([255, 0, 1, None], pa.uint8()),
            "u32": pa.array([2**32 - 1, 0, 1, 2], pa.uint32()),
            "u64": pa.array([2**63 - 1, 0, 1, 2], pa.uint64()),
            "flag": pa.array([True, False, None, True], pa.bool_()),
            "f32": pa.array([1.5, None, float("inf"), -0.0], pa.float32()),
            "f64": pa.array([0.1, None, 1e300, -0.0], pa.float64()),
            "raw": pa.array([b"", b"\x00\xff", None, b"x"], pa.binary()),
            "four": pa.array([b"abcd", None, b"efgh", b"ijkl"], pa.binary(4)),
            "words": pa.array(["one", "one", "two", "one"]).dictionary_encode(),
            "ints": pa.array([[1, 2], [], None, [3]], pa.list_(pa.int64())),
            "floats": pa.array([[0.5], None, [], [1.0, 2.0]], pa.list_(pa.float32())),
            "doubles": pa.array([[0.1], None, [], [1.0, 2.0]], pa.list_(pa.float64())),
            "names": pa.array([["x", "y"], [], ["z"], None], pa.list_(pa.string())),
            "inner": pa.array([{"a": 1, "b": "t"}, None, {"a": None, "b": "u"}, {"a": 4, "b": None}]),
        }
    )
    pq.write_table(table, OUT / "types.parquet", compression="zstd", data_page_version="2.0", row_group_size=3)


def nested():
    """Lists of lists: empty, null, with nulls, of fixed lengths, and in structs, in two groups of rows."""
    box = pa.list_(pa.float32(), 4)
    part = pa.struct([("bbox", pa.list_(pa.float64())), ("category", pa.int64())])
    table = pa.table(
        {
            "image": pa.array([png(n) for n in range(5)], pa.binary()),
            "boxes": pa.array([[[0, 1, 2.5, 3], [4, 5, 6, 7]], [], None, [[8, 9, 10, 11]], [None]], pa.list_(box)),
            "polygons": pa.array(
                [[[[1, 2.25]], []], [[], [[3], [4, 5]]], None, [None, [None, [-0.5]]], [[[1e-3]]]],
                pa.list_(pa.list_(pa.list_(pa.float64()))),
            ),
            "objects": pa.array(
                [[{"bbox": [1, 2], "category": 3}, {"bbox": [], "category": 4}], [], None, [{"bbox": [5], "category": 6}], []],
                pa.list_(part),
            ),
            "words": pa.array([[['a"\\', "é\n"], ["\x01"]], [[""]], None, [[]], [[None]]], pa.list_(pa.list_(pa.string()))),
            "flags": pa.array([[[True], [False, None]], None, [], [[]], [[True]]], pa.list_(pa.list_(pa.bool_()))),
            "big": pa.array([[[2**63 - 1, -(2**63)]], None, [], [[]], [[0]]], pa.list_(pa.list_(pa.int64()))),
        }
    )
    pq.write_table(table, OUT / "nested.parquet", row_group_size=3)


def images(name, rows=5, **options):
    table = pa.table(
        {
            "image": pa.array([png(n) for n in range(rows)], pa.binary()),
            "label": pa.array(range(rows), pa.int64()),
        }
    )
    pq.write_table(table, OUT / name, **options)


def refused():
    """Files that a reader refuses, and the reason in the name."""
    base = {"image": pa.array([png(0)], pa.binary())}
    columns = {
        "bytes_in_lists": pa.array([[[b"x"]]], pa.list_(pa.list_(pa.binary()))),
        "decimal": pa.array([1], pa.decimal128(5, 2)),
        "timestamp": pa.array([1], pa.timestamp("us")),
    }
    for name, column in columns.items():
        pq.write_table(pa.table({**base, name: column}), OUT / f"refused_{name}.parquet")
    images("refused_brotli.parquet", compression="brotli")
    nulls = pa.array([[1, None]], pa.list_(pa.int64()))
    pq.write_table(pa.table({**base, "nulls": nulls}), OUT / "refused_null_in_list.parquet")
    big = pa.array([2**64 - 1], pa.uint64())
    pq.write_table(pa.table({**base, "big": big}), OUT / "refused_big.parquet")


def hexadecimal(value):
    return (value.encode() if isinstance(value, str) else value).hex()


def flattened(column, value, prefix):
    if pa.types.is_struct(column):
        for number in range(column.num_fields):
            member = column.field(number)
            inner = None if value is None else value[member.name]
            yield from flattened(member.type, inner, f"{prefix}/{member.name}")
        return
    if value is None:
        return
    if pa.types.is_list(column) and pa.types.is_struct(column.value_type):
        for number in range(column.value_type.num_fields):
            member = column.value_type.field(number)
            members = [part[member.name] for part in value]
            yield from flattened(pa.list_(member.type), members, f"{prefix}/{member.name}")
        return
    if pa.types.is_list(column) and pa.types.is_nested(column.value_type):
        yield prefix, ["bytes", [hexadecimal(json.dumps(value, separators=(",", ":"), ensure_ascii=False))]]
        return
    element = column.value_type if pa.types.is_list(column) or pa.types.is_dictionary(column) else column
    values = value if isinstance(value, list) else [value]
    if pa.types.is_floating(element) and element.bit_width == 64:
        yield prefix, ["doubles", b"".join(struct.pack("<d", v) for v in values).hex()]
    elif pa.types.is_floating(element):
        yield prefix, ["floats", [struct.pack("<f", v).hex() for v in values]]
    elif pa.types.is_integer(element) or pa.types.is_boolean(element):
        yield prefix, ["ints", [int(v) for v in values]]
    else:
        yield prefix, ["bytes", [hexadecimal(v) for v in values]]


def expected(path):
    table = pq.read_table(path)
    rows = []
    for row in table.to_pylist():
        columns = {}
        for field in table.schema:
            columns.update(flattened(field.type, row[field.name], field.name))
        rows.append(columns)
    return rows


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    hugging_face()
    types()
    nested()
    images("snappy.parquet", compression="snappy", use_dictionary=False)
    images("gzip.parquet", compression="gzip")
    images("lz4.parquet", compression="lz4")
    images("plain.parquet", compression="none", write_page_checksum=True)
    images("empty.parquet", rows=0)
    refused()
    read = sorted(path for path in OUT.glob("*.parquet") if not path.name.startswith("refused_"))
    document = {path.name: expected(path) for path in read}
    (OUT / "expected.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
