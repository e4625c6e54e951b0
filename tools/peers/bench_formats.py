#!/usr/bin/env python3
"""Conversions side by side: `forebay convert` to and from each format, and the package of the format.

    python tools/peers/bench_formats.py IMAGES --scratch DIR --forebay BINARY [--count N] [--rounds N] [--cores N,N]
                                        [--formats A,B] [--side N] [--json FILE]

IMAGES is a directory of JPEGs, one directory a class. They are copied up to COUNT files in DIR and packed once as indexed shards
without seek points. For the formats of arrays, whose images have one size, they are cropped to SIDE pixels with Pillow and packed again.

Writing: Forebay converts the indexed shards to the format; the package writes the same images and labels from the files, which it
decodes first for a format of arrays. Reading: Forebay converts the files that the package wrote, or its own where the package is
missing, to indexed shards; the package reads all samples and writes their bytes into one file. `cat` copies the same images into
one file. MB are bytes of the images: encoded ones, or pixels for formats of arrays.

Contestants take turns, round by round, after one round that does not count, so all files are in the page cache; each is pinned to
as many cores as --cores says. A row is the median of the rounds with the lowest and the highest. Two rates: until the program is
done, and until its files are on disk as well. Forebay syncs its files itself; the others are synced by this script. CPU seconds of
packages are without their imports, their peak RSS is with them; a peak below that of this script, about 25 MiB, cannot be told.
LitData decodes the images that it reads, and writes their pixels. Packages are those that this interpreter imports; the others are named below the table. `tools/test` shows how
mosaicml-streaming (MDS) is installed without the several GB that it declares.
"""

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys

import bench_pack
from bench_pack import SHARD_BYTES, read
from common import measured, print_cost, sync_files

# Rows of a chunk, and images that are decoded at a time.
CHUNK = 64


# Writers of packages: each gets the list of (path, label), the directory to write to and the number of cores, imports what it
# needs, and returns the function to time.

def parquet_writer(files, out, cores):
    import datasets

    features = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.Value("int64")})

    def samples():
        for path, label in files:
            yield {"image": {"bytes": read(path), "path": os.path.basename(path)}, "label": label}

    def work():
        made = datasets.Dataset.from_generator(samples, features=features, cache_dir=os.path.join(out, "cache"))
        made.to_parquet(os.path.join(out, "train-00000-of-00001.parquet"))
        shutil.rmtree(os.path.join(out, "cache"))
    return work


def lmdb_writer(files, out, cores):
    import lmdb

    def work():
        size = 2 * sum(os.path.getsize(path) + 8192 for path, _ in files)
        env = lmdb.open(os.path.join(out, "train.lmdb"), map_size=size, subdir=False, lock=False)
        with env.begin(write=True) as transaction:
            for number, (path, _) in enumerate(files):
                transaction.put(f"{number:010}".encode(), read(path), append=True)
        env.close()
    return work


def pixels(files):
    """Decoded images of some files at a time."""
    import numpy
    from PIL import Image

    for start in range(0, len(files), CHUNK):
        decoded = [numpy.asarray(Image.open(path).convert("RGB")) for path, _ in files[start : start + CHUNK]]
        yield start, numpy.stack(decoded)


def all_pixels(files):
    import numpy

    return numpy.concatenate([rows for _, rows in pixels(files)])


def labels(files):
    import numpy

    return numpy.array([label for _, label in files], numpy.int64)


def npz_writer(files, out, cores):
    import numpy

    return lambda: numpy.savez(os.path.join(out, "train.npz"), images=all_pixels(files), labels=labels(files))


def safetensors_writer(files, out, cores):
    from safetensors.numpy import save_file

    target = os.path.join(out, "train.safetensors")
    return lambda: save_file({"images": all_pixels(files), "labels": labels(files)}, target)


def hdf5_writer(files, out, cores):
    import h5py

    def work():
        with h5py.File(os.path.join(out, "train.h5"), "w") as file:
            images = None
            for start, rows in pixels(files):
                if images is None:
                    images = file.create_dataset("images", (len(files), *rows.shape[1:]), rows.dtype)
                images[start : start + len(rows)] = rows
            file["labels"] = labels(files)
    return work


def zarr_writer(files, out, cores):
    import zarr

    def work():
        group = zarr.open_group(os.path.join(out, "train.zarr"), mode="w")
        images = None
        for start, rows in pixels(files):
            if images is None:
                shape, chunks = (len(files), *rows.shape[1:]), (CHUNK, *rows.shape[1:])
                images = group.create_array("images", shape=shape, chunks=chunks, dtype=rows.dtype, compressors=None)
            images[start : start + len(rows)] = rows
        numbers = labels(files)
        group.create_array("labels", shape=numbers.shape, dtype=numbers.dtype, compressors=None)[...] = numbers
    return work


# Readers of packages: each gets the directory of the files, and yields the bytes of each image or of several.

def webdataset_reader(place):
    import webdataset

    tars = sorted(os.path.join(place, name) for name in os.listdir(place) if name.endswith(".tar"))
    for sample in webdataset.WebDataset(tars, shardshuffle=False, empty_check=False):
        yield sample["jpg"]


def mds_reader(place):
    from streaming import LocalDataset

    source = LocalDataset(local=os.path.join(place, "mds"))
    for number in range(len(source)):
        yield source[number]["x"]


def parquet_reader(place):
    import datasets

    source = datasets.load_dataset("parquet", data_dir=place, split="train", cache_dir=os.path.join(place, "..", "cache"))
    # Columns of bytes as they are: whether they are images is known to features of the file.
    source = source.cast_column("image", datasets.Image(decode=False))
    for sample in source:
        yield sample["image"]["bytes"]


def lmdb_reader(place):
    import lmdb

    env = lmdb.open(os.path.join(place, "train.lmdb"), subdir=False, readonly=True, lock=False)
    with env.begin() as transaction:
        for _, value in transaction.cursor():
            yield value


def arrayrecord_reader(place):
    from array_record.python.array_record_module import ArrayRecordReader

    for name in sorted(os.listdir(place)):
        reader = ArrayRecordReader(os.path.join(place, name))
        count = reader.num_records()
        for start in range(0, count, CHUNK):
            yield from reader.read(list(range(start, min(start + CHUNK, count))))


def litdata_reader(place):
    import litdata

    source = litdata.StreamingDataset(os.path.join(place, "litdata"), shuffle=False)
    for sample in source:
        # LitData decodes images as it reads them.
        yield bytes(sample["image"].numpy().data)


def npz_reader(place):
    import numpy

    with numpy.load(os.path.join(place, "train.npz")) as arrays:
        yield arrays["images"].data


def safetensors_reader(place):
    from safetensors.numpy import load_file

    yield load_file(os.path.join(place, "train.safetensors"))["images"].data


def hdf5_reader(place):
    import h5py

    with h5py.File(os.path.join(place, "train.h5")) as file:
        images = file["images"]
        for start in range(0, len(images), CHUNK):
            yield images[start : start + CHUNK].data


def zarr_reader(place):
    import zarr

    images = zarr.open_group(os.path.join(place, "train.zarr"), mode="r")["images"]
    for start in range(0, images.shape[0], CHUNK):
        yield images[start : start + CHUNK].data


# Format: what it is imported by, its writer and its reader, whether it holds pixels, and whether Forebay writes it.
FORMATS = {
    "webdataset": ("webdataset", bench_pack.webdataset_writer, webdataset_reader, False, True),
    "mds": ("streaming", bench_pack.mds_writer, mds_reader, False, True),
    "parquet": ("datasets", parquet_writer, parquet_reader, False, True),
    "lmdb": ("lmdb", lmdb_writer, lmdb_reader, False, True),
    "arrayrecord": ("array_record", bench_pack.arrayrecord_writer, arrayrecord_reader, False, True),
    "litdata": ("litdata", bench_pack.litdata_writer, litdata_reader, False, False),
    "npz": ("numpy", npz_writer, npz_reader, True, True),
    "safetensors": ("safetensors", safetensors_writer, safetensors_reader, True, True),
    "hdf5": ("h5py", hdf5_writer, hdf5_reader, True, True),
    "zarr": ("zarr", zarr_writer, zarr_reader, True, True),
}
# What Forebay calls a column that a package has another name for.
COLUMNS = {"mds": ["--image-feature", "x", "--label-feature", "y"]}


def worker(role, name, listing, source, out, cores):
    """Runs a package in this process, and prints what it cost as JSON."""
    if role == "write":
        work = FORMATS[name][1]([tuple(file) for file in json.load(open(listing))], out, cores)
    else:
        # Imports are not timed.
        importlib.import_module(FORMATS[name][0])

        def work():
            with open(os.path.join(out, "all"), "wb") as target:
                for content in FORMATS[name][2](source):
                    target.write(content)
    print_cost(work)


class Bench:
    def __init__(self, args):
        self.place = os.path.abspath(args.scratch)
        self.forebay = os.path.abspath(args.forebay)
        self.rounds = args.rounds
        os.makedirs(self.place, exist_ok=True)
        self.notes = []

    def path(self, *parts):
        return os.path.join(self.place, *parts)

    def prepare(self, images, count, side, has_arrays):
        """Lists of the files of both kinds, and their bytes as images."""
        encoded = bench_pack.make_source(images, self.path("encoded"), count)
        self.sources = {False: (encoded, sum(os.path.getsize(path) for path, _ in encoded))}
        if has_arrays:
            self.sources[True] = (self.crop(encoded, side), count * side * side * 3)
        for is_array, (files, _) in self.sources.items():
            kind = self.kind(is_array)
            json.dump(files, open(self.path(f"{kind}.json"), "w"))
            with open(self.path(f"{kind}.names"), "wb") as names:
                names.write(b"".join(os.fsencode(path) + b"\0" for path, _ in files))
            if not os.path.exists(self.path(f"{kind}-fbs", "forebay.json")):
                self.command("pack", self.path(kind), self.path(f"{kind}-fbs"), "--format", "indexed", "--seek-points=off",
                             "--split", "train", "--shard-size", str(SHARD_BYTES))

    @staticmethod
    def kind(is_array):
        return "cropped" if is_array else "encoded"

    def crop(self, files, side):
        from PIL import Image, ImageOps

        found = []
        for path, label in files:
            target = path.replace(self.path("encoded"), self.path("cropped"), 1)
            found.append((target, label))
            if not os.path.exists(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                ImageOps.fit(Image.open(path).convert("RGB"), (side, side)).save(target, "JPEG", quality=90)
        return found

    def command(self, *words):
        done = subprocess.run([self.forebay, *words, "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"forebay {' '.join(words)}: {done.stderr}")

    def written(self, name):
        """The files that are read: those of the package, or Forebay's own without it."""
        module, _, _, is_array, is_written = FORMATS[name]
        target = self.path("written", name)
        if os.path.isdir(target):
            return target
        os.makedirs(self.path("written"), exist_ok=True)
        shutil.rmtree(target + ".new", ignore_errors=True)
        os.makedirs(target + ".new")
        if importlib.util.find_spec(module):
            self.run("write", name, "package", 1, target + ".new", keep=True)
        elif is_written:
            self.command("convert", self.path(f"{self.kind(is_array)}-fbs"), target + ".new", "--format", name)
        else:
            return None
        os.rename(target + ".new", target)
        return target

    def run(self, role, name, contestant, cores, out, keep=False):
        """One run: seconds, seconds until on disk, CPU seconds, RSS in KiB."""
        if not keep:
            shutil.rmtree(out, ignore_errors=True)
            os.makedirs(out)
        is_array = FORMATS[name][3]
        kind = self.kind(is_array)
        source = self.path("written", name) if role == "read" else self.path(f"{kind}-fbs")
        given, target = os.devnull, os.devnull
        if contestant == "cat":
            command, given, target = ["xargs", "-0", "cat"], self.path(f"{kind}.names"), os.path.join(out, "all")
        elif contestant == "forebay":
            to = name if role == "write" else "indexed"
            command = [self.forebay, "convert", source, os.path.join(out, "dst"), "--format", to, "--quiet", "--jobs", str(cores)]
            if role == "read":
                has_package = importlib.util.find_spec(FORMATS[name][0]) is not None
                command += ["--from", name, *(COLUMNS.get(name, []) if has_package else [])]
        else:
            command = [sys.executable, os.path.abspath(__file__), "--worker", role, "--format", name, "--source", source,
                       "--listing", self.path(f"{kind}.json"), "--out", out, "--cores", str(cores)]
        seconds, cpu, rss = measured(command, cores, given, target, contestant == "package")
        synced = seconds + sync_files(out)
        if not keep:
            shutil.rmtree(out)
        return seconds, synced, cpu, rss

    def contestants(self, formats):
        """Role, format and contestant of each run; cat once for each kind of images and role."""
        found = []
        for is_array in self.sources:
            names = [name for name in formats if FORMATS[name][3] == is_array]
            for role in ("write", "read"):
                found += [(role, names[0], "cat")] if names else []
                for name in names:
                    module, _, _, _, is_written = FORMATS[name]
                    has_package = importlib.util.find_spec(module) is not None
                    if role == "read" and self.written(name) is None:
                        continue
                    if role == "read" or is_written:
                        found.append((role, name, "forebay"))
                    if has_package:
                        found.append((role, name, "package"))
        missing = [name for name in formats if importlib.util.find_spec(FORMATS[name][0]) is None]
        self.notes += [f"{name}: {FORMATS[name][0]} cannot be imported" for name in missing]
        return found

    def turns(self, formats, cores):
        results = {contestant: [] for contestant in self.contestants(formats)}
        for number in range(self.rounds + 1):
            for contestant in list(results):
                try:
                    run = self.run(*contestant, cores, self.path("out"))
                except (RuntimeError, OSError) as error:
                    self.notes.append(f"{' '.join(contestant)}, {cores} core(s): {error}")
                    del results[contestant]
                    continue
                print(f"{cores} core(s), round {number}: {' '.join(contestant)} {run[0]:.2f} s", file=sys.stderr)
                if number > 0:
                    results[contestant].append(run)
        return results

    def table(self, results, is_array, role):
        """Lines of Markdown."""
        files, total = self.sources[is_array]
        mine = {key[1:]: runs for key, runs in results.items() if key[0] == role and FORMATS[key[1]][3] == is_array}
        base = next((runs for (_, contestant), runs in mine.items() if contestant == "cat"), None)
        lines = ["| | median MB/s | lowest - highest | to `cat` | MB/s on disk | CPU s/GB | peak RSS |",
                 "| --- | --- | --- | --- | --- | --- | --- |"]
        for (name, contestant), runs in mine.items():
            if not runs:
                continue
            median = [statistics.median(run[at] for run in runs) for at in range(4)]
            rates = sorted(total / 1e6 / run[0] for run in runs)
            to_cat = f"{statistics.median(run[0] for run in base) / median[0]:.2f}" if base else ""
            shown = {"cat": "`cat`", "forebay": f"{name}, Forebay", "package": f"{name}, {FORMATS[name][0]}"}[contestant]
            lines.append(f"| {shown} | {total / 1e6 / median[0]:,.0f} | {rates[0]:,.0f} - {rates[-1]:,.0f} | {to_cat} "
                         f"| {total / 1e6 / median[1]:,.0f} | {median[2] / (total / 1e9):.2f} "
                         f"| {max(run[3] for run in runs) / 1024:,.0f} MiB |")
        return [f"{'Pixels' if is_array else 'Encoded images'}, "
                f"{'written' if role == 'write' else 'read'}, {len(files):,} files, {total / 1e6:,.0f} MB:", "", *lines, ""]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="?")
    parser.add_argument("--scratch", help="a directory for copies of the images and all outputs")
    parser.add_argument("--forebay", help="the binary, built in the release profile with --features formats")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", default="1,2")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--json", help="keeps every run in this file")
    for hidden in ("--worker", "--format", "--listing", "--source", "--out"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    cores = [int(cores) for cores in args.cores.split(",")]
    if args.worker:
        return worker(args.worker, args.format, args.listing, args.source, args.out, cores[0])
    if not args.images or not args.scratch or not args.forebay:
        parser.error("IMAGES, --scratch and --forebay are needed")
    formats = args.formats.split(",")
    if unknown := [name for name in formats if name not in FORMATS]:
        parser.error(f"no such format: {', '.join(unknown)}; there are {', '.join(FORMATS)}")
    bench = Bench(args)
    bench.prepare(args.images, args.count, args.side, any(FORMATS[name][3] for name in formats))
    kept = []
    for count in cores:
        results = bench.turns(formats, count)
        print(f"{count} core{'s' if count > 1 else ''}, {args.rounds} rounds, warm.\n")
        for is_array in bench.sources:
            for role in ("write", "read"):
                print("\n".join(bench.table(results, is_array, role)))
        kept += [{"cores": count, "run": key, "seconds_synced_cpu_rss": runs} for key, runs in results.items()]
    for note in bench.notes:
        print(note)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(kept, file, indent=1)


if __name__ == "__main__":
    main()
