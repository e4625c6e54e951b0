"""The plots: speed beside peers, two threads beside one, and packing beside `cat`."""

from __future__ import annotations

from typing import Any

from canvas import Picture

WIDTH, SHOWN, MARGIN = 560, 640, 20
LEFT = 222  # Where bars begin, behind the widest label.


def begun(title: str, below: list[str], rows: int, row: int, foot: list[str], description: str) -> tuple[Picture, int]:
    """A picture with its title, lines below it and lines at its foot, and the top of its first row."""
    top = 40 + 21 * len(below)
    height = top + rows * row + 14 + 20 * len(foot) + 10
    picture = Picture(WIDTH, height, title, description, SHOWN)
    picture.text(MARGIN, 34, title, "ink title")
    for at, line in enumerate(below):
        picture.text(MARGIN, 57 + 21 * at, line, "dim small")
    for at, line in enumerate(foot):
        picture.text(MARGIN, top + rows * row + 28 + 20 * at, line, "dim small")
    return picture, top + 6


def key(picture: Picture, x: float, y: float, classes: str, words: str) -> None:
    """An entry of a legend."""
    picture.bar(x, y - 11, 13, 13, classes)
    picture.text(x + 19, y, words, "dim small")


def peers(data: dict[str, Any]) -> Picture:
    """Images a second of one thread, a bar for each loader."""
    rows = data["rows"]
    best = rows[0]["one_thread"]
    spoken = ", ".join(f"{row['label']} {row['one_thread']:,}" for row in rows)
    picture, top = begun(
        "Images a second, one thread on one core", [data["work"]], len(rows) + 1, 30, [data["machine"], data["data"]],
        f"Bars of images per second: {spoken}. {data['work']}; {data['machine']}; {data['data']}.",
    )
    left, right = LEFT, WIDTH - 132
    for at, row in enumerate(rows):
        y = top + 30 * at
        ours, full = row.get("ours", False), row["antialiased"]
        length = (right - left) * row["one_thread"] / best
        picture.text(left - 10, y + 19, row["label"], "ink strong" if ours else "ink", end=True)
        picture.bar(left, y + 4, length, 21, "accent" if ours else "other" if full else "other2")
        picture.text(left + length + 7, y + 19, f"{row['one_thread']:,}", "ink strong" if ours else "ink")
        if "forebay_is" in row:
            picture.text(WIDTH - MARGIN, y + 19, f"{row['forebay_is']:.2f}x", "dim", end=True)
    y = top + 30 * len(rows) + 18
    key(picture, left, y, "other", "antialiased, as Forebay")
    key(picture, left + 188, y, "other2", "not antialiased")
    return picture


def threads(data: dict[str, Any]) -> Picture:
    """Images a second of one thread and of two, a line from dot to dot for each loader."""
    rows = data["rows"]
    spoken = ", ".join(f"{row['label']} {row['one_thread']:,} and {row['two_threads']:,}" for row in rows)
    picture, top = begun(
        "Images a second, one thread and two", [data["work"]], len(rows) + 2, 30, [data["machine"], data["data"]],
        f"Images per second with one thread and with two: {spoken}. {data['work']}; {data['machine']}; {data['data']}.",
    )
    left, right = LEFT, WIDTH - 90
    most = 6000
    base = top + 30 * len(rows)
    for tick in range(0, most + 1, 2000):
        x = left + (right - left) * tick / most
        picture.line(x, top, x, base)
        picture.text(x + (18 if tick else 5), base + 18, f"{tick:,}", "dim small", end=True)
    for at, row in enumerate(rows):
        y = top + 30 * at + 15
        ours = row.get("ours", False)
        one, two = (left + (right - left) * row[name] / most for name in ("one_thread", "two_threads"))
        color = "accent" if ours else "other"
        picture.text(left - 10, y + 5, row["label"], "ink strong" if ours else "ink", end=True)
        picture.line(one, y, two, y, f"{color}-line")
        picture.dot(one, y, 5, f"paper {color}-line")
        picture.dot(two, y, 6, color)
        picture.text(WIDTH - MARGIN, y + 5, f"{row['two_threads'] / row['one_thread']:.2f}x", "ink strong" if ours else "dim", end=True)
    y = base + 44
    picture.dot(left + 6, y - 5, 5, "paper other-line")
    picture.text(left + 18, y, "one thread", "dim small")
    picture.dot(left + 124, y - 5, 6, "other")
    picture.text(left + 136, y, "two, and the gain", "dim small")
    return picture


def pack(data: dict[str, Any]) -> Picture:
    """Megabytes a second of packing on one core, until the program ends and until its files are on disk."""
    rows = data["rows"]
    spoken = ", ".join(f"{row['label']} {row['ended']:,} and {row['on_disk']:,}" for row in rows)
    picture, top = begun(
        "Packing beside cat: MB/s on one core", [data["work"]], len(rows) + 1, 40, [data["machine"], data["data"]],
        f"Megabytes per second until the program ends, and until its files are on disk: {spoken}. {data['machine']}; {data['data']}.",
    )
    left, right = LEFT, WIDTH - 90
    most = max(row["ended"] for row in rows)
    cat = left + (right - left) * rows[0]["on_disk"] / most
    picture.line(cat, top, cat, top + 40 * len(rows), "ink-line dashed")
    for at, row in enumerate(rows):
        y = top + 40 * at
        ours = row.get("ours", False)
        strong, weak = ("accent", "accent2") if ours else ("other", "other2")
        picture.text(left - 10, y + 24, row["label"], "ink strong" if ours else "ink", end=True)
        for below, name, color in ((0, "ended", weak), (16, "on_disk", strong)):
            length = (right - left) * row[name] / most
            picture.bar(left, y + 4 + below, length, 14, color)
            picture.text(left + length + 6, y + 16 + below, f"{row[name]:,}", "ink small halo" if below else "dim small halo")
    y = top + 40 * len(rows) + 24
    key(picture, left, y, "other2", "until it ends")
    key(picture, left + 116, y, "other", "until all is on disk")
    return picture
