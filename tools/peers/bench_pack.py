#!/usr/bin/env python3
"""Packing side by side: `forebay pack` in both formats, `cat`, `tar`, and the writers of other projects.

    python tools/peers/bench_pack.py IMAGES --scratch DIR [--count 4000] [--rounds 5] [--cores 1,2] [--cold]
                                     [--peers cat,tar,python,forebay-tfrecord,forebay-indexed | all]

IMAGES is a directory of JPEGs; they are copied up to COUNT files in DIR, one directory a class. The contestants take
turns, round by round, after one round that does not count, each pinned to the first cores of --cores. A row is
the median of the rounds with the lowest and highest; MB are source bytes. Two rates: until the program is done, and until
its files are on disk as well (`forebay pack` never ends before that, so its two rates are nearly one). CPU seconds
and peak RSS are those of the contestant's processes together, without the start of an interpreter or its imports. With --cold, page
cache and directory entries are dropped before each run, which takes root. The table goes to stdout, as Markdown.

Peers: cat, tar, python (read and write, one file), forebay-tfrecord, forebay-indexed (without seek points, as the
others; forebay-tfrecord-seek with them), tf (TFRecordWriter of TensorFlow), tfrecord (of the package of that name),
arrayrecord, mds (mosaicml-streaming), webdataset, litdata, ffcv. Those that are Python packages are installed into a
virtual environment of their own in DIR on first use; one that cannot be installed is named below the table.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys

from common import STREAMING, environment, measured, print_cost, sync_files

DEFAULT = "cat,tar,python,forebay-tfrecord,forebay-indexed"
PACKAGES = {
    "tf": ["tensorflow-cpu"],
    "tfrecord": ["tfrecord"],
    "arrayrecord": ["array-record"],
    "mds": STREAMING,
    "webdataset": ["webdataset"],
    "litdata": ["litdata"],
    "ffcv": ["ffcv"],
}
NATIVE = ["cat", "tar", "python", "forebay-tfrecord", "forebay-indexed"]
SHARD_BYTES = 256 << 20


# The contestants. Each gets the list of (path, label), the directory to write to and the number of cores, and has
# imported what it needs before the clock starts: it returns the function to time.

def python_writer(files, out, cores):
    def work():
        with open(os.path.join(out, "all"), "wb") as target:
            for path, _ in files:
                with open(path, "rb") as file:
                    target.write(file.read())
    return work


def tf_writer(files, out, cores):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    def feature(value):
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    def work():
        for path, writer in sharded(files, lambda n: tf.io.TFRecordWriter(os.path.join(out, f"train-{n:05}"))):
            image = read(path[0])
            example = tf.train.Example(features=tf.train.Features(feature={
                "image/encoded": feature(image), "image/class/label": feature(path[1]),
                "image/filename": feature(os.path.basename(path[0]).encode())}))
            writer.write(example.SerializeToString())
    return work


def tfrecord_writer(files, out, cores):
    from tfrecord.writer import TFRecordWriter

    def work():
        for path, writer in sharded(files, lambda n: TFRecordWriter(os.path.join(out, f"train-{n:05}"))):
            writer.write({"image/encoded": (read(path[0]), "byte"), "image/class/label": (path[1], "int")})
    return work


def arrayrecord_writer(files, out, cores):
    try:
        from array_record.python.array_record_module import ArrayRecordWriter
    except ImportError:
        from array_record.python import array_record_module
        ArrayRecordWriter = array_record_module.ArrayRecordWriter

    def work():
        make = lambda n: ArrayRecordWriter(os.path.join(out, f"train-{n:05}.array_record"), "group_size:1,uncompressed")
        for path, writer in sharded(files, make):
            writer.write(read(path[0]))
    return work


def mds_writer(files, out, cores):
    from streaming import MDSWriter

    def work():
        with MDSWriter(out=os.path.join(out, "mds"), columns={"x": "bytes", "y": "int"}, size_limit=SHARD_BYTES) as writer:
            for path, label in files:
                writer.write({"x": read(path), "y": label})
    return work


def webdataset_writer(files, out, cores):
    import webdataset

    def work():
        pattern = os.path.join(out, "train-%06d.tar")
        with webdataset.ShardWriter(pattern, maxsize=SHARD_BYTES, maxcount=10**9, verbose=0) as writer:
            for number, (path, label) in enumerate(files):
                writer.write({"__key__": f"{number:08}", "jpg": read(path), "cls": label})
    return work


def litdata_sample(item):
    from litdata.types import Image

    # A sample of byte strings and numbers alone would become a row of Arrow.
    return {"image": Image(bytes=read(item[0])), "label": item[1]}


def litdata_writer(files, out, cores):
    import litdata

    def work():
        litdata.optimize(fn=litdata_sample, inputs=files, output_dir=os.path.join(out, "litdata"),
                         num_workers=cores, chunk_bytes="64MB")
    return work


def ffcv_writer(files, out, cores):
    from ffcv.fields import BytesField, IntField
    from ffcv.writer import DatasetWriter
    import numpy

    class Files:
        def __len__(self):
            return len(files)

        def __getitem__(self, index):
            return numpy.fromfile(files[index][0], dtype=numpy.uint8), files[index][1]

    def work():
        fields = {"image": BytesField(), "label": IntField()}
        DatasetWriter(os.path.join(out, "all.beton"), fields, num_workers=cores).from_indexed_dataset(Files())
    return work


WRITERS = {
    "python": python_writer, "tf": tf_writer, "tfrecord": tfrecord_writer, "arrayrecord": arrayrecord_writer,
    "mds": mds_writer, "webdataset": webdataset_writer, "litdata": litdata_writer, "ffcv": ffcv_writer,
}


def read(path):
    with open(path, "rb") as file:
        return file.read()


def sharded(files, make):
    """Each file with the writer of its shard; shards of about SHARD_BYTES."""
    writer, written, number = None, 0, 0
    for file in files:
        if writer is None or written >= SHARD_BYTES:
            if writer:
                writer.close()
            writer, written, number = make(number), 0, number + 1
        written += os.path.getsize(file[0])
        yield file, writer
    if writer:
        writer.close()


def worker(name, listing, out, cores):
    """Runs one of WRITERS in this process, and prints what it cost as JSON."""
    files = [(path, label) for path, label in json.load(open(listing))]
    work = WRITERS[name](files, out, cores)
    print_cost(work)


# The bench.

def make_source(images, target, count):
    """Copies images up to `count` files, and lists them in (path, label) pairs."""
    found = []
    for folder, _, names in sorted(os.walk(images)):
        for name in sorted(names):
            if name.lower().endswith((".jpg", ".jpeg", ".png")):
                found.append(os.path.join(folder, name))
    if not found:
        sys.exit(f"there are no images in {images}")
    classes = sorted({os.path.dirname(path) for path in found})
    files = []
    for number in range(count):
        path = found[number % len(found)]
        label = classes.index(os.path.dirname(path))
        folder = os.path.join(target, f"class{label:05}")
        copy = os.path.join(folder, f"{number:07}_{os.path.basename(path)}")
        files.append((copy, label))
        if not os.path.exists(copy):
            os.makedirs(folder, exist_ok=True)
            shutil.copyfile(path, copy)
    return files


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3\n")


def run_once(name, place, cores, interpreter, forebay):
    """One run of a contestant: seconds, seconds until on disk, CPU seconds, RSS in KiB."""
    out = os.path.join(place, "out")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    listing, source = os.path.join(place, "files.json"), os.path.join(place, "source")
    target, is_worker = os.devnull, False
    if name == "cat":
        command, target = ["xargs", "-0", "cat"], os.path.join(out, "all")
    elif name == "tar":
        command = ["tar", "-cf", os.path.join(out, "all.tar"), "--null", "-P", "-T", "-"]
    elif name.startswith("forebay-"):
        kind = name.split("-")
        command = [forebay, "pack", source, out, "--quiet", "--format", kind[1], "--jobs", str(cores)]
        command += [] if "seek" in kind else ["--seek-points=off"]
    else:
        command = [str(interpreter), os.path.abspath(__file__), "--worker", name, "--listing", listing,
                   "--out", out, "--cores", str(cores)]
        is_worker = True
    seconds, cpu, rss = measured(command, cores, os.path.join(place, "names"), target, is_worker)
    synced = seconds + sync_files(out)
    shutil.rmtree(out)
    return seconds, synced, cpu, rss


def table(results, files, total_bytes, cores):
    """Lines of Markdown, in the order of the contestants."""
    def rate(seconds):
        return total_bytes / 1e6 / seconds

    base = results.get("cat")
    lines = ["| | median MB/s | lowest - highest | to `cat` | files/s | MB/s on disk | to `cat` | CPU s/GB | peak RSS |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, runs in results.items():
        seconds, synced = (statistics.median(run[at] for run in runs) for at in (0, 1))
        lowest, highest = max(run[0] for run in runs), min(run[0] for run in runs)
        to_cat = [statistics.median(run[at] for run in base) / mine if base else None
                  for at, mine in ((0, seconds), (1, synced))]
        shown = [f"{value:.2f}" if value else "" for value in to_cat]
        cpu = statistics.median(run[2] for run in runs) / (total_bytes / 1e9)
        rss = max(run[3] for run in runs) / 1024
        lines.append(f"| {name} | {rate(seconds):,.0f} | {rate(lowest):,.0f} - {rate(highest):,.0f} | {shown[0]} "
                     f"| {files / seconds:,.0f} | {rate(synced):,.0f} | {shown[1]} | {cpu:.2f} | {rss:,.0f} MiB |")
    return lines


def bench(args):
    place = os.path.abspath(args.scratch)
    os.makedirs(place, exist_ok=True)
    files = make_source(args.images, os.path.join(place, "source"), args.count)
    json.dump(files, open(os.path.join(place, "files.json"), "w"))
    with open(os.path.join(place, "names"), "wb") as names:
        names.write(b"".join(os.fsencode(path) + b"\0" for path, _ in files))
    os.sync()
    total = sum(os.path.getsize(path) for path, _ in files)
    wanted = NATIVE + list(PACKAGES) if args.peers == "all" else args.peers.split(",")
    notes, ready = [], {}
    for name in wanted:
        folder = pathlib.Path(place, f"venv-{name}")
        interpreter, why = environment(folder, PACKAGES[name]) if name in PACKAGES else (sys.executable, "")
        if why:
            notes.append(f"{name}: cannot be installed here ({why})")
        else:
            ready[name] = interpreter
    caches = ["cached"]
    if args.cold and os.access("/proc/sys/vm/drop_caches", os.W_OK):
        caches.append("cold")
    elif args.cold:
        notes.append("cold: not possible without the right to drop caches")
    for cores in args.cores:
        for cache in caches:
            results = {name: [] for name in ready}
            for round_number in range(args.rounds + 1):
                for name in list(results):
                    if cache == "cold":
                        drop_caches()
                    try:
                        run = run_once(name, place, cores, ready[name], args.forebay)
                    except (RuntimeError, OSError) as error:
                        notes.append(f"{name} on {cores} core(s), {cache}: {error}")
                        del results[name]
                        continue
                    print(f"{cores} core(s), {cache}, round {round_number}: {name} {run[0]:.2f} s", file=sys.stderr)
                    if round_number > 0:
                        results[name].append(run)
            print(f"{len(files):,} files, {total / 1e6:,.0f} MB, {cores} core{'s' if cores > 1 else ''}, {cache}, "
                  f"{args.rounds} rounds:\n")
            print("\n".join(table(results, len(files), total, cores)) + "\n")
    for note in notes:
        print(note)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="?")
    parser.add_argument("--scratch")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default=DEFAULT)
    parser.add_argument("--cores", default="1,2")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--forebay", default="target/release/forebay")
    for hidden in ("--worker", "--listing", "--out"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.cores = [int(cores) for cores in args.cores.split(",")]
    if args.worker:
        return worker(args.worker, args.listing, args.out, args.cores[0])
    if not args.images or not args.scratch:
        parser.error("IMAGES and --scratch are needed")
    args.forebay = os.path.abspath(args.forebay)
    bench(args)


if __name__ == "__main__":
    main()
