#!/usr/bin/env python3
"""Writes seeds of fuzz targets, but for those of forebay-shard and forebay-wire; of the images only those of transcode and fast:
crates/*/fuzz/corpus/*/seed-*.

    python3 tools/golden/make_fuzz_seeds.py [PLAN JOURNAL SHARD]

PLAN and JOURNAL are what `forebay pack --part 1/2 SRC DST` leaves in DST/.forebay-pack, SHARD is a shard that
`--format tfrecord --progressive baseline` made of a progressive JPEG. Without them what is made of them stays as it is.
"""

import gzip
import io
import json
import pathlib
import struct
import sys
import tarfile
import zipfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
CRATES = ROOT / "crates"
JPEG = bytes.fromhex("ffd8ffc0000b080014000a01011100ffda00080101000003f00078ffd9")
XML = b"""<annotation>
\t<filename>%s</filename><size><width>200</width><height>100</height></size>
\t<object><name>n1</name><bndbox><xmin>20</xmin><ymin>10</ymin><xmax>100</xmax><ymax>75</ymax></bndbox></object>
\t<object><bndbox><xmin>150</xmin><xmax>50.5</xmax><ymin>90</ymin><ymax>-5</ymax></bndbox></object>
</annotation>
"""
BLOCK = 1 << 16
LISTS = b"n01440764 tench, Tinca tinca\nn01443537\tgoldfish\nplain\n"
SOLUTION = b"ImageId,PredictionString\nval_1,n01443537 1 2 3 4 \nval.2,plain 1 2 3 4\n"


def keep(target, name, content, crate="forebay-formats"):
    folder = CRATES / crate / "fuzz/corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{name}").write_bytes(content)


def dumped(dump):
    """Bytes of a dump with lines of `OFFSET  BYTES | meaning`."""
    return bytes.fromhex("".join(line.split("|")[0].split(maxsplit=1)[1] for line in dump.splitlines()))


def tar(files, form=tarfile.GNU_FORMAT, pax=None):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, pax_headers=pax) as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
            else:
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    # Without the padding to ten kibibytes: the two blocks of the end are enough.
    return trimmed(out.getvalue())


def trimmed(archive):
    end = len(archive)
    while end >= 1536 and not any(archive[end - 1536 : end]):
        end -= 512
    return archive[:end]


def raw_zstd(content):
    """A frame of one raw block: single segment, the size in two bytes."""
    assert 256 <= len(content) < 1 << 16
    header = struct.pack("<IBH", 0xFD2FB528, 0x60, len(content) - 256)
    return header + struct.pack("<I", 1 | len(content) << 3)[:3] + content


def zipped(files, compression=zipfile.ZIP_DEFLATED, comment=b"", force=False):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        archive.comment = comment
        for name, content in files:
            member = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            member.compress_type = compression
            member.create_system = 3
            with archive.open(member, "w", force_zip64=force) as file:
                file.write(content)
    return out.getvalue()


def crc32c(content):
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def sealed(text):
    """A line of a journal with its checksum."""
    return b"%08x %s\n" % (crc32c(text), text)


def fields(message):
    """The length-delimited fields of a protobuf message."""

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    at = 0
    while at < len(message):
        key = varint()
        length = varint()
        if key & 7 == 2:
            yield message[at : at + length]
            at += length


def seeds_of_zarr():
    """Metadata behind its length, and a chunk: compressed, several in a shard, and of version 2; and a zip."""
    shape = [2, 3, 4, 3]
    array = {"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0}
    array["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": shape}}
    array["chunk_key_encoding"] = {"name": "default"}
    pixels = bytes(range(72))
    checked = pixels + struct.pack("<I", 0)
    index = struct.pack("<4Q", 0, 36, 36, 36)
    inner = {"chunk_shape": [1, 3, 4, 3], "codecs": ["bytes"], "index_codecs": ["bytes"]}
    version_2 = {"zarr_format": 2, "shape": shape, "chunks": shape, "dtype": "|u1", "fill_value": 0, "order": "F", "filters": None}
    for name, metadata, chunk in [
        ("gzip", array | {"codecs": ["bytes", "gzip"]}, gzip.compress(pixels, mtime=0)),
        ("transposed", array | {"codecs": [{"name": "transpose", "configuration": {"order": [3, 1, 0, 2]}}, "bytes"]}, pixels),
        ("checked", array | {"codecs": ["bytes", "crc32c"]}, checked),
        ("shard", array | {"codecs": [{"name": "sharding_indexed", "configuration": inner}]}, pixels + index),
        ("version-2", version_2 | {"compressor": {"id": "zlib"}}, zlib.compress(pixels)),
        ("blosc", version_2 | {"compressor": {"id": "blosc"}}, struct.pack("<BBBBIII", 2, 1, 2, 1, 72, 72, 88) + pixels),
    ]:
        text = json.dumps(metadata).encode()
        keep("zarr", name, struct.pack("<H", len(text)) + text + chunk)
    text = json.dumps(array | {"codecs": ["bytes"]}).encode()
    keep("zarr", "zip", zipped([("images/zarr.json", text), ("images/c/0/0/0/0", pixels)]))


def seeds_of_blosc():
    """Frames of one block: 256 numbers of two bytes, in one stream for each codec and shuffle that needs no package."""
    literals = bytes(range(256)) * 2
    words = [31, *literals[:32]] * (len(literals) // 32)
    streams = {
        "copied": (0x02, None),
        "blosclz": (0 << 5, bytes(words)),
        "lz4": (1 << 5, b"\xf0\xff\xf2" + literals),
        "zlib": (3 << 5 | 0x01, zlib.compress(literals)),
        "bits": (3 << 5 | 0x04, zlib.compress(literals)),
    }
    for name, (flags, stream) in streams.items():
        body = literals
        if stream is not None:
            flags |= 0x10
            body = struct.pack("<II", 20, len(stream)) + stream
        keep("blosc", name, struct.pack("<BBBBIII", 2, 1, flags, 2, 512, 512, 16 + len(body)) + body)
    for name in ["lz4hc-bytes", "zlib-bytes", "zstd-bytes", "blosclz-bytes"]:
        keep("blosc", name, (ROOT / f"testdata/formats-golden/zarr/blosc/{name}.blosc").read_bytes())


def seeds_of_image_lists():
    """Lists of the two images a.jpg and b.jpg."""
    keep("image_list", "csv", b'file_name,label,n,x,note\na.jpg,dog,3,1.5,"q ""x"""\nb.jpg,cat,-4,-2e9,\n')
    keep("image_list", "tsv", b"path\tsplit\tclass\na.jpg\ttrain\t7\nb.jpg\tvalidation\t1\n")
    lines = [{"file_name": "a.jpg", "text": "\u00fc", "n": [1, 2]}, {"file_name": "b.jpg", "text": None, "n": []}]
    keep("image_list", "jsonl", b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def seeds_of_formats():
    """Small files of other tools, which have seeds of their own in testdata."""
    golden = ROOT / "testdata/formats-golden"
    for target, folder, names in [
        ("npz", golden / "arrays", ["stored.npz", "deflated.npz", "splits.npz", "refused_object.npz"]),
        ("safetensors", golden / "arrays", ["numbers.safetensors"]),
        ("hdf5", golden / "arrays", ["plain.h5", "latest.h5", "splits.hdf5", "refused.h5"]),
        ("lmdb", golden / "lmdb", ["caffe.mdb", "refused/named.lmdb", "refused/empty.lmdb", "refused/other.lmdb"]),
        ("parquet", ROOT / "testdata/parquet", ["plain.parquet", "types.parquet", "lz4.parquet", "gzip.parquet"]),
    ]:
        for name in names:
            keep(target, name.split(".")[0].replace("/", "-"), (folder / name).read_bytes())
    keep("npz", "array", (golden / "arrays/npy/images.npy").read_bytes())
    for name, dtype, values in [("gray", "U8", bytes(12)), ("ragged", "I64", bytes(16))]:
        tensors = {"images": {"dtype": "U8", "shape": [1, 3, 4], "data_offsets": [0, 12]}}
        if name == "ragged":
            tensors = {
                "images.offsets": {"dtype": dtype, "shape": [2], "data_offsets": [0, 16]},
                "images": {"dtype": "U8", "shape": [0], "data_offsets": [16, 16]},
            }
        header = json.dumps(tensors).encode()
        keep("safetensors", name, struct.pack("<Q", len(header)) + header + values)
    for name in ["default", "brotli", "snappy"]:
        file = gzip.decompress((golden / f"array_record/{name}.array_record.gz").read_bytes())
        first, second = (file[at : at + BLOCK].rstrip(b"\0") for at in (0, BLOCK))
        keep("array_record", name, struct.pack("<H", len(first)) + first + second)
    seeds_of_zarr()
    seeds_of_blosc()
    seeds_of_image_lists()
    images = [{"id": i, "file_name": f"{name}.jpg", "width": 20, "height": 10} for i, name in enumerate("ab")]
    objects = [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3.5, 4], "iscrowd": 1, "segmentation": [[1, 2, 3, 4]]}]
    points = [{"image_id": 0, "category_id": 3, "keypoints": [1, 2, 2, 0, 0, 0], "area": 3e2}]
    categories = [{"id": 3, "name": "dog"}, {"id": 1, "name": "cat"}]
    captions = [{"image_id": 1, "caption": "a \u00fc"}]
    for name, annotations in [("objects", objects), ("keypoints", points), ("captions", captions)]:
        document = {"images": images, "annotations": annotations, "categories": categories}
        keep("coco", name, json.dumps(document).encode())
    keep("voc", "annotation", XML)
    keep("voc", "entities", XML.replace(b"n1", b"<![CDATA[x]]>&lt;&#65;<!-- c -->").replace(b"200", b"1e3"))
    keep("voc", "list", b"a 1\nb -1\n../a\n")


def transcode_seeds():
    def seed(name, recipe, jpeg):
        keep("transcode", name, struct.pack(">H", len(recipe)) + recipe + jpeg, "forebay-image")

    formats = ROOT / "testdata/formats"
    for name in ["420", "422", "440", "444", "grey", "orientation-5"]:
        seed(name, b"", (formats / f"{name}-progressive.jpg").read_bytes())
    seed("baseline", b"\1\2\0\0" + bytes(8), (formats / "420.jpg").read_bytes())
    jpeg = (formats / "420-progressive.jpg").read_bytes()
    seed("cut", b"", jpeg[: len(jpeg) * 2 // 3])
    # Fast images, and JPEGs to encode as such.
    page = (ROOT / "docs/format/fast-images.md").read_text()
    raw = page.split("```hex image/fast\n", 1)[1].split("```", 1)[0]
    for name, dump in (("raw", raw), ("coded", (ROOT / "testdata/format/fast-image-coded.hex").read_text())):
        fast = dumped(dump)
        keep("fast", name, fast, "forebay-jpeg")
        keep("fast", f"{name}-cut", fast[:-2], "forebay-jpeg")
    jpegs = CRATES / "forebay-jpeg/fuzz/corpus/jpeg"
    for name in ("420", "422", "444", "grey"):
        keep("fast", f"{name}.jpg", (jpegs / f"seed-{name}.jpg").read_bytes(), "forebay-jpeg")

    if len(sys.argv) == 4:
        shard = pathlib.Path(sys.argv[3]).read_bytes()
        length = struct.unpack_from("<Q", shard)[0]
        (features,) = fields(shard[12 : 12 + length])
        values = {}
        for entry in fields(features):
            name, feature = fields(entry)
            values[name] = feature
        (lists,) = zip(*[fields(values[name]) for name in (b"image/progressive", b"image/encoded")])
        (recipe,), (jpeg,) = (list(fields(value)) for value in lists)
        seed("recipe", recipe, jpeg)
        seed("recipe-cut", recipe[:-20] + recipe[-8:], jpeg)


def store_seeds():
    def seed(target, name, content):
        crate = {"cache_block": "forebay-cache", "uploads_page": "forebay-store"}.get(target, "forebay-staging")
        keep(target, name, content, crate)

    def block(object_len, number, size, payload, location, key):
        chunk = max(size // 256, 4096)
        sums = [crc32c(payload[at : at + chunk]) for at in range(0, len(payload), chunk)]
        header = b"\x89FBC\r\n\x1a\n" + struct.pack("<II", 1, 0) + bytes(range(32))
        header += struct.pack("<QQIIIHH", object_len, number, size, len(payload), chunk, len(location), len(key))
        header += struct.pack(f"<{len(sums)}I", *sums).ljust(1024, b"\0")
        header += location.ljust(1496, b"\0") + key.ljust(1496, b"\0")
        header = header[:12] + struct.pack("<I", crc32c(header)) + header[16:]
        return header + payload

    seed("cache_block", "whole", block(9000, 1, 4096, b"\x07" * 4096, b"s3://bucket/set", b"train-00000"))
    seed("cache_block", "end", block(8192 + 5, 1, 8192, b"abcde", b"s3://bucket/set", b"train-00000"))
    seed("cache_block", "chunks", block(10_000, 0, 1 << 20, b"x" * 10_000, b"https://host/a", "ü".encode()))

    file = {"id": 0, "file": "train-0", "len": 3, "crc32c": 7, "location": "s3://bucket/a", "key": "k/0"}
    lines = [
        {"session": {"version": 1, "title": "data set", "next_id": 0}},
        {"submitted": {**file, "endpoint": "http://127.0.0.1:1"}},
        {"submitted": {**file, "id": 1, "group": {"name": "g", "step": 1}}},
        {"submitted": {**file, "id": 2, "region": "r", "anonymous": True}},
        {"stored": {"id": 0}},
        {"failed": {"id": 1, "error": "403"}},
        {"dropped": {"id": 2}},
    ]
    seed("stage_journal", "whole", b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    seed("stage_journal", "outside", json.dumps({"submitted": {**file, "key": "../x"}}).encode())

    files = [{"name": "a/model.pt", "bytes": 5, "crc32c": "0badcafe"}, {"name": "b", "bytes": 0, "crc32c": "00000000"}]
    part = {"content": "torch", "metadata": {"step": 7, "x": [1.5, None]}, "files": files}
    marker = {"version": 1, "prefix": "s3://bucket/run", "name": "step-7", "endpoint": "http://127.0.0.1:1"}
    marker |= {"overwrite": True, "keep": 3, "attempt": "0123456789abcdef", "rank": 0, "world_size": 2, "part": part}
    seed("checkpoint_marker", "whole", json.dumps(marker).encode())
    manifest = {"format": "forebay-checkpoint", "version": 1, "attempt": "0123456789abcdef"}
    manifest |= {"parts": [part, part], "fingerprint": ""}
    seed("checkpoint_manifest", "ranks", json.dumps(manifest).encode())
    seed("checkpoint_manifest", "one", json.dumps(manifest | {"parts": [part]}).encode())

    upload = "<Upload><Key>a/b &#x26; c</Key><UploadId>i1</UploadId><Initiated>2026-03-01T00:00:00.000Z</Initiated></Upload>"
    page = "<NextKeyMarker>k&amp;2</NextKeyMarker><NextUploadIdMarker>i2</NextUploadIdMarker><IsTruncated>true</IsTruncated>"
    root = "ListMultipartUploadsResult"
    seed("uploads_page", "whole", f'<?xml version="1.0"?><{root} xmlns="x">{page}{upload * 2}</{root}>'.encode())
    seed("uploads_page", "none", f"<{root}/>".encode())


def main():
    images = [("a/1.jpg", JPEG), ("a/note.txt", b"text"), ("b/2.JPEG", JPEG)]
    long = "d" * 120 + "/" + "e" * 60 + ".jpg"
    keep("tar", "plain", tar(images))
    keep("tar", "kinds", tar([("a", None), ("a/1.jpg", JPEG), ("a/link.jpg", "/etc/passwd"), ("../up.jpg", JPEG)]))
    keep("tar", "gnu-long", tar([(long, JPEG)]))
    keep("tar", "pax", tar([(long, JPEG), ("ü.jpg", JPEG)], tarfile.PAX_FORMAT, {"comment": "x"}))
    keep("tar", "ustar", tar([("p" * 80 + "/" + "q" * 80, JPEG)], tarfile.USTAR_FORMAT))
    keep("tar", "inner", tar([("n1.tar", tar(images[:1])), ("n2.tar", b"no archive"), (".tar", tar(images[:1]))]))
    texts = [("Annotations/a/1.xml", XML), ("classes.txt", b"a\nb\n"), ("a/1.jpg", JPEG)]
    keep("tar", "texts", tar(texts))
    keep("tar", "gz", gzip.compress(tar(images), mtime=0))
    keep("tar", "zst", raw_zstd(tar(images[:1])))
    meta = (ROOT / "testdata/meta-scipy/meta.mat").read_bytes()
    truth = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
    samples = [("a/1.jpg", JPEG), ("a/1.cls", b"3"), ("a/1.txt", b"text"), ("a/1.json", b'{"x": [1, 2.5, "y"]}')]
    array = b"\x93NUMPY\x01\x00\x3a\x00" + b"{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }\n" + b"\1\0\2\0"
    keep("webdataset", "columns", tar(samples + [("a/2.png", JPEG), ("a/2.cls", b"-1"), ("a/2.npy", array)]))
    keep("webdataset", "bad", tar([("1.jpg", JPEG), ("1.png", JPEG), ("2.cls", b"x"), ("1.cls", b"1"), ("3.pyd", b"x"), ("3.jpg", "a")]))
    keep("webdataset", "gz", gzip.compress(tar(samples), mtime=0))
    golden = ROOT / "testdata/formats-golden/mds"
    for name in ("plain", "zstd"):
        index = json.loads((golden / name / "index.json").read_text())
        index["shards"] = index["shards"][:1]
        shard = index["shards"][0]
        file = golden / name / (shard["zip_data"] or shard["raw_data"])["basename"]
        text = json.dumps(index).encode()
        keep("mds", name, struct.pack("<H", len(text)) + text + file.read_bytes())
    keep("mds", "empty", struct.pack("<H", 2) + b"{}")
    golden = ROOT / "testdata/formats-golden/litdata"
    for name in ("plain", "file", "frames", "items"):
        index = json.loads((golden / name / "index.json").read_text())
        index["chunks"] = index["chunks"][-1:]
        file = golden / name / index["chunks"][0]["filename"]
        index["chunks"][0]["filename"] = "chunk-0-0.bin"
        # What the reader takes no notice of.
        for key in ("types", "ipc_compression", "chunk_bytes", "chunk_size", "compression_batch_size"):
            del index["config"][key]
        text = json.dumps(index).encode()
        keep("litdata", name, struct.pack("<H", len(text)) + text + file.read_bytes())
    keep("tar", "kit", tar([("ILSVRC2012_devkit_t12/data/meta.mat", meta), (truth, b"1\n6\n2\n")]))

    keep("zip", "deflated", zipped(images))
    keep("zip", "stored", zipped(images, zipfile.ZIP_STORED, b"a comment"))
    keep("zip", "zip64", zipped(images, force=True))
    keep("zip", "texts", zipped(texts))
    keep("zip", "prefix", b"PK\x03\x04 elsewhere" + zipped(images[:1]))

    keep("mat", "compressed", meta)
    keep("mat", "plain", (ROOT / "testdata/meta-scipy/meta-plain.mat").read_bytes())
    number = struct.pack("<IIIIII", 6, 8, 6, 0, 5, 8) + struct.pack("<IIII", 1, 1, 1 << 16 | 1, ord("x"))
    number += struct.pack("<II", 1 << 16 | 2, 7)
    body = struct.pack("<II", 14, len(number)) + number
    keep("mat", "number", b" " * 124 + struct.pack("<H", 0x0100) + b"IM" + body)

    keep("labels", "csv", b'path,class,n,x,note\n"a,b.jpg",dog,3,1.5,"q ""x"""\nc.jpg,cat,-4,-2e9,\n')
    keep("labels", "tsv", b"image\tlabel\tcode\na/1.jpg\t7\t007\na/2.jpg\t\t1\n")
    keep("labels", "jsonl", b'\xef\xbb\xbf{"path":"a","label":1,"x":0.5,"s":"\\u00fc"}\n\n{"path":"b","t":true}\n')
    keep("labels", "numbers", b"file,label,x\na,-1,1e300\nb,9223372036854775807,.5\nc,-9223372036854775808,0\n")

    keep("boxes", "annotation", XML)
    keep("boxes", "none", b'<?xml version="1.0"?>\n<annotation/>')
    keep("boxes", "odd", XML.replace(b"n1", b"<![CDATA[x]]>&lt;&#65;<!-- c -->").replace(b"200", b"1e-300"))

    keep("classes", "plain", LISTS)
    keep("classes", "lines", b"b\r\na\r\nb\r\n\r\na\r\n")
    keep("classes", "solution", LISTS + b"\0" + SOLUTION)
    keep("classes", "truth", b"val_00000002.JPEG\0\x01\x00\x02")

    if len(sys.argv) == 4:
        plan, journal = ([line[9:] for line in pathlib.Path(path).read_bytes().splitlines()] for path in sys.argv[1:3])
        source = json.loads(plan[0])["source"].encode()
        plan, journal = ([sealed(line.replace(source, b"/data")) for line in lines] for lines in (plan, journal))
        keep("plan", "whole", b"".join(plan), "forebay-pack")
        keep("plan", "cut", b"".join(plan)[:-40], "forebay-pack")
        keep("plan", "without-findings", b"".join(plan[:2]) + sealed(b'{"findings":0}'), "forebay-pack")
        keep("journal", "whole", b"".join(journal), "forebay-pack")
        keep("journal", "torn", b"".join(journal)[:-7], "forebay-pack")
        keep("journal", "twice", journal[0] + journal[1] + b"garbage\n" + journal[1], "forebay-pack")
        numbers = b'{"changed":18446744073709551615,"left":18446744073709551615}'
        large = [line[9:-1].replace(b'{"changed":0,"left":0}', numbers) for line in journal[1:]]
        keep("journal", "large-numbers", journal[0] + b"".join(sealed(line) for line in large), "forebay-pack")
    seeds_of_formats()
    transcode_seeds()
    store_seeds()


if __name__ == "__main__":
    main()
