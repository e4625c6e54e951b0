"""tools/notices finds and groups the licenses of crates."""

import importlib.machinery
import importlib.util
import pathlib
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[1] / "notices"
loader = importlib.machinery.SourceFileLoader("notices", str(TOOL))
notices = importlib.util.module_from_spec(importlib.util.spec_from_loader("notices", loader))
loader.exec_module(notices)


class Notices(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.root = pathlib.Path(place.name)

    def package(self, name, license="MIT", repository=None, files=()):
        folder = self.root / name
        for file, text in dict(files).items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        return {
            "id": name, "name": name, "version": "1.0.0", "license": license, "repository": repository,
            "authors": ["A. Author"], "manifest_path": str(folder / "Cargo.toml"),
        }

    def test_texts_of_c_libraries_are_found_and_tests_are_not(self):
        files = {"LICENSE": "a", "c/LICENSE": "b", "c/COPYING": "GPL", "d/COPYING": "c", "tests/LICENSE": "d", "src/license.rs": "e"}
        self.package("x", files=files)
        self.assertEqual(notices.texts(self.root / "x"), ["a", "b", "c"])

    def test_a_text_is_printed_once_however_it_is_wrapped(self):
        pair = [self.package("x", files={"LICENSE": "one two\n"}), self.package("y", files={"COPYING": "one\n  two"})]
        groups = notices.grouped(pair)
        self.assertEqual(list(groups.values()), [("one two\n", ["x 1.0.0 (MIT)", "y 1.0.0 (MIT)"])])

    def test_a_crate_without_text_has_that_of_its_repository(self):
        groups = notices.grouped([
            self.package("x", "BSD-3-Clause", "https://a"), self.package("y", "BSD-3-Clause", "https://a", {"LICENSE": "text"}),
        ])
        self.assertEqual([users for _, users in groups.values()], [["x 1.0.0 (BSD-3-Clause)", "y 1.0.0 (BSD-3-Clause)"]])

    def test_a_license_without_text_is_one_that_is_allowed(self):
        self.assertIn("Apache License", notices.standard(self.package("x", "MIT/Apache-2.0"))[0])
        self.assertIn("Copyright (c) A. Author\n", notices.standard(self.package("x", "MIT"))[0])
        self.assertEqual(notices.standard(self.package("x", "MIT AND Zlib")), [])
        with self.assertRaises(SystemExit):
            notices.grouped([self.package("x", "BSD-3-Clause")])


if __name__ == "__main__":
    unittest.main()
