"""The decoder of fast images that follows docs/format gives the JPEG of its examples, and refuses damage."""

import pathlib
import sys
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOOLS / "golden"))
import fast_image  # noqa: E402

PAGES = TOOLS.parent / "docs/format"
DOCUMENT = "".join((PAGES / page).read_text() for page in ["seek-points.md", "fast-images.md"])
CODED = (TOOLS.parent / "testdata/format/fast-image-coded.hex").read_text()


def dumped(dump):
    """The bytes of a dump."""
    return bytes.fromhex("".join(line.split("|")[0].split("  ", 1)[1] for line in dump.splitlines()))


def worked(name):
    """The bytes of a fence of the pages."""
    return dumped(DOCUMENT.split(f"```hex {name}\n", 1)[1].split("```", 1)[0])


class FastImage(unittest.TestCase):
    def test_examples_restore_the_jpeg(self):
        jpeg = worked("seek-points.jpeg")
        for fast in [worked("image/fast"), dumped(CODED)]:
            self.assertEqual(fast_image.restore(fast), jpeg)

    def test_a_changed_byte_gives_the_jpeg_or_is_refused(self):
        jpeg, fast = worked("seek-points.jpeg"), worked("image/fast")
        restored = []
        for at in range(len(fast)):
            changed = bytearray(fast)
            changed[at] ^= 0x10
            try:
                self.assertEqual(fast_image.restore(bytes(changed)), jpeg)
                restored.append(at)
            except fast_image.Damaged:
                pass
        # The difference of tile 1 fits into five bits as well, and its byte has bits without a meaning.
        self.assertEqual(restored, [0xB9, 0xBA])


if __name__ == "__main__":
    unittest.main()
