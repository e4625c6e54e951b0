#!/usr/bin/env python3
"""Draws docs/pictures/*.svg from docs/pictures/data/*.json.

    tools/pictures/draw.py            writes them
    tools/pictures/draw.py --check    exits with 1 if one is stale, and writes nothing

record.py keeps what a command printed; peers.json and pack.json have figures of docs/benchmarks.md. dashboard.py makes the one
picture that is no drawing.
"""

from __future__ import annotations

import json
import pathlib
import sys

import plots
import terminal
import waterfall

ROOT = pathlib.Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs/pictures"

# Picture: its data and what draws it.
DRAWN = {
    "quickstart": ("quickstart", terminal.recording),
    "peers": ("peers", plots.peers),
    "threads": ("peers", plots.threads),
    "pack": ("pack", plots.pack),
    "explain": ("explain", waterfall.waterfall),
}


def text(name: str) -> str:
    """The file of a picture."""
    data, draw = DRAWN[name]
    return draw(json.loads((PICTURES / f"data/{data}.json").read_text(encoding="utf-8"))).render()


def stale() -> list[str]:
    """The pictures that differ from their data."""
    files = {name: PICTURES / f"{name}.svg" for name in DRAWN}
    return [name for name, file in files.items() if not file.exists() or file.read_text(encoding="utf-8") != text(name)]


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        for name in DRAWN:
            (PICTURES / f"{name}.svg").write_text(text(name), encoding="utf-8")
    elif found := stale():
        sys.exit(f"error: stale: {', '.join(found)}: run tools/pictures/draw.py")
