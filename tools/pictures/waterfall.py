"""The waterfall of `forebay bench explain`: where the time of an image goes, and what remedies would gain."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from canvas import Picture

WIDTH, SHOWN, MARGIN = 560, 640, 20
TIMES = re.compile(
    r"an image takes ([\d.]+) ms of the storage; of a core ([\d.]+) ms to read, ([\d.]+) ms to decode, ([\d.]+) ms to transform"
)
STAGES = ("storage", "read, checksums", "decode", "transform")
# The table of the command says more than fits beside a bar.
SHORT = (
    ("one more machine", "one more machine"),
    ("images with short sides of 256 pixels", "short sides of 256 px"),
    ("a decode thread for each core", "a thread for each core"),
    ("fast images without codes", "fast images, no codes"),
    ("storage as fast as", "storage like memory"),
    ("a local cache", "a local cache"),
)


def times(notes: list[str]) -> list[float]:
    """Milliseconds of an image in each stage."""
    found = next(match for note in notes if (match := TIMES.match(note)))
    return [float(time) for time in found.groups()]


def short(remedy: str) -> str:
    return next((words for start, words in SHORT if remedy.startswith(start)), remedy)


def waterfall(data: dict[str, Any]) -> Picture:
    """The picture of what `forebay bench explain --json` printed."""
    stages = times(data["bench"]["notes"])
    prices = sorted(data["prices"]["prices"], key=lambda price: -price["gain"])
    bottleneck, _, _ = data["prices"]["bottleneck"].partition(":")
    row, left, right = 30, 222, WIDTH - 122
    command = textwrap.wrap(data["command"].removesuffix(" --json"), 64, break_long_words=False, break_on_hyphens=False)
    top = 46 + 20 * len(command)
    under = top + row * (len(stages) + 1)
    height = under + 74 + row * len(prices) + 54
    spoken = ", ".join(f"{name} {time:.3f} ms" for name, time in zip(STAGES, stages, strict=True))
    gains = ", ".join(f"{short(price['remedy'])} {price['gain']:.2f} times" for price in prices)
    picture = Picture(
        WIDTH, height, "Where the time of an image goes, and what would help",
        f"Time of an image in each stage: {spoken}. Bottleneck: {bottleneck}. Predicted gains: {gains}. {data['machine']}.", SHOWN,
    )
    picture.text(MARGIN, 34, "Where the time of an image goes", "ink title")
    for at, line in enumerate(command):
        picture.text(MARGIN, 57 + 20 * at, line, "dim small")
    whole = sum(stages)
    begins, y = 0.0, top
    for name, time in zip(STAGES, stages, strict=True):
        x, width = left + (right - left) * begins / whole, (right - left) * time / whole
        most = time == max(stages)
        picture.text(left - 10, y + 20, name, "ink strong" if most else "ink", end=True)
        if begins:
            picture.line(x, y - 5, x, y + 5, "other-line")
        picture.bar(x, y + 5, max(width, 2), 21, "accent" if most else "other")
        picture.text(WIDTH - MARGIN, y + 20, f"{time:.3f} ms", "ink strong" if most else "dim", end=True)
        begins, y = begins + time, y + row
    picture.text(left, y + 20, bottleneck, "warm strong")

    picture.text(MARGIN, under + 30, "What a remedy would gain", "ink title")
    picture.text(MARGIN, under + 53, "predicted, with its interval", "dim small")
    most = max(price["highest"] for price in prices)
    y = under + 62
    one = left + (right - left) / most
    picture.line(one, y, one, y + row * len(prices), "ink-line dashed")
    for price in prices:
        low, gain, high = (left + (right - left) * price[name] / most for name in ("lowest", "gain", "highest"))
        picture.text(left - 10, y + 20, short(price["remedy"]), "ink", end=True)
        picture.line(low, y + 15, high, y + 15, "accent-line")
        picture.dot(gain, y + 15, 6, "accent")
        picture.text(WIDTH - MARGIN, y + 20, f"{price['gain']:.2f}x", "ink", end=True)
        y += row
    picture.text(one, y + 16, "as now", "dim small", end=False)
    picture.text(MARGIN, y + 40, data["machine"], "dim small")
    return picture
