"""The counts behind the budget: lines, words, commands and flags."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "check"))
import lines  # noqa: E402

CODE = """\
//! Reads.
use std::io;

/// Opens.
fn open() {
    // A comment.
    read(); // Another.
}
"""
TEST_MODULE = """\
#[cfg(test)]
#[allow(unused)]
mod tests {
    fn one() {}
}
"""
COMMANDS = """\
#[derive(Debug, Subcommand)]
#[command(rename_all = "kebab-case")]
pub(crate) enum What {
    /// `Commented(out)`
    Status(Args),
    SizeCluster(Box<size::Args>),
    Clear {
        #[arg(long)]
        all: bool,
    },
    Warm,
}

commands! {
    Pack => pack,
    Serve => serve,
}
"""
FLAGS = r"""
#[derive(Debug, Args)]
struct Options {
    /// A path
    path: PathBuf,
    /// Uses `#[arg(long)]` in a comment
    #[arg(long, value_name = "N", help = "long, as in a (string")]
    block_records: u64,
    #[arg(
        short,
        long = "to",
        value_parser = parsed("x"),
    )]
    format: Format,
    #[arg(short = 'n', long_help = HELP)]
    number: u64,
    #[arg(long)]
    #[allow(dead_code)]
    pub(crate) r#quiet: bool,
}

#[cfg(test)]
mod tests {
    struct Other {
        #[arg(long)]
        of_a_test: bool,
    }
}
"""


class Lines(unittest.TestCase):
    def tree(self, **files):
        """A repository of these files, `__` in their names for `/`, and `_` for `.` before the ending."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name, text in files.items():
            stem, _, ending = name.replace("__", "/").rpartition("_")
            path = pathlib.Path(folder.name, f"{stem}.{ending}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        subprocess.run(["git", "init", "--quiet", folder.name], check=True)
        return pathlib.Path(folder.name)

    def test_production_lines_are_neither_blank_nor_comments_nor_tests(self):
        self.assertEqual(lines.production_lines(CODE), 4)
        self.assertEqual(lines.production_lines(CODE + TEST_MODULE), 4)
        self.assertEqual(lines.production_lines(TEST_MODULE + CODE), 4)
        self.assertEqual(lines.production_lines(CODE + "#[cfg(test)]\nmod tests;\n#[cfg(any(test, feature = \"x\"))]\npub mod y;\n"), 4)
        self.assertEqual(lines.production_lines("mod a {\n    #[cfg(test)]\n    mod b {\n        fn c() {}\n    }\n}\n"), 2)

    def test_files_of_tests_and_examples_do_not_count(self):
        root = self.tree(
            crates__x__src__lib_rs=CODE, crates__x__src__a__tests_rs=CODE, crates__x__tests__it__main_rs=CODE,
            crates__x__examples__e_rs=CODE, crates__x__benches__b_rs=CODE, crates__x__fuzz__f_rs=CODE, crates__y__src__lib_rs=CODE,
        )  # fmt: skip
        code, tests = lines.rust(root)
        self.assertEqual(code, {"x": 4, "y": 4})
        self.assertEqual(tests, {"x": 5 * len(CODE.splitlines())})

    def test_all_lines_of_the_python_package_count(self):
        package = "crates__forebay-python__python__forebay__"
        root = self.tree(**{f"{package}a_py": '"""Doc."""\n\n# Why.\nx = 1\n', f"{package}b_pyi": "x: int\n"})
        self.assertEqual(lines.package_lines(root), 4)

    def test_words_are_those_of_pages_that_people_write(self):
        root = self.tree(
            README_md="one two", docs__a_md="three", docs__internals__b_md="four", docs__python_md="generated",
            docs__internals__decisions__1_md="five six seven", CHANGELOG_md="eight", crates__x__README_md="nine",
        )  # fmt: skip
        self.assertEqual(lines.words(root), {"documents": 4, "decisions": 3, "changelog": 1})

    def test_commands_and_flags_are_read_from_their_declarations(self):
        self.assertEqual(sorted(lines.declared_commands(lines.plain(COMMANDS))), ["Clear", "Pack", "Serve", "SizeCluster", "Status", "Warm"])
        self.assertEqual(lines.declared_flags(lines.plain(COMMANDS)), {"all"})
        self.assertEqual(lines.declared_flags(lines.plain(FLAGS)), {"block-records", "to", "quiet"})

    def test_a_flag_of_both_sides_is_none_of_the_lab_alone(self):
        cli = "crates__forebay-cli__src__command__"
        root = self.tree(**{"crates__forebay-lab__src__a_rs": COMMANDS + FLAGS, f"{cli}pack_rs": FLAGS})
        expected = {"commands": 0, "flags": 3, "commands of the lab": 6, "flags of the lab alone": 1}
        self.assertEqual(lines.command_line(root), expected)

    def test_this_repository_has_commands_and_flags(self):
        found = lines.command_line(lines.ROOT)
        self.assertGreater(found["commands"], 15)
        self.assertGreater(found["flags"], 60)


if __name__ == "__main__":
    unittest.main()
