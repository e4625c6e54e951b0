#!/usr/bin/env python3
"""Renders testdata/images: a small ImageNet-layout tree of photo-like scenes.

    python3 tools/golden/make_test_images.py [DESTINATION]        (needs numpy and Pillow)

Nothing here is a photograph, so the files carry no rights but the project's own. What matters to the project
is that they behave like photographs: smooth shading, texture at every scale, sensor noise, several chroma
samplings, qualities and sizes, and the oddities of the real set (a grey image, a progressive one, one with
restart markers, a PNG under a .JPEG name, trailing bytes). The same seed gives the same scenes; the encoded bytes
depend on the Pillow version, which is why the files are kept and this script is only their source.
"""

import io
import pathlib
import sys

import numpy as np
from PIL import Image

CLASSES = {
    "n02782093": "balloon",
    "n07747607": "orange",
    "n09193705": "alp",
    "n09332890": "lakeside, lakeshore",
    "n09428293": "seashore, coast, seacoast, sea-coast",
    "n11939491": "daisy",
}
TRAIN_PER_CLASS, VAL_PER_CLASS = 8, 2


# ---- noise and colour ------------------------------------------------------------------------------------


def value_noise(rng, x, y):
    """Smooth noise in 0..1 at any coordinates; one cell of the lattice is one unit."""
    lattice = rng.random((256, 256))
    xi, yi = np.floor(x).astype(int), np.floor(y).astype(int)
    fx, fy = x - xi, y - yi
    fx, fy = fx * fx * (3 - 2 * fx), fy * fy * (3 - 2 * fy)
    at = lambda dx, dy: lattice[(yi + dy) & 255, (xi + dx) & 255]
    top = at(0, 0) * (1 - fx) + at(1, 0) * fx
    return (top * (1 - fy)) + (at(0, 1) * (1 - fx) + at(1, 1) * fx) * fy


def fractal(rng, x, y, octaves=6, gain=0.5, ridged=False):
    total, weight, norm = 0.0, 1.0, 0.0
    for octave in range(octaves):
        n = value_noise(rng, x * 2**octave + 17 * octave, y * 2**octave)
        total = total + weight * (1 - abs(2 * n - 1) if ridged else n)
        norm += weight
        weight *= gain
    return total / norm


def rgb(code):
    return np.array([int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)])


def mix(a, b, t):
    t = np.clip(t, 0, 1)[..., None]
    return a * (1 - t) + b * t


def smooth(low, high, x):
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def blur(image, radius):
    """Three box blurs, which are nearly a Gaussian."""
    if radius < 1:
        return image
    for axis in (0, 1):
        for _ in range(3):
            r = int(radius)
            pad = [(0, 0)] * image.ndim
            pad[axis] = (r + 1, r)
            total = np.cumsum(np.pad(image, pad, mode="edge"), axis=axis)
            n = image.shape[axis]
            high = np.take(total, np.arange(2 * r + 1, 2 * r + 1 + n), axis=axis)
            low = np.take(total, np.arange(n), axis=axis)
            image = (high - low) / (2 * r + 1)
    return image


class View:
    """Pixel coordinates: v runs 0..1 down, u is to the same scale."""

    def __init__(self, rng, width, height):
        self.rng, self.width, self.height = rng, width, height
        self.aspect = width / height
        v, u = np.mgrid[0:height, 0:width]
        self.u, self.v = (u + 0.5) / height, (v + 0.5) / height

    def fractal(self, scale, **options):
        ox, oy = self.rng.random(2) * 50
        return fractal(self.rng, self.u * scale + ox, self.v * scale + oy, **options)


# ---- pieces ----------------------------------------------------------------------------------------------


def sky(view, top, low, horizon, clouds=0.5, sun=None):
    image = mix(rgb(top), rgb(low), smooth(0, horizon, view.v) ** 0.8)
    if sun:
        d = np.hypot(view.u - sun[0], view.v - sun[1])
        image = mix(image, rgb("fff3d0"), 0.9 * np.exp(-((d / 0.05) ** 2)) + 0.45 * np.exp(-d / 0.22))
    ox = view.rng.random() * 50
    depth = 0.35 / (horizon + 0.25 - np.minimum(view.v, horizon))
    cover = fractal(view.rng, view.u * 2.2 * depth**0.4 + ox, view.v * 5 * depth**0.6, octaves=6)
    light = fractal(view.rng, view.u * 2.2 + ox - 0.2, view.v * 6 + 0.2, octaves=4)
    density = smooth(0.62 - 0.25 * clouds, 0.85 - 0.2 * clouds, cover)
    return mix(image, mix(rgb("c3c8d4"), rgb("ffffff"), 0.4 + light), density * 0.92)


def ridge(view, base, height, roughness, color, haze, haze_color, snow=None):
    """A mountain range: its mask and its shaded colour."""
    rng = view.rng
    ox = rng.random() * 100
    x = view.u * roughness + ox
    crest = base - height * fractal(rng, x, 0 * x, octaves=7, gain=0.48)
    below = view.v - crest
    relief = fractal(rng, x * 2.5, view.v * roughness * 1.4, octaves=7, gain=0.55, ridged=True)
    slope = relief - np.roll(relief, (2, 3), (0, 1))
    lit = np.clip(0.55 + slope * 4.5 + 0.3 * (relief - 0.5), 0.12, 1.25)
    surface = np.broadcast_to(rgb(color), view.u.shape + (3,))
    if snow is not None:
        edge = snow + 0.12 * (relief - 0.6)
        surface = mix(surface, rgb("f4f7fc"), smooth(edge + 0.05, edge - 0.05, view.v))
    shaded = surface * lit[..., None]
    return smooth(0, 1.5 / view.height, below), mix(shaded, rgb(haze_color), np.full(view.u.shape, haze))


def forest(view, line, depth, color):
    """A row of conifers with its lower edge open."""
    rng = view.rng
    mask = np.zeros(view.u.shape)
    shade = np.zeros(view.u.shape)
    for x in np.arange(-0.05, view.aspect + 0.05, depth * 0.13):
        x = x + rng.normal() * depth * 0.06
        tall, foot = depth * rng.uniform(0.55, 1.25), line + rng.normal() * depth * 0.06
        t = (view.v - (foot - tall)) / tall
        ragged = 0.7 + 0.6 * np.abs(((t * rng.uniform(7, 11)) % 1) - 0.35)
        inside = (np.abs(view.u - x) < 0.17 * tall * np.clip(t, 0, 1) * ragged) & (t > 0)
        mask = np.maximum(mask, inside)
        shade = np.where(inside, 0.45 + 0.5 * (view.u - x < 0) + 0.25 * rng.random(), shade)
    solid = smooth(line - depth * 0.1, line, view.v)
    leaves = view.fractal(46, octaves=3)
    tone = np.where(mask > 0, shade, 0.6) * (0.5 + leaves)
    return np.maximum(mask, solid), rgb(color) * tone[..., None]


def paint(image, layer):
    mask, color = layer
    return mix(image, color, mask)


def sphere(view, x, y, r, light=(-0.5, -0.65, 0.57)):
    """Mask, normal's z, Lambert and specular terms of a ball, and its surface coordinates."""
    dx, dy = (view.u - x) / r, (view.v - y) / r
    d2 = dx * dx + dy * dy
    z = np.sqrt(np.clip(1 - d2, 0, 1))
    lambert = np.clip(dx * light[0] + dy * light[1] + z * light[2], 0, 1)
    half = np.array(light) + (0, 0, 1)
    half = half / np.linalg.norm(half)
    spec = np.clip(dx * half[0] + dy * half[1] + z * half[2], 0, 1) ** 40
    return smooth(1 + 1.5 / (r * view.height), 1 - 1.5 / (r * view.height), np.sqrt(d2)), z, lambert, spec, dx, dy


# ---- scenes ----------------------------------------------------------------------------------------------


def alp(view):
    rng = view.rng
    evening = rng.random() < 0.35
    image = sky(view, *(("5a6fa8", "f6c9a0") if evening else ("2f68b5", "c8dcef")), 0.6, rng.uniform(0.2, 0.8))
    haze = "d9b8a8" if evening else "b9cbe0"
    image = paint(image, ridge(view, 0.58, rng.uniform(0.4, 0.65), 1.6, "6d7180", 0.42, haze, snow=0.42))
    image = paint(image, ridge(view, 0.78, rng.uniform(0.5, 0.8), 1.9, "5c5a58", 0.12, haze, snow=rng.uniform(0.3, 0.5)))
    image = paint(image, ridge(view, 0.86, 0.22, 2.6, "4d6136", 0.06, haze))
    image = paint(image, forest(view, rng.uniform(0.86, 0.93), rng.uniform(0.08, 0.16), "2f4726"))
    meadow = view.fractal(26, octaves=5)
    grass = mix(rgb("4e6b26"), rgb("a9b35a"), meadow) * (0.65 + 0.7 * view.fractal(90, octaves=2))[..., None]
    return mix(image, grass, smooth(0.93, 0.95, view.v + 0.03 * view.fractal(3)))


def seashore(view):
    rng = view.rng
    horizon = rng.uniform(0.36, 0.5)
    warm = rng.random() < 0.5
    sun = (rng.uniform(0.2, view.aspect - 0.2), horizon - rng.uniform(0.06, 0.2)) if warm else None
    image = sky(view, *(("4b6aa5", "ffd2a1") if warm else ("2d78c9", "d6e9f5")), horizon, rng.uniform(0.2, 0.9), sun)
    depth = 0.06 / np.maximum(view.v - horizon, 0.002)
    x, y = (view.u - view.aspect / 2) * depth * 14, depth * 60
    swell = fractal(rng, x * 0.35 + 40, y * 0.9 + 11, octaves=5, gain=0.6)
    facet = swell - np.roll(swell, 1, 0)
    water = mix(rgb("0d3f5c"), rgb("5fb0b5"), smooth(0.2, 0.8, swell) * 0.8 + 0.25 * (view.v - horizon))
    glitter = np.clip(facet * 9, 0, 1) * np.minimum(1, 0.25 / depth)
    image_sea = mix(water, rgb("ffe9c4" if warm else "eef8ff"), glitter)
    if sun:
        path = np.exp(-(((view.u - sun[0]) / (0.05 + 0.3 * (view.v - horizon))) ** 2))
        image_sea = mix(image_sea, rgb("fff0c8"), path * smooth(0.45, 0.75, swell) * 0.9)
    image = mix(image, image_sea, smooth(horizon - 0.002, horizon + 0.002, view.v))
    shore = rng.uniform(0.74, 0.84) + 0.1 * (fractal(rng, view.u * 2 + 5, 0 * view.u + 3, octaves=5) - 0.5)
    grain = view.rng.normal(size=view.u.shape) * 0.05 + 0.25 * (view.fractal(30, octaves=4) - 0.5)
    wet = smooth(0.0, 0.12, view.v - shore)
    sand = mix(rgb("8a7350"), rgb("dcc393"), wet) * (1 + grain)[..., None]
    image = mix(image, sand, smooth(-0.004, 0.004, view.v - shore))
    lace = view.fractal(24, octaves=4, ridged=True)
    foam = np.exp(-(((view.v - shore + 0.012) / 0.018) ** 2)) * smooth(0.5, 0.72, lace)
    return mix(image, rgb("fbfdfd"), foam)


def lakeside(view):
    rng = view.rng
    line = rng.uniform(0.5, 0.6)
    upper = sky(view, "3f7cc0", "dfe6ea", line, rng.uniform(0.3, 0.9))
    upper = paint(upper, ridge(view, line + 0.05, rng.uniform(0.25, 0.5), 1.5, "66707c", 0.35, "c2cfdd", snow=0.3))
    autumn = rng.random() < 0.4
    upper = paint(upper, forest(view, line, rng.uniform(0.12, 0.24), "7a5a22" if autumn else "35522a"))
    depth = 0.05 / np.maximum(view.v - line, 0.002)
    ripple = fractal(rng, (view.u - 0.6) * depth * 9 + 30, depth * 50, octaves=4) - 0.5
    rows = np.clip((2 * line - view.v + ripple * 0.12 * (view.v - line + 0.02)) * view.height, 0, view.height - 1)
    columns = np.clip(view.u * view.height + ripple * 3, 0, view.width - 1)
    mirror = upper[rows.astype(int), columns.astype(int)] * 0.78 + rgb("16323c") * 0.16
    mirror = mix(mirror, rgb("dfe9ee"), np.clip(ripple - 0.18, 0, 1) * 1.6)
    image = mix(upper, mirror, smooth(line, line + 0.006, view.v))
    for _ in range(rng.integers(5, 12)):
        x, y, r = rng.uniform(0, view.aspect), rng.uniform(0.9, 1.03), rng.uniform(0.03, 0.12)
        mask, _, lambert, _, dx, dy = sphere(view, x, y, r)
        stone = (0.25 + 0.75 * lambert) * (0.55 + 0.8 * view.fractal(18, octaves=5))
        image = mix(image, rgb("8d867c") * stone[..., None], mask)
    return image


def balloon(view):
    rng = view.rng
    image = sky(view, "3a7fd0", "e5ecf2", 0.85, rng.uniform(0.1, 0.7))
    image = paint(image, ridge(view, 0.98, 0.22, 1.3, "66784e", 0.35, "cfd9e2"))
    image = paint(image, ridge(view, 1.05, 0.2, 2.2, "546b32", 0.1, "cfd9e2"))
    palettes = [("d8232a", "f8d030"), ("1f4fa3", "f2f2f2"), ("e36414", "5f0f40"), ("2a9d5c", "f4e04d"), ("7b2d8b", "f49fbc")]
    for size in sorted(rng.uniform(0.05, 0.27, rng.integers(2, 6))):
        x, y = rng.uniform(0.12, view.aspect - 0.12), rng.uniform(0.12, 0.62)
        a, b = palettes[rng.integers(len(palettes))]
        squash = 1 + 0.45 * smooth(0, size * 1.3, view.v - y)
        dx, dy = (view.u - x) / size * squash, (view.v - y) / (size * 1.12)
        d2 = dx * dx + dy * dy
        z = np.sqrt(np.clip(1 - d2, 0, 1))
        gore = np.arctan2(dx, z + 1e-6) / np.pi * 2 * rng.integers(6, 11)
        seam = 0.82 + 0.18 * np.abs(np.sin(np.pi * gore))
        color = mix(rgb(a), rgb(b), (np.floor(gore) % 2) * 1.0)
        band = np.exp(-(((dy - 0.15) / 0.12) ** 2)) > 0.6
        color = np.where((band & (rng.random() < 0.6))[..., None], rgb("fafafa"), color)
        lit = np.clip(0.38 + 0.75 * (-0.45 * dx - 0.5 * dy + 0.6 * z), 0.15, 1.15) * seam
        glow = mix(color * lit[..., None], rgb("ffffff"), np.clip(0.5 * (-0.5 * dx - 0.6 * dy + 0.62 * z) ** 30, 0, 0.5))
        image = mix(image, glow, smooth(1 + 0.02, 1 - 0.02, np.sqrt(d2)) * (dy < 0.97))
        low = y + size * 1.12
        ropes = (np.abs(np.abs(view.u - x) - 0.05 * size) < 0.004) & (view.v > low * 0.99) & (view.v < low + 0.22 * size)
        basket = (np.abs(view.u - x) < 0.085 * size) & (view.v > low + 0.2 * size) & (view.v < low + 0.36 * size)
        image = mix(image, rgb("4a3b2c"), ropes * 0.9)
        weave = 0.8 + 0.3 * value_noise(rng, view.u * 240, view.v * 240)
        image = mix(image, rgb("7b5530") * weave[..., None], basket * 1.0)
    return image


def orange(view):
    rng = view.rng
    edge = rng.uniform(0.42, 0.55)
    wall = mix(rgb("6f7f86" if rng.random() < 0.5 else "8b6f5c"), rgb("e9e2d2"), 0.75 - 0.45 * np.hypot(view.u - 0.3, view.v))
    wall = wall * (0.94 + 0.12 * view.fractal(60, octaves=3))[..., None]
    depth = 1 / np.maximum(view.v - edge + 0.18, 0.02)
    grain = fractal(rng, view.u * 1.2 * depth + 7, depth * 16 + 2.5 * fractal(rng, view.u * 2, depth * 2, octaves=3), octaves=5)
    table = mix(rgb("5a351c"), rgb("c48b52"), smooth(0.25, 0.75, grain))
    plank = np.abs(((view.u - view.aspect / 2) * depth * 1.1) % 1 - 0.5)
    table = table * (0.75 + 0.25 * smooth(0.49, 0.47, plank))[..., None]
    image = mix(blur(wall, view.height / 60), table, smooth(edge - 0.004, edge + 0.004, view.v))
    fruit = sorted(rng.uniform((0.15, edge + 0.05, 0.1), (view.aspect - 0.15, 0.86, 0.19), (rng.integers(3, 7), 3)).tolist(), key=lambda f: f[1])
    for x, y, r in fruit:
        sx, sy = (view.u - x - r * 0.55) / (r * 1.5), (view.v - y - r * 0.82) / (r * 0.38)
        image = image * (1 - 0.72 * np.exp(-(sx**2 + sy**2) * 1.6))[..., None]
        mask, z, lambert, spec, dx, dy = sphere(view, x, y, r)
        skin = fractal(rng, np.arcsin(np.clip(dx, -1, 1)) * 26 + 60 * x, np.arcsin(np.clip(dy, -1, 1)) * 26, octaves=2)
        green = rng.random() < 0.2
        color = mix(rgb("86a83a" if green else "d9650a"), rgb("b5cc5b" if green else "ffa726"), skin * 0.6 + 0.4 * z)
        bounce = 0.16 * np.clip(dy, 0, 1)[..., None] * rgb("c48b52")
        lit = color * (0.16 + 0.95 * lambert * (0.85 + 0.3 * (skin - 0.5)))[..., None] + bounce
        lit = mix(lit, rgb("fffaf0"), spec * 0.75 * (0.6 + 0.8 * skin))
        image = mix(image, lit, mask)
        tx, ty = (view.u - x - r * 0.12) / (r * 0.1), (view.v - y + r * 0.62) / (r * 0.07)
        image = mix(image, rgb("4f5d2a"), smooth(1.1, 0.7, np.hypot(tx, ty)))
    return image


def daisy(view):
    rng = view.rng
    ground = mix(rgb("1d3312"), rgb("6f8f35"), smooth(0.25, 0.75, view.fractal(4, octaves=4)))
    for _ in range(40):
        x, y, r = rng.uniform(0, view.aspect), rng.uniform(0, 1), rng.uniform(0.02, 0.07)
        disc = smooth(r * 1.1, r * 0.9, np.hypot(view.u - x, view.v - y))
        ground = mix(ground, rgb(["a8c25a", "dfe8b0", "3d5a22", "f6f6ee"][rng.integers(4)]), disc * rng.uniform(0.15, 0.5))
    image = blur(ground, view.height / 90)
    for _ in range(90):
        x, lean, width = rng.uniform(-0.1, view.aspect + 0.1), rng.normal() * 0.25, rng.uniform(0.003, 0.01)
        top = rng.uniform(0.35, 0.95)
        line = np.abs(view.u - x - lean * (1 - view.v) ** 1.6)
        blade = smooth(width, width * 0.4, line) * (view.v > top)
        image = mix(image, mix(rgb("2c4a17"), rgb("8fb04a"), np.full(view.u.shape, rng.random())), blade * 0.85)
    for size in sorted(rng.uniform(0.07, 0.3, rng.integers(2, 6))):
        x, y, tilt = rng.uniform(0.1, view.aspect - 0.1), rng.uniform(0.15, 0.8), rng.uniform(0.6, 1)
        dx, dy = (view.u - x) / size, (view.v - y) / (size * tilt)
        d, angle = np.hypot(dx, dy), np.arctan2(dy, dx)
        stem = smooth(0.05 * size, 0.03 * size, np.abs(view.u - x - 0.1 * (view.v - y))) * (view.v > y)
        image = mix(image, rgb("4c6b2a"), stem * 0.9)
        for layer in range(2):
            count = int(rng.integers(13, 19))
            phase = rng.random()
            turn = angle / (2 * np.pi) * count + phase
            petal, offset = np.floor(turn), (turn % 1) - 0.5
            length = 0.86 + 0.14 * np.sin(petal * 12.9898 + layer * 4)
            width = 0.44 * np.sqrt(np.clip(1 - (2 * d / length - 1.08) ** 2, 0, 1))
            mask = smooth(width + 0.04, width - 0.04, np.abs(offset)) * (d < length)
            vein = 0.9 + 0.1 * np.cos(offset * 34) - 0.3 * np.abs(offset)
            lit = np.clip(vein * (0.7 + 0.3 * d) * (0.92 + 0.1 * np.sin(petal * 7.7)) - 0.12 * (1 - layer), 0, 1)
            image = mix(image, mix(rgb("9fa9c4"), rgb("ffffff"), lit**1.5), mask)
        z = np.sqrt(np.clip(1 - (d / 0.28) ** 2, 0, 1))
        florets = value_noise(rng, dx * 30 + 99, dy * 30 + 99)
        heart = mix(rgb("a85d05"), rgb("ffd83a"), 0.25 + 0.5 * florets + 0.35 * z - 0.25 * dy)
        image = mix(image, heart, smooth(0.29, 0.27, d))
    return image


SCENES = {"n02782093": balloon, "n07747607": orange, "n09193705": alp, "n09332890": lakeside, "n09428293": seashore, "n11939491": daisy}


def photograph(wnid, number, width, height):
    """A scene as a camera would give it: vignette, lens blur, sensor noise, 8 bits."""
    rng = np.random.default_rng([int(wnid[1:]), number])
    view = View(rng, width, height)
    image = np.clip(SCENES[wnid](view), 0, 1.2)
    centre = np.hypot((view.u - view.aspect / 2) / view.aspect, view.v - 0.5)
    image = image * (1.03 - 0.35 * centre**2)[..., None]
    soft = (image + np.roll(image, 1, 0) + np.roll(image, 1, 1) + np.roll(image, (1, 1), (0, 1))) / 4
    soft[0], soft[:, 0] = image[0], image[:, 0]
    noise = rng.normal(size=image.shape) * (0.006 + 0.006 * np.sqrt(np.clip(soft, 0, 1)))
    noise += rng.normal(size=image.shape[:2])[..., None] * 0.006
    return Image.fromarray((np.clip(soft + noise, 0, 1) * 255 + 0.5).astype(np.uint8))


# ---- files -----------------------------------------------------------------------------------------------

SIZES = [(500, 375), (375, 500), (400, 300), (333, 500), (320, 240), (256, 256), (181, 240), (500, 333), (281, 211), (640, 427)]
SAMPLINGS = ["4:4:4", "4:2:0", "4:4:4", "4:2:0", "4:2:2", "4:4:4", "4:2:0"]
QUALITIES = [82, 88, 75, 80, 90, 70]
# (class, number) -> what is special about the file
SPECIAL = {
    ("n09193705", 2): {"size": (800, 533), "subsampling": "4:2:0", "quality": 78},
    ("n09193705", 5): {"grey": True},
    ("n09332890", 3): {"progressive": True},
    ("n09428293", 4): {"restart_marker_blocks": 8},
    ("n07747607", 1): {"png": True, "size": (181, 137)},
    ("n11939491", 6): {"trailing": b"\0" * 37 + b"appended by a careless tool\n"},
    ("n02782093", 7): {"size": (199, 601)},
}


def encode(picture, index, special):
    out = io.BytesIO()
    if special.get("png"):
        picture.save(out, "PNG", optimize=True)
        return out.getvalue()
    options = {"quality": special.get("quality", QUALITIES[index % len(QUALITIES)])}
    if special.get("grey"):
        picture = picture.convert("L")
    else:
        options["subsampling"] = special.get("subsampling", SAMPLINGS[index % len(SAMPLINGS)])
    for name in ("progressive", "restart_marker_blocks"):
        if name in special:
            options[name] = special[name]
    picture.save(out, "JPEG", optimize=True, **options)
    return out.getvalue() + special.get("trailing", b"")


def main():
    default = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "images"
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    total = count = val = 0
    for c, wnid in enumerate(CLASSES):
        for number in range(TRAIN_PER_CLASS + VAL_PER_CLASS):
            special = SPECIAL.get((wnid, number), {})
            index = c * 11 + number * 3
            width, height = special.get("size", SIZES[index % len(SIZES)])
            data = encode(photograph(wnid, number, width, height), index, special)
            if number < TRAIN_PER_CLASS:
                path = root / "train" / wnid / f"{wnid}_{number * 37 + 11}.JPEG"
            else:
                val += 1
                path = root / "val" / wnid / f"ILSVRC2012_val_{val:08}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            total += len(data)
            count += 1
    mapping = "".join(f"{wnid} {text}\n" for wnid, text in CLASSES.items())
    (root / "LOC_synset_mapping.txt").write_text(mapping)
    print(f"{count} images, {total / 1e6:.2f} MB in {root}")


if __name__ == "__main__":
    main()
