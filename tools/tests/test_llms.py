"""docs/llms.txt names the pages that docs/index.md names."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "check"))
import llms  # noqa: E402


class Llms(unittest.TestCase):
    def test_it_is_current(self):
        self.assertEqual(llms.FILE.read_text(encoding="utf-8"), llms.text(), "run tools/check/llms.py")

    def test_it_has_each_page_with_its_question(self):
        self.assertIn("\n## Reference\n", llms.text())
        self.assertIn("- [commands.md](commands.md): Which command does what", llms.text())


if __name__ == "__main__":
    unittest.main()
