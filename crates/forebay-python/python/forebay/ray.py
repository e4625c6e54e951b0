"""Packing on a Ray cluster.

    forebay.ray.pack("/shared/photos", "/shared/packed", format="indexed", progress=True)

Every node needs Forebay, and sees datasets under the same paths or URLs. ray is imported when a function is called.
"""

from __future__ import annotations

from forebay._ray_commands import convert, pack

__all__ = ["convert", "pack"]

for _thing in (convert, pack):
    _thing.__module__ = "forebay.ray"
