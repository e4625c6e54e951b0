"""The workflows name files, parts, packages and targets that exist, and check all that .ci/run checks."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKFLOWS = {path.name: path.read_text() for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}
ALL = "\n".join(WORKFLOWS.values())
FILE = re.compile(r"(?<![\w./-])\.?/?((?:\.github|\.ci|crates|deploy|docs|tools)/[\w./*-]*\w|[A-Z]+(?:-[A-Z]+)?\.md|LICENSE-\w+|NOTICE)\b")


def script(name):
    return (ROOT / name).read_text()


def members(pattern):
    """The names of the crates whose manifests match a pattern."""
    return {re.search(r'^name = "(.*)"', path.read_text(), re.MULTILINE)[1] for path in ROOT.glob(pattern)}


class Workflows(unittest.TestCase):
    def test_files_exist(self):
        for name, text in WORKFLOWS.items():
            for file in FILE.findall(text):
                with self.subTest(workflow=name, file=file):
                    self.assertTrue(list(ROOT.glob(file.removesuffix("/artifacts"))))

    def test_parts_of_scripts_exist(self):
        parts = re.search(r"^    all \| (.*)\) ;;$", script("tools/test"), re.MULTILINE)[1].split(" | ")
        called = {name: set(re.findall(r"tools/test ([a-z]+)\b", text)) for name, text in WORKFLOWS.items()}
        self.assertLessEqual(set().union(*called.values()), {*parts, "full"})
        checks = re.search(r"\|\| parts=\((.*)\)", script("tools/release-check"))[1].split()
        self.assertLessEqual(set(re.findall(r"tools/release-check ([a-z]+)\b", ALL)), {*checks, "published", "tag"})
        # .ci/run runs `tools/test`, which is all parts.
        self.assertEqual(called["check.yml"], set(parts))

    def test_every_step_of_ci_is_in_the_check(self):
        steps = re.findall(r"^(?:cargo [a-z]|python3 tools|python3 -m)[^|>\n]*", script(".ci/run"), re.MULTILINE)
        self.assertGreater(len(steps), 5)
        for step in steps:
            self.assertIn(step.removesuffix(" 2").strip(), WORKFLOWS["check.yml"])

    def test_packages_and_targets_are_those_of_the_workspace(self):
        crates = members("crates/*/Cargo.toml")
        self.assertLessEqual(set(re.findall(r"forebay-(?!python/)[a-z]+(?=[ ;]|$)", ALL, re.MULTILINE)), crates)
        fuzzed = re.search(r"crate: \[(.*)\]", WORKFLOWS["nightly.yml"])[1].split(", ")
        self.assertEqual({f"forebay-{name}-fuzz" for name in fuzzed}, members("crates/*/fuzz/Cargo.toml"))
        targets = re.findall(r"- target: (\S+)", WORKFLOWS["release.yml"])
        self.assertEqual(targets, re.findall(r'"([\w-]+)"', re.search(r"^TARGETS = (.*)$", script("tools/notices"), re.MULTILINE)[1]))
        self.assertEqual(targets, re.findall(r'"([\w-]+)"', re.search(r"^targets = (.*)$", script("deny.toml"), re.MULTILINE)[1]))

    def test_actions_and_programs_are_pinned_once(self):
        pins = {}
        for action, pin in re.findall(r"uses: ([^.\s@]\S*?)@(.*)$", ALL, re.MULTILINE):
            self.assertRegex(pin, r"^[0-9a-f]{40} # v\d+\.\d+\.\d+$")
            self.assertEqual(pins.setdefault(action, pin), pin, action)
        for line in re.findall(r"(?:pip|cargo) install .*", ALL):
            for program in [word for word in line.split()[2:] if not word.startswith("-")]:
                name, _, pin = program.replace("==", "@").partition("@")
                self.assertRegex(pin, r"^\d+\.\d+\.\d+$", program)
                self.assertEqual(pins.setdefault(name, pin), pin, name)
        self.assertEqual(len(set(re.findall(r"RUSTUP_TOOLCHAIN: (.*)", ALL))), 1)


if __name__ == "__main__":
    unittest.main()
