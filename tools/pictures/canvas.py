"""An SVG picture with a title, a description and colors for light and dark pages.

Every text has a class; the classes have a color for each scheme, so that a picture needs no script and no file beside it.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

# Class: the color on a light page, the color on a dark one. Texts have a contrast of at least 4.5 to 1 with `paper`.
COLORS = {
    "paper": ("#fbfcfe", "#161b22"),
    "edge": ("#d0d7e2", "#38414f"),
    "grid": ("#e1e6ee", "#2b3340"),
    "ink": ("#1b2330", "#e6ebf2"),
    "dim": ("#56616f", "#a2adbb"),
    "accent": ("#3949ab", "#8ea2ff"),
    "accent2": ("#8f9be0", "#5b6cc9"),
    "other": ("#8692a3", "#7d8a9c"),
    "other2": ("#c3cbd6", "#48525f"),
    "green": ("#1a7f4b", "#56d394"),
    "cyan": ("#0b7285", "#5fd0e0"),
    "warm": ("#b04e08", "#f5a25d"),
}
STROKED = ("edge", "grid")
SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"


def number(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


class Picture:
    """Shapes and texts in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str, description: str, shown: int | None = None) -> None:
        self.width, self.height, self.shown = width, height, shown or width
        self.title, self.description = title, description
        self.styles: list[str] = []
        self.parts: list[str] = []

    def add(self, part: str) -> None:
        self.parts.append(part)

    def text(self, x: float, y: float, content: str, classes: str = "ink", end: bool = False) -> None:
        """A text that begins at `x`, or ends there."""
        anchor = ' text-anchor="end"' if end else ""
        self.add(f'<text class="{classes}" x="{number(x)}" y="{number(y)}"{anchor}>{escape(content)}</text>')

    def bar(self, x: float, y: float, width: float, height: float, classes: str, radius: float = 2) -> None:
        rounded = f' rx="{number(radius)}"' if radius else ""
        self.add(f'<rect class="{classes}" x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"{rounded}/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, classes: str = "grid") -> None:
        self.add(f'<path class="{classes}" d="M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"/>')

    def dot(self, x: float, y: float, radius: float, classes: str) -> None:
        self.add(f'<circle class="{classes}" cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"/>')

    def render(self) -> str:
        """The file."""
        scheme = ["".join(f".{name}{{fill:{pair[at]}}}" for name, pair in COLORS.items() if name not in STROKED) for at in (0, 1)]
        strokes = ["".join(f".{name}{{stroke:{COLORS[name][at]}}}" for name in STROKED)
                   + "".join(f".{name}-line{{stroke:{COLORS[name][at]}}}" for name in ("accent", "other", "ink"))
                   + f".halo{{stroke:{COLORS['paper'][at]}}}" for at in (0, 1)]
        style = [
            f"text{{font-family:{SANS};font-size:16px}}",
            ".halo{paint-order:stroke;stroke-width:5px;stroke-linejoin:round}",
            ".title{font-size:19px;font-weight:600}.small{font-size:14px}.strong{font-weight:600}",
            ".edge,.grid{fill:none}.accent-line,.other-line,.ink-line{fill:none;stroke-width:2}.dashed{stroke-dasharray:4 4}",
            scheme[0] + strokes[0],
            f"@media (prefers-color-scheme:dark){{{scheme[1]}{strokes[1]}}}",
            *self.styles,
        ]
        edge = f'x=".5" y=".5" width="{self.width - 1}" height="{self.height - 1}" rx="10"'
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.shown}" '
            f'height="{round(self.shown * self.height / self.width)}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="desc">{escape(self.description)}</desc>',
            "<style>", *style, "</style>",
            f'<rect class="paper" {edge}/><rect class="edge" {edge}/>',
            *self.parts,
            "</svg>",
        ]) + "\n"
