"""The prose check finds dialect in prose, and nothing in code."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "check"))
import prose  # noqa: E402


class Findings(unittest.TestCase):
    def lines(self, name, text):
        return [number for number, _ in prose.findings(name, text)]

    def test_listed_words_in_documents_and_comments(self):
        self.assertEqual(self.lines("a.md", "Fine.\nWhoever reads this\n"), [2])
        self.assertEqual(self.lines("a.rs", "// begun anew\nlet anew = 1;\n"), [1])
        self.assertEqual(self.lines("a.py", "x = 1  # nobody waits\nnobody = 2\n"), [1])

    def test_descriptions_that_begin_with_a_relative_clause(self):
        self.assertEqual(self.lines("a.rs", "/// What opens a file.\n/// Opens a file.\n// What a comment may say\n"), [1])
        self.assertEqual(self.lines("a.py", '"""Who asks."""\n"""Returns the rank."""\n'), [1])

    def test_flags_in_texts_of_libraries(self):
        text = '"leave --codec out";\n"see `forebay pack --codec`";\n// --codec\n"{CODEC} zstd";\n'
        self.assertEqual(self.lines("crates/forebay-pack/src/a.rs", text), [1])
        self.assertEqual(self.lines("crates/forebay-cli/src/a.rs", text), [])
        self.assertEqual(self.lines("crates/forebay-pack/src/tests.rs", text), [])

    def test_the_repository_has_no_findings(self):
        self.assertEqual(prose.main([]), 0)


if __name__ == "__main__":
    unittest.main()
