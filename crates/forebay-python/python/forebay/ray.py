"""Packing, reading, writing and serving on a Ray cluster.

    forebay.ray.pack("/shared/photos", "/shared/packed", format="indexed", progress=True)
    samples = forebay.ray.read("/shared/packed", split="train", transform=forebay.EvalTransform(224))

Every node needs Forebay, and sees datasets under the same paths or URLs. ray is imported when a function is called.
"""

from __future__ import annotations

from forebay._ray_commands import convert, pack
from forebay._ray_data import read, write
from forebay._ray_serve import Servers, serve

__all__ = ["Servers", "convert", "pack", "read", "serve", "write"]

for _thing in (Servers, convert, pack, read, serve, write):
    _thing.__module__ = "forebay.ray"
