#!/usr/bin/env python3
"""Writes testdata/meta-scipy: `meta.mat` as in ILSVRC2012's development kit, for the classes of testdata/images.

    python3 tools/golden/make_test_meta.py [DESTINATION]        (needs SciPy)

The ids are in another order than the WordNet ids, as those of the real file are, and there is a synset that is no
class. SciPy wrote it, so it tells whether our reader reads what others write.
"""

import pathlib
import sys

import numpy as np
import scipy.io

SYNSETS = [
    (1, "n09428293", "seashore, coast, seacoast, sea-coast", 0),
    (2, "n02782093", "balloon", 0),
    (3, "n07747607", "orange", 0),
    (4, "n11939491", "daisy", 0),
    (5, "n09332890", "lakeside, lakeshore", 0),
    (6, "n09193705", "alp", 0),
    (1001, "n00001740", "entity", 6),
]

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2] / "testdata/meta-scipy")
out.mkdir(parents=True, exist_ok=True)
fields = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height", "num_train_images"]
synsets = np.zeros((len(SYNSETS), 1), dtype=[(name, object) for name in fields])
for row, (number, wnid, words, children) in zip(synsets, SYNSETS):
    row[0] = (
        np.float64(number),
        wnid,
        words,
        "a gloss",
        np.uint8(children),
        np.arange(1, children + 1, dtype=np.uint16),
        np.uint8(1 if children else 0),
        np.uint16(0 if children else 1300),
    )
scipy.io.savemat(out / "meta.mat", {"synsets": synsets}, do_compression=True)
scipy.io.savemat(out / "meta-plain.mat", {"synsets": synsets}, do_compression=False)
