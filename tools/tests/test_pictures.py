"""Tests that the pictures of the documents are current, say what they show, and have the figures of docs/benchmarks.md."""

import json
import pathlib
import re
import struct
import sys
import unittest
import xml.etree.ElementTree as xml
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/pictures"))

import canvas  # noqa: E402
import draw  # noqa: E402
import png  # noqa: E402
import record  # noqa: E402
import terminal  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def data(name):
    return json.loads((draw.PICTURES / f"data/{name}.json").read_text(encoding="utf-8"))


def luminance(color):
    channels = [int(color[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    return sum(part * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
               for part, c in zip((0.2126, 0.7152, 0.0722), channels, strict=True))


def as_png(width, height, rows, kind):
    """A PNG of RGB, each row with a filter of this kind."""
    packed, above = b"", bytes(3 * width)
    for row in rows:
        flat = bytes(value for color in row for value in color)
        left = bytes(3) + flat[:-3]
        guess = {0: bytes(len(flat)), 1: left, 2: above, 3: bytes((a + b) // 2 for a, b in zip(left, above, strict=True)),
                 4: bytes(map(png.paeth, left, above, bytes(3) + above[:-3]))}[kind]
        packed += bytes([kind]) + bytes((a - b) & 255 for a, b in zip(flat, guess, strict=True))
        above = flat
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(packed)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(body)) + name + body + bytes(4) for name, body in parts)


class Pictures(unittest.TestCase):
    def test_they_are_current(self):
        self.assertEqual(draw.stale(), [], "run tools/pictures/draw.py")

    def test_they_are_small_and_say_what_they_show(self):
        for name in draw.DRAWN:
            file = draw.PICTURES / f"{name}.svg"
            text = file.read_text(encoding="utf-8")
            root = xml.fromstring(text)
            with self.subTest(name):
                self.assertLess(file.stat().st_size, 40_000)
                self.assertGreater(len(root.find(f"{SVG}title").text), 20)
                self.assertGreater(len(root.find(f"{SVG}desc").text), 100)
                self.assertIn("prefers-color-scheme:dark", text)
                self.assertNotRegex(text.replace('xmlns="http://www.w3.org/2000/svg"', ""), r"https?://|@import|url\(|<script|<image")
                self.assertIsNone(record.ABSOLUTE.search(text))

    def test_texts_have_contrast_in_both_schemes(self):
        for name in ("ink", "dim", "accent", "green", "cyan", "warm"):
            for color, paper in zip(canvas.COLORS[name], canvas.COLORS["paper"], strict=True):
                light, dark = sorted((luminance(color), luminance(paper)), reverse=True)
                self.assertGreaterEqual((light + 0.05) / (dark + 0.05), 4.5, f"{name} {color}")

    def test_the_screenshot_is_small_and_wide(self):
        picture = (draw.PICTURES / "dashboard.png").read_bytes()
        self.assertLess(len(picture), 150_000)
        self.assertEqual(struct.unpack(">I", picture[16:20]), (1280,))


class Data(unittest.TestCase):
    def rows(self, name):
        """The section of the page that a file of figures names, and the cells of each of its rows by the first."""
        page = (ROOT / data(name)["page"]).read_text(encoding="utf-8")
        section = page.partition(f"\n## {data(name)['section']}\n")[2].partition("\n## ")[0]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| ")]
        first = {}
        for row in cells:
            first.setdefault(row[0], row)
        return section, first

    def test_figures_of_peers_are_those_of_the_page(self):
        section, rows = self.rows("peers")
        self.assertIn(data("peers")["command"], section)
        for row in data("peers")["rows"]:
            ratio = f"{row['forebay_is']:.2f}x" if "forebay_is" in row else ""
            cells = rows[row["name"]]
            self.assertEqual(cells[1:4:2], [f"{row['one_thread']:,}", f"{row['two_threads']:,}"], row["name"])
            self.assertEqual(cells[2], ratio, row["name"])

    def test_figures_of_packing_are_those_of_the_page(self):
        section, rows = self.rows("pack")
        self.assertIn(data("pack")["command"], section)
        for row in data("pack")["rows"]:
            self.assertEqual(rows[row["name"]][1:3], [f"{row['ended']:,}", f"{row['on_disk']:,}"], row["name"])

    def test_ratios_of_the_readme_are_those_of_the_plot(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        ratios = {f"{row['forebay_is']:.2f}" for row in data("peers")["rows"] if "forebay_is" in row}
        speed = readme.partition("\n## Speed\n")[2].partition("\n## ")[0]
        named = re.findall(r"(\d\.\d\d)\b", speed)
        self.assertGreaterEqual(len(named), 3)
        self.assertEqual([ratio for ratio in named if ratio not in ratios], [])


class Parts(unittest.TestCase):
    def test_progress_that_was_erased_is_left_out(self):
        self.assertEqual(record.settled("writing 19%\r\x1b[2KPacking\r"), "Packing")
        self.assertEqual(record.settled("\x1b[?2026h  done  "), "  done")

    def test_directories_of_the_machine_are_found(self):
        for text in ("in /home/me/x", '"/tmp/a"', "=/root/x"):
            self.assertIsNotNone(record.ABSOLUTE.search(text), text)
        for text in ("images/s", "forebay://127.0.0.1:1/home", "testdata/images", "https://e.org/home/x"):
            self.assertIsNone(record.ABSOLUTE.search(text), text)

    def test_words_keep_column_and_color(self):
        line = terminal.parts("\x1b[1mShards\x1b[0m  4  two words")
        self.assertEqual(line, [(0, "Shards", "ink strong"), (8, "4", "ink"), (11, "two words", "ink")])
        self.assertEqual(terminal.cut(line, 15), line[:2])
        long = [(2, "one two three four", "dim")]
        self.assertEqual(terminal.wrapped(long, 12), [[(2, "one two", "dim")], [(2, "three four", "dim")]])
        self.assertEqual(terminal.cut(long, 16), [(2, "one two three…", "dim")])

    def test_few_colors_of_a_png_stay_exact(self):
        rows = [[(x * 40, y * 30, 200 if x > y else 7) for x in range(5)] for y in range(4)]
        flat = [color for row in rows for color in row]
        for kind in range(5):
            file = as_png(5, 4, rows, kind)
            self.assertEqual(png.pixels(file), (5, 4, flat))
            chunks = dict(png.chunks(png.smaller(file)))
            table, raw = chunks[b"PLTE"], zlib.decompress(chunks[b"IDAT"])
            indexes = [value for y in range(4) for value in raw[6 * y + 1:6 * y + 6]]
            self.assertEqual([tuple(table[3 * at:3 * at + 3]) for at in indexes], flat)

    def test_many_colors_of_a_png_become_near_ones(self):
        rows = [[(x * 4, y * 4, (x + y) * 2) for x in range(60)] for y in range(60)]
        table = dict(png.chunks(png.smaller(as_png(60, 60, rows, 2))))[b"PLTE"]
        self.assertLessEqual(len(table), 768)


if __name__ == "__main__":
    unittest.main()
