"""A recording of a terminal: after a moment its lines appear one after the other, once.

Each word stands at its column, whatever font the reader has, and blocks of bars are rectangles. Narrow pages show fewer lines in
larger letters. Where pictures do not move, or readers ask for less motion, all lines are there all the time.
"""

from __future__ import annotations

import re
from typing import Any
from xml.sax.saxutils import escape

from canvas import Picture, number

CHARACTER, LINE, SIZE = 8.4, 19, 14
STILL = 1.5  # Seconds before the lines disappear, to appear again.
COLUMNS = 97
BAR = 34
NARROW_COLUMNS = 58
NARROW = ("One epoch through the server", "Where the time went")

ESCAPE = re.compile(r"\x1b\[([\d;]*)m")
WORDS = re.compile(r"\S+(?: \S+)*")
BLOCKS = "▏▎▍▌▋▊▉█"
CODES = {"1": "ink strong", "2": "dim", "36": "cyan", "32": "green", "33": "warm", "35": "accent"}

Part = tuple[int, str, str]


def parts(text: str) -> list[Part]:
    """Column, words and class of each run of words of a line."""
    found: list[Part] = []
    color, column = "ink", 0
    for at, piece in enumerate(ESCAPE.split(text)):
        if at % 2:
            color = CODES.get(piece, "ink")
            continue
        found += [(column + match.start(), match[0], color) for match in WORDS.finditer(piece)]
        column += len(piece)
    return found


def wrapped(line: list[Part], columns: int) -> list[list[Part]]:
    """The line, broken between words where it is too long, as deep as it began."""
    if not line or all(column + len(words) <= columns for column, words, _ in line):
        return [line]
    first = line[0][0]
    made: list[list[Part]] = [[]]
    for column, words, color in line:
        if column + len(words) <= columns and len(made) == 1:
            made[0].append((column, words, color))
            continue
        at, taken = column, ""
        for word in words.split(" "):
            if taken and at + len(taken) + 1 + len(word) > columns:
                made[-1].append((at, taken, color))
                made.append([])
                at, taken = first, word
            else:
                taken = f"{taken} {word}" if taken else word
        made[-1].append((at, taken, color))
    return made


def drawn(line: list[Part], x: float, y: float, character: float, size: float) -> str:
    """A line as SVG."""
    made = []
    for column, words, color in line:
        left = x + column * character
        if set(words) <= set(BLOCKS):
            width = sum((BLOCKS.index(block) + 1) / 8 for block in words) * character
            made.append(f'<rect class="accent" x="{number(left)}" y="{number(y - size * 0.78)}" width="{number(width)}" height="{number(size * 0.9)}"/>')
        else:
            made.append(f'<text class="{color}" x="{number(left)}" y="{number(y)}" textLength="{number(len(words) * character)}">{escape(words)}</text>')
    return "".join(made)


def sections(lines: list[list[Part]]) -> list[list[Part]]:
    """The lines of a narrow page: the command, the lines of progress, and the tables of NARROW, each after an empty line."""
    kept, on = [], True
    for line in lines:
        if line and line[0][2] == "ink strong":
            on = line[0][1] in NARROW
            kept += [[]] if on and kept[-1] else []
        if on:
            kept.append(line)
    return kept


def cut(line: list[Part], columns: int) -> list[Part]:
    """The line without what does not fit."""
    made = []
    for column, words, color in line:
        room = columns - column
        if len(words) <= room:
            made.append((column, words, color))
        elif room > 12:
            made.append((column, f"{words[:room - 1].rstrip()}…", color))
    return made


def recording(data: dict[str, Any]) -> Picture:
    """The picture of a recording."""
    prompt: list[Part] = [(0, "$", "green"), (2, data["command"], "ink strong")]
    printed = [parts(line["text"]) for line in data["lines"]]
    last = max(line["at"] for line in data["lines"])
    wide = [(0.0, prompt)]
    for line, shape in zip(data["lines"], printed, strict=True):
        wide += [(line["at"], row) for row in wrapped(shape, COLUMNS)]
    width = round(COLUMNS * CHARACTER) + 36
    height = BAR + 12 + LINE * len(wide) + 10
    text = "; ".join(" ".join(words for _, words, _ in row) for row in printed[:4])
    picture = Picture(
        width, height, f"A terminal that runs {data['command']}",
        f"{text}. Then it prints the sizes of the shards, the rate of an epoch on {data['machine']}, and where the time went. "
        f"Lines appear more slowly than they did: all took {last:.1f} seconds.",
    )
    scale = (COLUMNS + 36 / CHARACTER) / (NARROW_COLUMNS + 36 / CHARACTER)
    picture.styles += [
        f".t text{{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:{SIZE}px;white-space:pre}}",
        f".n text{{font-size:{SIZE * scale:.1f}px}}.n{{display:none}}",
        f"@keyframes hide{{from,to{{opacity:0}}}}.t g{{animation:hide 1s {STILL}s}}",
        "@media (prefers-reduced-motion:reduce){.t g{animation:none}}",
        "@media (max-width:560px){.n{display:inline}.w{display:none}}",
    ]
    picture.add(f'<path class="edge" d="M1 {BAR}H{width - 1}"/>')
    for at in range(3):
        picture.dot(20 + 18 * at, BAR / 2, 5.5, "other2")
    picture.text(width / 2 + 30, BAR / 2 + 5, "forebay", "dim small", end=True)

    def shown(group: str, rows: list[tuple[float, list[Part]]], character: float, line: float, size: float) -> None:
        picture.add(f'<g class="t {group}">')
        for at, (appears, row) in enumerate(rows):
            if row:
                hidden = 0.5 if not at else 1.0 + 2.5 * appears / last + 0.05 * at
                words = drawn(row, 18, BAR + 12 + line * (at + 0.75), character, size)
                picture.add(f'<g style="animation-duration:{hidden:.2f}s">{words}</g>')
        picture.add("</g>")

    shown("w", wide, CHARACTER, LINE, SIZE)
    room = int((height - BAR - 14) / (LINE * scale))
    times = {id(row): line["at"] for line, row in zip(data["lines"], printed, strict=True)}
    narrow = [(times.get(id(row), last), cut(row, NARROW_COLUMNS)) for row in sections([prompt, *printed])]
    shown("n", narrow[:room], CHARACTER * scale, LINE * scale, SIZE * scale)
    return picture
