"""Small sources of every format, written by hand or by the format's own package, from the same list of samples."""

from __future__ import annotations

import csv
import importlib
import io
import json
import pathlib
import struct
import tarfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

Sample = dict[str, Any]
Files = list[list[Sample]]


class Splits(Files):
    """Files of which each is a split, by these names."""

    def __init__(self, names: list[str], files: Files) -> None:
        super().__init__(files)
        self.names = names


class CannotOccur(Exception):
    """A fault that a format has no place for; the text says why."""


def file_name(files: Files, number: int, ending: str) -> str:
    """The name of a file by the convention of shards."""
    if isinstance(files, Splits):
        return f"{files.names[number]}-00000-of-00001.{ending}"
    return f"train-{number:05}-of-{len(files):05}.{ending}"


def package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise CannotOccur(f"the package {name} is not installed here") from None


# --- TFRecord and Examples -----------------------------------------------------------------------


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(value: Any) -> bytes:
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], bytes | str):
        coded = [value.encode() if isinstance(value, str) else value for value in values]
        return field(1, b"".join(field(1, value) for value in coded))
    if isinstance(values[0], float):
        return field(2, field(1, b"".join(struct.pack("<f", value) for value in values)))
    return field(3, field(1, b"".join(varint(value & (1 << 64) - 1) for value in values)))


def example(sample: Sample) -> bytes:
    names = {"key": "filename"}
    pairs = [(names.get(name, name), value) for name, value in sample.items() if value is not None]
    body = b"".join(field(1, field(1, name.encode()) + field(2, feature(value))) for name, value in pairs)
    return field(1, body)


def flat(files: Files) -> None:
    """Refuses values that a format without nested values cannot have."""
    if any(isinstance(sample.get("label"), dict) for samples in files for sample in samples):
        raise CannotOccur("the format has no nested values")


def frames(records: list[bytes]) -> bytes:
    out = b""
    for record in records:
        head = struct.pack("<Q", len(record))
        out += head + struct.pack("<I", crc32c(head)) + record + struct.pack("<I", crc32c(record))
    return out


def tfrecord(root: pathlib.Path, files: Files) -> pathlib.Path:
    flat(files)
    for number, samples in enumerate(files):
        (root / file_name(files, number, "tfrecord")).write_bytes(frames([example(sample) for sample in samples]))
    return root


def arrayrecord(root: pathlib.Path, files: Files) -> pathlib.Path:
    flat(files)
    module = package("array_record.python.array_record_module")
    for number, samples in enumerate(files):
        writer = module.ArrayRecordWriter(str(root / file_name(files, number, "array_record")), "group_size:1")
        for sample in samples:
            writer.write(example(sample))
        writer.close()
    return root


def lmdb(root: pathlib.Path, files: Files) -> pathlib.Path:
    flat(files)
    if len(files) > 1:
        raise CannotOccur("a database is one file")
    if len({sample["key"] for sample in files[0]}) < len(files[0]):
        raise CannotOccur("the keys of a database differ")
    module = package("lmdb")
    with module.open(str(root / "train.lmdb"), map_size=1 << 24) as database, database.begin(write=True) as transaction:
        for number, sample in enumerate(files[0]):
            transaction.put(f"{number:06}".encode(), example(sample))
    return root / "train.lmdb"


# --- archives ------------------------------------------------------------------------------------


def tar_of(members: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def webdataset(root: pathlib.Path, files: Files) -> pathlib.Path:
    for number, samples in enumerate(files):
        members: list[tuple[str, bytes]] = []
        for sample in samples:
            stem = str(sample["key"]).rsplit(".", 1)[0]
            for name, value in sample.items():
                extension = {"image": "jpg", "label": "cls", "caption": "txt"}.get(name)
                if extension is None or value is None:
                    continue
                if isinstance(value, list | dict):
                    extension, value = "json", json.dumps({"label": value})
                members.append((f"{stem}.{extension}", value if isinstance(value, bytes) else str(value).encode()))
            if not any(name.startswith(f"{stem}.") for name, _ in members):
                raise CannotOccur("a sample without members is not there")
        (root / file_name(files, number, "tar")).write_bytes(tar_of(members))
    return root


# --- columns in files of their own ---------------------------------------------------------------


def kind_of(files: Files, name: str) -> Any:
    values = [sample[name] for samples in files for sample in samples if sample.get(name) is not None]
    return type(values[0]) if values else None


def names_of(files: Files) -> list[str]:
    """The columns that any sample has, in the order of the first."""
    names: dict[str, None] = {}
    for samples in files:
        for sample in samples:
            names |= dict.fromkeys(sample)
    return list(names)


def mds(root: pathlib.Path, files: Files) -> pathlib.Path:
    flat(files)
    entries = []
    for number, samples in enumerate(files):
        names = list(samples[0]) if samples else names_of(files)
        if any(sample.get(name) is None for sample in samples for name in names):
            raise CannotOccur("every sample of MDS has a value for each column")
        encodings, sizes = [], []
        for name in names:
            kind = kind_of([samples], name)
            encodings.append({"image": "jpeg"}.get(name) or {int: "int", float: "float64", str: "str", bytes: "bytes", list: "ndarray:int64:3"}[kind])
            sizes.append({int: 8, float: 8, list: 24}.get(kind))

        def coded(value: Any) -> bytes:
            if isinstance(value, list):
                return struct.pack(f"<{len(value)}q", *value)
            if isinstance(value, int | float):
                return struct.pack("<q" if isinstance(value, int) else "<d", value)
            return value if isinstance(value, bytes) else value.encode()

        bodies = []
        for sample in samples:
            data = [coded(sample[name]) for name in names]
            head = b"".join(struct.pack("<I", len(value)) for value, size in zip(data, sizes, strict=True) if size is None)
            bodies.append(head + b"".join(data))
        about = {"column_encodings": encodings, "column_names": names, "column_sizes": sizes, "compression": None, "format": "mds",
                 "hashes": [], "size_limit": 1 << 26, "version": 2}  # fmt: skip
        config = json.dumps(about).encode()
        offsets = [4 + 4 * (len(samples) + 1) + len(config)]
        for body in bodies:
            offsets.append(offsets[-1] + len(body))
        shard = struct.pack("<I", len(samples)) + struct.pack(f"<{len(offsets)}I", *offsets) + config + b"".join(bodies)
        name = f"shard.{number:05}.mds"
        (root / name).write_bytes(shard)
        entries.append(about | {"raw_data": {"basename": name, "bytes": len(shard), "hashes": {}}, "samples": len(samples), "zip_data": None})
    (root / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    return root


def litdata(root: pathlib.Path, files: Files) -> pathlib.Path:
    flat(files)
    names = names_of(files)
    kinds = {name: kind_of(files, name) for name in names}
    if list in kinds.values():
        raise CannotOccur("a list of LitData is as many leaves")
    if any(sample.get(name) is None for samples in files for sample in samples for name in names):
        raise CannotOccur("every item of LitData has all leaves")
    if any(list(samples[0]) != names for samples in files if samples):
        raise CannotOccur("the chunks of LitData have one list of leaves")
    form = [{int: "int", float: "float", str: "str", bytes: "bytes"}[kinds[name]] for name in names]
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    spec = [1, {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [leaf] * len(names)}]
    chunks = []
    for number, samples in enumerate(files):
        items = []
        for sample in samples:
            values = [sample[name] for name in names]
            data = [
                struct.pack("<q" if isinstance(value, int) else "<d", value) if isinstance(value, int | float)
                else value if isinstance(value, bytes) else value.encode()
                for value in values
            ]  # fmt: skip
            items.append(struct.pack(f"<{len(data)}I", *map(len, data)) + b"".join(data))
        offsets = [4 + 4 * (len(items) + 1)]
        for item in items:
            offsets.append(offsets[-1] + len(item))
        chunk = struct.pack(f"<I{len(offsets)}I", len(items), *offsets) + b"".join(items)
        name = f"chunk-0-{number}.bin"
        (root / name).write_bytes(chunk)
        chunks.append({"chunk_bytes": len(chunk), "chunk_size": len(items), "dim": None, "filename": name})
    config = {"chunk_bytes": None, "chunk_size": 4, "compression": None, "data_format": form, "data_spec": json.dumps(spec),
              "encryption": None, "item_loader": "PyTreeLoader"}  # fmt: skip
    (root / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    return root


def parquet(root: pathlib.Path, files: Files) -> pathlib.Path:
    arrow, writer = package("pyarrow"), package("pyarrow.parquet")
    image = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    for number, samples in enumerate(files):
        columns: dict[str, Any] = {}
        names = list(samples[0]) if samples else ["image", "label"]
        for name in names:
            values = [sample.get(name) for sample in samples]
            if name == "key":
                continue
            if name == "image":
                rows = [None if value is None else {"bytes": value, "path": sample.get("key")} for value, sample in zip(values, samples, strict=True)]
                columns[name] = arrow.array(rows, image)
            else:
                columns[name] = arrow.array(values)
        writer.write_table(arrow.table(columns), root / file_name(files, number, "parquet"))
    return root


# --- arrays --------------------------------------------------------------------------------------


def arrays_of(files: Files) -> dict[str, np.ndarray[Any, Any]]:
    flat(files)
    if len(files) > 1:
        raise CannotOccur("arrays are one file here")
    samples = files[0]
    shades = [SHADES.get(sample["image"]) for sample in samples]
    if None in shades:
        raise CannotOccur("images are arrays of pixels, which have no encoding")
    out: dict[str, np.ndarray[Any, Any]] = {"images": np.array([np.full((6, 8, 3), shade) for shade in shades], np.uint8).reshape(-1, 6, 8, 3)}
    labels = [sample.get("label") for sample in samples if "label" in sample]
    if any(label is None for label in labels):
        raise CannotOccur("an array has a number in each row")
    if labels:
        out["labels"] = np.array(labels)
    if samples and "key" in samples[0]:
        out["keys"] = np.array([sample["key"] for sample in samples])
    return out


def npz(root: pathlib.Path, files: Files) -> pathlib.Path:
    arrays: dict[str, Any] = dict(arrays_of(files))
    np.savez(root / "train.npz", **arrays)
    return root / "train.npz"


def zarr(root: pathlib.Path, files: Files) -> pathlib.Path:
    module = package("zarr")
    arrays = arrays_of(files)
    group = module.open_group(str(root / "train.zarr"), mode="w", zarr_format=2)
    for name, array in arrays.items():
        group.create_array(name, data=array)
    return root / "train.zarr"


def safetensors(root: pathlib.Path, files: Files) -> pathlib.Path:
    module = package("safetensors.numpy")
    if len({sample["key"] for samples in files for sample in samples}) < sum(map(len, files)):
        raise CannotOccur("a file of tensors has no keys of rows")
    arrays = {name: array for name, array in arrays_of(files).items() if array.dtype.kind != "U" or name == "labels"}
    if arrays.get("labels", np.zeros(1)).dtype.kind == "U":
        raise CannotOccur("a tensor has no text")
    module.save_file(arrays, str(root / "train.safetensors"))
    return root / "train.safetensors"


def hdf5(root: pathlib.Path, files: Files) -> pathlib.Path:
    flat(files)
    module = package("h5py")
    if len(files) > 1:
        raise CannotOccur("arrays are one file here")
    samples = files[0]
    labels = [sample["label"] for sample in samples if "label" in sample]
    if any(label is None for label in labels):
        raise CannotOccur("an array has a number in each row")
    if any(sample["image"] is None for sample in samples):
        raise CannotOccur("a row has bytes, if none at all")
    with module.File(root / "train.h5", "w") as file:
        rows = file.create_dataset("images", (len(samples),), dtype=module.vlen_dtype(np.uint8))
        for number, sample in enumerate(samples):
            rows[number] = np.frombuffer(sample["image"], np.uint8)
        if labels:
            is_text = isinstance(labels[0], str)
            file.create_dataset("labels", data=np.array(labels, dtype=object if is_text else None), dtype=module.string_dtype() if is_text else None)
        if samples and "key" in samples[0]:
            file.create_dataset("keys", data=np.array([sample["key"] for sample in samples], dtype=object), dtype=module.string_dtype())
    return root / "train.h5"


# --- images beside lists -------------------------------------------------------------------------


def images(root: pathlib.Path, files: Files) -> list[Sample]:
    samples = [sample for samples in files for sample in samples]
    if len({sample["key"] for sample in samples}) < len(samples):
        raise CannotOccur("two files of a directory have different names")
    for sample in samples:
        if sample["image"] is None:
            raise CannotOccur("a file has bytes, if none at all")
        (root / str(sample["key"])).write_bytes(sample["image"])
    return samples


def image_list(root: pathlib.Path, files: Files) -> pathlib.Path:
    flat(files)
    if len(files) > 1:
        raise CannotOccur("a directory has one list of its images")
    samples = images(root, files)
    if any(isinstance(sample.get("label"), list) for sample in samples):
        raise CannotOccur("a cell of a list is one value")
    with (root / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        has_labels = any("label" in sample for sample in samples)
        writer.writerow(["file_name", *(["label"] if has_labels else [])])
        for sample in samples:
            label = sample.get("label")
            writer.writerow([sample["key"], *([("" if label is None else label)] if has_labels else [])])
    return root / "metadata.csv"


def boxes_only(root: pathlib.Path, files: Files) -> list[Sample]:
    if len(files) > 1:
        raise CannotOccur("a directory of annotations is one source")
    if any("label" in sample and not isinstance(sample["label"], int) for samples in files for sample in samples):
        raise CannotOccur("the format defines no labels of images")
    return images(root, files)


def coco(root: pathlib.Path, files: Files) -> pathlib.Path:
    (root / "train2017").mkdir()
    (root / "annotations").mkdir()
    samples = boxes_only(root / "train2017", files)
    entries = [{"id": number, "file_name": sample["key"], "width": 8, "height": 6} for number, sample in enumerate(samples)]
    boxes = [{"id": number, "image_id": number, "category_id": 1, "bbox": [1, 1, 3, 2], "area": 6, "iscrowd": 0, "segmentation": []} for number in range(len(samples))]
    about = {"images": entries, "annotations": boxes, "categories": [{"id": 1, "name": "x"}]}
    (root / "annotations" / "instances_train2017.json").write_text(json.dumps(about))
    return root


def voc(root: pathlib.Path, files: Files) -> pathlib.Path:
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / name).mkdir(parents=True)
    samples = boxes_only(root / "JPEGImages", files)
    stems = [str(sample["key"]).rsplit(".", 1)[0] for sample in samples]
    for stem, sample in zip(stems, samples, strict=True):
        (root / "Annotations" / f"{stem}.xml").write_text(
            f"<annotation><filename>{sample['key']}</filename><size><width>8</width><height>6</height><depth>3</depth></size>"
            "<object><name>x</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>3</ymax></bndbox></object>"
            "</annotation>"
        )
    (root / "ImageSets" / "Main" / "train.txt").write_text("".join(f"{stem}\n" for stem in stems))
    return root


def openimages(root: pathlib.Path, files: Files) -> pathlib.Path:
    (root / "train").mkdir()
    samples = boxes_only(root / "train", files)
    lines = ["ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"]
    lines += [f"{str(sample['key']).rsplit('.', 1)[0]},xclick,/m/01,1,0.1,0.5,0.2,0.6,0,0,0,0,0" for sample in samples]
    (root / "train-annotations-bbox.csv").write_text("\n".join(lines) + "\n")
    return root


# --- directories and archives, which are packed --------------------------------------------------


def members_of(files: Files) -> list[tuple[str, bytes]]:
    samples = [sample for samples in files for sample in samples]
    keys = set()
    members = []
    for sample in samples:
        label = sample.get("label")
        if "label" in sample and not isinstance(label, str):
            raise CannotOccur("the names of directories are the classes")
        path = f"{label}/{sample['key']}" if label is not None else str(sample["key"])
        if path in keys:
            raise CannotOccur("two files of a directory have different names")
        if sample["image"] is None:
            raise CannotOccur("a file has bytes, if none at all")
        keys.add(path)
        members.append((path, sample["image"]))
    return members


def directory(root: pathlib.Path, files: Files) -> pathlib.Path:
    for name, data in members_of(files):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return root


def archive(root: pathlib.Path, files: Files) -> pathlib.Path:
    (root / "images.tar").write_bytes(tar_of(members_of(files)))
    return root / "images.tar"


FORMATS: dict[str, Callable[[pathlib.Path, Files], pathlib.Path]] = {
    "tfrecord": tfrecord,
    "webdataset": webdataset,
    "mds": mds,
    "litdata": litdata,
    "parquet": parquet,
    "coco": coco,
    "voc": voc,
    "openimages": openimages,
    "list": image_list,
    "arrayrecord": arrayrecord,
    "safetensors": safetensors,
    "npz": npz,
    "hdf5": hdf5,
    "lmdb": lmdb,
    "zarr": zarr,
    "directory": directory,
    "archive": archive,
}


def png(shade: int, width: int = 8, height: int = 6) -> bytes:
    """A picture of one color."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes([shade]) * 3 * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


# The pictures of the matrix, and the color of each, for formats of pixels.
SHADES = {png(shade): shade for shade in range(10, 160, 10)}
PICTURES = list(SHADES)
