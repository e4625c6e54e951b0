#!/usr/bin/env python3
"""Writes testdata/hostile with h5py: small files that claim many bytes, and links.

    pip install h5py numpy
    python3 tools/golden/make_hostile_files.py
"""

from pathlib import Path

import h5py
import numpy

OUT = Path(__file__).resolve().parents[2] / "testdata/hostile"


def main() -> None:
    OUT.mkdir(exist_ok=True)
    # A row of 1 GiB, of which nothing is stored.
    with h5py.File(OUT / "row.h5", "w") as file:
        file.create_dataset("images", shape=(1, 16384, 21845, 3), dtype="u1")
        file.create_dataset("labels", data=numpy.zeros(1, "i8"))
    # A chunk of 250 MiB in 10 kB.
    with h5py.File(OUT / "chunk.h5", "w") as file:
        shape = (1000, 512, 512, 1)
        images = file.create_dataset(
            "images", shape=shape, chunks=shape, dtype="u1", compression="gzip", compression_opts=1
        )
        file.create_dataset("labels", data=numpy.zeros(1000, "i8"))
        images[0] = numpy.ones(shape[1:], "u1")
    with h5py.File(OUT / "links.h5", "w") as file:
        file.create_dataset("images", data=numpy.zeros((2, 4, 4, 3), "u1"))
        file["labels"] = h5py.SoftLink("/real/y")
        file.create_dataset("real/y", data=numpy.arange(2))
        file["gone"] = h5py.SoftLink("/nowhere")
        file["far"] = h5py.ExternalLink("other.h5", "/x")
    with h5py.File(OUT / "loop.h5", "w") as file:
        file.create_dataset("images", data=numpy.zeros((2, 4, 4, 3), "u1"))
        file["loop"] = h5py.SoftLink("/")


if __name__ == "__main__":
    main()
