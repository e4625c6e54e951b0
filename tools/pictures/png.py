"""A PNG with a palette of 256 colors from one without, at a third of its size. Same input, same bytes."""

from __future__ import annotations

import collections
import struct
import zlib
from collections.abc import Iterator

Color = tuple[int, ...]


def chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at:at + 4])
        yield data[at + 4:at + 8], data[at + 8:at + 8 + length]
        at += 12 + length


def paeth(a: int, b: int, c: int) -> int:
    pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
    return a if pa <= pb and pa <= pc else b if pb <= pc else c


def pixels(data: bytes) -> tuple[int, int, list[Color]]:
    """Width, height and colors of a PNG of 8 bits a channel, without interlacing; transparency is dropped."""
    header, packed = b"", b""
    for kind, body in chunks(data):
        header = body if kind == b"IHDR" else header
        packed += body if kind == b"IDAT" else b""
    width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if depth != 8 or color not in (2, 6) or interlaced:
        raise ValueError("expected a PNG of RGB or RGBA with 8 bits, not interlaced")
    size = 3 if color == 2 else 4
    raw, stride = zlib.decompress(packed), width * size
    above, found = bytearray(stride), []
    for y in range(height):
        start = y * (stride + 1)
        way, row = raw[start], bytearray(raw[start + 1:start + 1 + stride])
        if way:
            for i in range(stride):
                left, corner = (row[i - size], above[i - size]) if i >= size else (0, 0)
                guess = (0, left, above[i], (left + above[i]) // 2, paeth(left, above[i], corner) if way == 4 else 0)[way]
                row[i] = (row[i] + guess) & 255
        found += zip(row[::size], row[1::size], row[2::size], strict=True)
        above = row
    return width, height, found


def palette(counts: collections.Counter[Color], most: int) -> dict[Color, Color]:
    """For each color one of at most `most`: boxes of colors are halved where they are widest. Frequent colors stay exact."""
    exact = [color for color, _ in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:most // 4]]
    chosen = {color: color for color in exact}
    boxes = [sorted(color for color in counts if color not in chosen)]

    def extent(box: list[Color]) -> tuple[int, int]:
        """The largest extent of a box, weighted by its pixels, and its channel."""
        spans = [max(c[channel] for c in box) - min(c[channel] for c in box) for channel in range(3)]
        return max(spans) * sum(counts[c] for c in box) if len(box) > 1 else 0, spans.index(max(spans))

    sized = [(*extent(box), box) for box in boxes if box]
    while len(sized) < most - len(exact) and (widest := max(sized, default=(0,)))[0]:
        sized.remove(widest)
        _, channel, box = widest
        box.sort(key=lambda color: (color[channel], color))
        half = sum(counts[color] for color in box) / 2
        at, seen = 0, 0
        while at < len(box) - 1 and (seen < half or at == 0):
            seen += counts[box[at]]
            at += 1
        sized += [(*extent(part), part) for part in (box[:at], box[at:])]
    for _, _, box in sized:
        weight = sum(counts[color] for color in box)
        mean = tuple(round(sum(color[channel] * counts[color] for color in box) / weight) for channel in range(3))
        chosen |= dict.fromkeys(box, mean)
    return chosen


def smaller(data: bytes) -> bytes:
    """The same picture with a palette."""
    width, height, colors = pixels(data)
    chosen = palette(collections.Counter(colors), 256)
    table = sorted(set(chosen.values()))
    at = {color: table.index(mean) for color, mean in chosen.items()}
    rows = b"".join(b"\0" + bytes(at[color] for color in colors[y * width:(y + 1) * width]) for y in range(height))
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", b"".join(map(bytes, table))),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
