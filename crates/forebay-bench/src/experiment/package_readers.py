"""Formats read and written with the packages that they belong to, as worker processes.

`packages.rs` runs this text with `python -c` and one argument, the name of a reader. Each line of stdin is a request in JSON, each
line of stdout its answer: {"error": TEXT} where it failed. A process reads one format and imports one package, before anything is timed.

    {"do": "open"}                                         the package and its version
    {"do": "write", "from": PATH, "to": PATH, "rows": N}    files that Forebay does not write
    {"do": "run", "place": PATH, "workers": N, ...}         an epoch, or the part of it that fits into the seconds
    {"do": "hash", "place": PATH, "workers": N, ...}        the hashes of all samples of an epoch

Workers are forked for each run, open the files for themselves, read a share of the epoch in shuffled order, and put batches into
memory that they share with the first process, two ahead: as torch's DataLoader does, without its tensors.
"""

import importlib
import json
import mmap
import os
import random
import signal
import struct
import sys
import time
import zipfile
import zlib

# Batches that a worker is ahead, and what it sends in place of a batch.
AHEAD = 2
END, FAILED = 0xFFFFFFFF, 0xFFFFFFFE
# Rows that are copied at a time.
ROWS = 64
IMAGES = ("jpg", "jpeg", "png", "webp")


# tensorflow.Example, as far as an image and its label need it: packages of LMDB, ArrayRecord and TFRecord give the bytes of records.

def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """Numbers and values of the fields of a message."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 2:
            size, at = varint(data, at)
            yield tag >> 3, data[at : at + size]
            at += size
        elif tag & 7 == 0:
            value, at = varint(data, at)
            yield tag >> 3, value
        else:
            raise ValueError(f"a record has a field of wire type {tag & 7}, which no Example has")


def image_and_label(record):
    image = label = None
    features = next(value for number, value in fields(memoryview(record)) if number == 1)
    for _, feature in fields(features):
        feature = dict(fields(feature))
        if feature[1] == b"image/encoded":
            image = dict(fields(dict(fields(feature[2]))[1]))[1]
        elif feature[1] == b"image/class/label":
            value = dict(fields(dict(fields(feature[2]))[3]))[1]
            value = value if isinstance(value, int) else varint(value, 0)[0]
            # Negative numbers have 64 bits.
            label = value - (1 << 64) if value >> 63 else value
    return label, image


def files_of(place, ending):
    """All files with an ending, sorted."""
    found = [os.path.join(folder, name) for folder, _, names in os.walk(place) for name in names if name.lower().endswith(ending)]
    if not found:
        raise FileNotFoundError(f"no file *{ending} in {place}")
    return sorted(found)


def labels_of(names):
    """Labels of names of files: their directories, sorted, from 0."""
    classes = sorted({os.path.dirname(name) for name in names})
    numbers = {name: number for number, name in enumerate(classes)}
    return [numbers[os.path.dirname(name)] for name in names]


# Readers: `parts` are what is shuffled and shared by the workers; `read` gives the label and the bytes of each sample of a part.

class Files:
    modules = ["os"]

    def __init__(self, place, request):
        paths = files_of(place, IMAGES)
        self.parts = list(zip(paths, labels_of(paths)))

    def read(self, part):
        with open(part[0], "rb") as file:
            yield part[1], file.read()


class Zip:
    modules = ["zipfile"]

    def __init__(self, place, request):
        self.file = zipfile.ZipFile(files_of(place, ".zip")[0])
        names = sorted(self.file.namelist())
        self.parts = list(zip(names, labels_of(names)))

    def read(self, part):
        yield part[1], self.file.read(part[0])

    @staticmethod
    def write(source, target, rows):
        with zipfile.ZipFile(os.path.join(target, "train.zip"), "w", zipfile.ZIP_STORED) as made:
            for path in files_of(source, IMAGES):
                with open(path, "rb") as file:
                    # Without the time of the file.
                    made.writestr(zipfile.ZipInfo(os.path.relpath(path, source)), file.read())


class WebDataset:
    modules = ["webdataset"]

    def __init__(self, place, request):
        self.parts = files_of(place, ".tar")

    def read(self, part):
        import webdataset

        for sample in webdataset.WebDataset([part], shardshuffle=False, empty_check=False):
            yield int(sample["cls"]), next(sample[name] for name in IMAGES if name in sample)


class TfRecord:
    modules = ["tfrecord"]

    def __init__(self, place, request):
        self.parts = [path for path in files_of(place, "") if path[-5:].isdigit()]
        self.first = request["first_label"]

    def read(self, part):
        from tfrecord import tfrecord_iterator

        for record in tfrecord_iterator(part):
            # A view of a buffer that the next record is read into.
            label, image = image_and_label(bytes(record))
            yield label - self.first, image


class Mds:
    modules = ["streaming"]

    def __init__(self, place, request):
        from streaming import LocalDataset

        self.source = LocalDataset(local=os.path.dirname(files_of(place, "index.json")[0]))
        for shard in self.source.shards:
            # Encoded images stay encoded, as in all other readers.
            shard.column_encodings = ["bytes" if name in ("jpeg", "png") else name for name in shard.column_encodings]
        self.parts = range(len(self.source))

    def read(self, part):
        sample = self.source[part]
        yield int(sample["label"]), sample["image"]


class Parquet:
    modules = ["pyarrow", "pyarrow.parquet"]

    def __init__(self, place, request):
        from pyarrow import parquet

        self.files = [parquet.ParquetFile(path) for path in files_of(place, ".parquet")]
        self.parts = [(file, group) for file, open_file in enumerate(self.files) for group in range(open_file.num_row_groups)]

    def read(self, part):
        table = self.files[part[0]].read_row_group(part[1], columns=["image", "label"], use_threads=False)
        images = table["image"].combine_chunks().field("bytes")
        for image, label in zip(images, table["label"]):
            yield label.as_py(), image.as_buffer()


class Lmdb:
    modules = ["lmdb"]

    def __init__(self, place, request):
        import lmdb

        self.first = request["first_label"]
        opened = [lmdb.open(path, subdir=False, readonly=True, lock=False) for path in files_of(place, ".lmdb")]
        self.transactions = [env.begin(buffers=True) for env in opened]
        self.parts = [(number, bytes(key)) for number, transaction in enumerate(self.transactions)
                      for key in transaction.cursor().iternext(keys=True, values=False)]

    def read(self, part):
        label, image = image_and_label(self.transactions[part[0]].get(part[1]))
        yield label - self.first, image


class ArrayRecord:
    modules = ["array_record", "array_record.python.array_record_module"]

    def __init__(self, place, request):
        from array_record.python.array_record_module import ArrayRecordReader

        self.first = request["first_label"]
        self.files = [ArrayRecordReader(path) for path in files_of(place, ".array_record")]
        self.parts = [(number, row) for number, file in enumerate(self.files) for row in range(file.num_records())]

    def read(self, part):
        label, image = image_and_label(self.files[part[0]].read([part[1]])[0])
        yield label - self.first, image


class Arrays:
    """Rows of pixels, one by one, or some at a time."""

    def __init__(self, place, request):
        self.images, self.labels = self.open(place)
        self.rows = request.get("rows", 0)
        count = len(self.labels)
        self.parts = range(0, count, self.rows) if self.rows else range(count)

    def read(self, part):
        if not self.rows:
            yield int(self.labels[part]), memoryview(self.images[part]).cast("B")
            return
        rows = self.images[part : part + self.rows]
        for label, row in zip(self.labels[part : part + self.rows], rows):
            yield int(label), memoryview(row).cast("B")


class Hdf5(Arrays):
    modules = ["h5py"]

    def open(self, place):
        import h5py

        file = h5py.File(files_of(place, ".h5")[0], "r")
        return file["images"], file["labels"][...]


class Zarr(Arrays):
    modules = ["zarr"]

    def open(self, place):
        import zarr

        group = zarr.open_group(place, mode="r")
        return group["images"], group["labels"][...]

    @staticmethod
    def write(source, target, rows):
        import zarr

        group = zarr.open_group(target, mode="w")
        labels, images = npz_arrays(source)
        shape = images[0]
        made = group.create_array("images", shape=shape, chunks=(rows, *shape[1:]), dtype="uint8", compressors=None)
        # Whole chunks, so that none is written twice.
        for start, part in images[1](rows * -(-ROWS // rows)):
            made[start : start + len(part)] = part
        group.create_array("labels", shape=labels.shape, dtype=labels.dtype, compressors=None)[...] = labels


class Npy(Arrays):
    modules = ["numpy"]

    def open(self, place):
        import numpy

        images = numpy.load(os.path.join(place, "images.npy"), mmap_mode="r")
        return images, numpy.load(os.path.join(place, "labels.npy"))

    @staticmethod
    def write(source, target, rows):
        import numpy

        labels, (shape, parts) = npz_arrays(source)
        numpy.save(os.path.join(target, "labels.npy"), labels)
        made = numpy.lib.format.open_memmap(os.path.join(target, "images.npy"), mode="w+", dtype="uint8", shape=shape)
        for start, part in parts(ROWS):
            made[start : start + len(part)] = part
        made.flush()


class Pt(Arrays):
    modules = ["torch"]

    def open(self, place):
        import torch

        saved = torch.load(os.path.join(place, "train.pt"), mmap=True, weights_only=True)
        return saved["images"].numpy(), saved["labels"].numpy()

    @staticmethod
    def write(source, target, rows):
        import numpy
        import torch

        labels, (shape, parts) = npz_arrays(source)
        images = numpy.concatenate([part for _, part in parts(ROWS)])
        saved = {"images": torch.from_numpy(images), "labels": torch.from_numpy(labels)}
        torch.save(saved, os.path.join(target, "train.pt"))


class Safetensors(Arrays):
    modules = ["safetensors", "safetensors.numpy"]

    def open(self, place):
        from safetensors import safe_open

        self.file = safe_open(files_of(place, ".safetensors")[0], "numpy")
        return self.file.get_slice("images"), self.file.get_tensor("labels")

    def read(self, part):
        # A slice of rows is the least that it reads.
        yield int(self.labels[part]), memoryview(self.images[part : part + 1]).cast("B")


def npz_arrays(place):
    """Labels of an .npz that Forebay wrote; the shape of its images, and a function that gives some rows of them at a time."""
    import numpy

    path = files_of(place, ".npz")[0]
    read_header = numpy.lib.format.read_array_header_1_0
    with numpy.load(path) as arrays:
        labels = arrays["labels"]
    with zipfile.ZipFile(path).open("images.npy") as member:
        numpy.lib.format.read_magic(member)
        shape, _, dtype = read_header(member)

    def parts(rows):
        with zipfile.ZipFile(path).open("images.npy") as member:
            numpy.lib.format.read_magic(member)
            read_header(member)
            for start in range(0, shape[0], rows):
                count = min(rows, shape[0] - start)
                content = member.read(count * int(numpy.prod(shape[1:])) * dtype.itemsize)
                yield start, numpy.frombuffer(content, dtype).reshape(count, *shape[1:])

    return labels, (shape, parts)


READERS = {
    "files": Files, "zip": Zip, "webdataset": WebDataset, "tfrecord": TfRecord, "mds": Mds, "parquet": Parquet, "lmdb": Lmdb,
    "arrayrecord": ArrayRecord, "hdf5": Hdf5, "zarr": Zarr, "npy": Npy, "pt": Pt, "safetensors": Safetensors,
}  # fmt: skip


# Workers. A slot is memory of one batch: the label and the size of each sample, then the samples. Nine bytes are sent for it.

ENTRY = struct.Struct("<qQ")
SENT = struct.Struct("<IIQ")


class Worker:
    """A process that reads its share of the epoch."""

    def __init__(self, reader, request, others, opened):
        number, batch = len(others), request["batch"]
        self.slots = [mmap.mmap(-1, batch * (ENTRY.size + request["largest"])) for _ in range(AHEAD)]
        self.counter = mmap.mmap(-1, 8)
        self.ready, ready = os.pipe()
        free, self.free = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                # A pipe ends when the first process does, so no other may hold its end.
                for worker in [self, *others]:
                    os.close(worker.ready)
                    os.close(worker.free)
                self.work(opened or reader(request["place"], request), request, number, ready, free)
                code = 0
            except BrokenPipeError:
                code = 0
            except BaseException as error:
                text = f"{type(error).__name__}: {error}".encode()[:1000]
                os.write(ready, SENT.pack(FAILED, len(text), 0) + text)
            finally:
                os._exit(code)
        os.close(ready)
        os.close(free)

    def work(self, reader, request, number, ready, free):
        parts = list(reader.parts)
        random.Random(request["seed"]).shuffle(parts)
        samples = (sample for part in parts[number :: request["workers"]] for sample in reader.read(part))
        free_slots, total, is_over = list(range(AHEAD)), 0, False
        while not is_over:
            if not free_slots:
                free_slots.extend(os.read(free, 1) or sys.exit(0))
            slot = free_slots.pop()
            memory, count, at = self.slots[slot], 0, request["batch"] * ENTRY.size
            while count < request["batch"]:
                sample = next(samples, None)
                if sample is None:
                    is_over = True
                    break
                label, content = sample
                size = len(content)
                if size > request["largest"]:
                    raise ValueError(f"a sample has {size} bytes, more than any image of the dataset ({request['largest']})")
                memory[at : at + size] = content
                memory[count * ENTRY.size : (count + 1) * ENTRY.size] = ENTRY.pack(label, size)
                count, at, total = count + 1, at + size, total + size
                self.counter[:] = total.to_bytes(8, "little")
            if count:
                os.write(ready, SENT.pack(slot, count, at - request["batch"] * ENTRY.size))
        os.write(ready, SENT.pack(END, 0, 0))

    def take(self):
        """The slot, samples and bytes of the next batch; None after the last one."""
        sent = self.exactly(SENT.size)
        slot, count, size = SENT.unpack(sent)
        if slot == FAILED:
            raise RuntimeError(self.exactly(count).decode(errors="replace"))
        return None if slot == END else (slot, count, size)

    def exactly(self, size):
        found = b""
        while len(found) < size:
            more = os.read(self.ready, size - len(found))
            if not more:
                raise RuntimeError("a worker process ended without a word")
            found += more
        return found

    def give_back(self, slot):
        try:
            os.write(self.free, bytes([slot]))
        except BrokenPipeError:
            # It has read everything, and ended.
            pass

    def end(self):
        """Returns the bytes that it read."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.ready)
        os.close(self.free)
        return int.from_bytes(self.counter[:], "little")


def from_storage():
    """Bytes that this process, and children that ended, had read from devices; 0 where the system does not count them."""
    try:
        lines = open("/proc/self/io").read().split("\n")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), 0)


def epoch(reader, request, each):
    """Calls `each(worker, slot, count)` for each batch, from one worker after the other, until it returns False."""
    before, begin, waited = from_storage(), time.perf_counter(), 0.0
    workers, batches, images, size = [], 0, 0, 0
    try:
        # One open handle for all workers is what a program does that opens before it forks.
        opened = reader(request["place"], request) if request.get("is_shared") else None
        for _ in range(request["workers"]):
            workers.append(Worker(reader, request, workers, opened))
        turns = list(workers)
        while turns:
            worker = turns.pop(0)
            asked = time.perf_counter()
            batch = worker.take()
            waited += time.perf_counter() - asked
            if batch is None:
                continue
            slot, count, bytes_of_batch = batch
            batches, images, size = batches + 1, images + count, size + bytes_of_batch
            goes_on = each(worker, slot, count)
            worker.give_back(slot)
            turns.append(worker)
            if not goes_on:
                break
        seconds = time.perf_counter() - begin
    finally:
        read = sum(worker.end() for worker in workers)
    return {"images": images, "batches": batches, "bytes": size, "read": read, "seconds": seconds, "waited": waited,
            "from_storage": from_storage() - before}


def run(reader, request):
    until = time.perf_counter() + request["seconds"]

    def each(worker, slot, count):
        if request["step"]:
            time.sleep(request["step"])
        return time.perf_counter() < until

    return epoch(reader, request, each)


def hashes(reader, request):
    found = []

    def each(worker, slot, count):
        memory, at = worker.slots[slot], request["batch"] * ENTRY.size
        for place in range(count):
            label, size = ENTRY.unpack(memory[place * ENTRY.size : (place + 1) * ENTRY.size])
            crc = zlib.crc32(memory[at : at + size], zlib.crc32(label.to_bytes(8, "little", signed=True)))
            found.append(size << 32 | crc)
            at += size
        return True

    return {**epoch(reader, request, each), "hashes": found}


def package(name):
    """Imports the package with all modules that workers use, so that no import is timed."""
    modules = [importlib.import_module(module) for module in READERS[name].modules]
    imported = READERS[name].modules[0]
    if imported in sys.stdlib_module_names:
        return {"package": f"{imported} of Python {sys.version.split()[0]}"}
    version = getattr(modules[0], "__version__", None)
    if version is None:
        from importlib import metadata

        try:
            version = metadata.version({"streaming": "mosaicml-streaming"}.get(imported, imported.replace("_", "-")))
        except metadata.PackageNotFoundError:
            version = "of an unknown version"
    return {"package": f"{imported} {version}"}


def answer(name, request):
    reader = READERS[name]
    if request["do"] == "open":
        return package(name)
    if request["do"] == "write":
        os.makedirs(request["to"], exist_ok=True)
        reader.write(request["from"], request["to"], request["rows"])
        return {}
    return (run if request["do"] == "run" else hashes)(reader, request)


def main():
    # The parent ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a package prints, also in C, must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            found = answer(sys.argv[1], json.loads(line))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
