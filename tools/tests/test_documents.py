"""Tests that docs/index.md and the site lead to every page, that links resolve, and that pages say who they are for."""

import collections
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/site"))

import hooks  # noqa: E402  (hooks of MkDocs, which this file does without)

INDEX = ROOT / "docs/index.md"
DECISIONS = ROOT / "docs/internals/decisions"

LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
LINKED_TEXT = re.compile(r"\[([^\]]*)\]\([^)]*\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$|^    .*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def targets(page):
    """The files that the links of a page name, with the text of each link."""
    links = [link for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))) if "://" not in link]
    return [((page.parent / link.partition("#")[0]).resolve() if link[0] != "#" else page, link) for link in links]


def anchors(page):
    """The anchors of the headings of a page, as GitHub makes them."""
    made = collections.Counter()
    for heading in HEADING.findall(re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)):
        name = re.sub(r"[^\w\- ]", "", LINKED_TEXT.sub(r"\1", heading).lower()).replace(" ", "-")
        made[name] += 1
        if made[name] > 1:
            made[f"{name}-{made[name] - 1}"] += 1
    return set(made)


def listed(entries):
    """The pages of a navigation of MkDocs, in its order."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            yield from (page for below in entry.values() for page in listed(below))


class Documents(unittest.TestCase):
    def test_each_page_is_in_the_navigation_once(self):
        pages = collections.Counter(listed(hooks.navigation()))
        self.assertEqual([page for page, times in pages.items() if times > 1], [])
        missing = {hooks.place(page) for page in ROOT.glob("docs/**/*.md")} - pages.keys()
        self.assertEqual(sorted(missing), [])
        self.assertEqual([page for page in pages if not hooks.source(page).is_file()], [])

    def test_links_on_the_site_lead_to_its_files(self):
        page, text = ROOT / "docs/how.md", "[a](../README.md#install) `[b](x)` [c](wire.md) [d](https://e.org/f.md)"
        self.assertEqual(hooks.linked(page, text), [ROOT / "README.md", ROOT / "docs/wire.md"])
        self.assertEqual(hooks.place(ROOT / "README.md"), "repository/README.md")

    def test_each_page_says_who_it_is_for(self):
        pages = [page for page in ROOT.glob("docs/**/*.md") if DECISIONS not in page.parents]
        begun = {page: page.read_text(encoding="utf-8").split("\n\n", 2)[1] for page in pages}
        self.assertEqual([page.name for page, first in begun.items() if not re.match(r"For .*\w", first)], [])

    def test_nested_lists_are_lists_on_the_site(self):
        pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        nested = re.compile(r"^ {1,3}(?:[-*]|\d+\.) .*", re.MULTILINE)
        self.assertEqual([(page.name, line) for page in pages for line in nested.findall(CODE.sub("", page.read_text()))], [])

    def test_the_index_names_each_page_once_in_its_map(self):
        _, text = INDEX.read_text(encoding="utf-8").split("\n## All pages\n")
        rows = [line for line in text.splitlines() if line.startswith("| [")]
        named = collections.Counter((INDEX.parent / LINK.findall(row)[0]).resolve() for row in rows)
        pages = {page for page in ROOT.glob("docs/**/*.md") if DECISIONS not in page.parents} - {INDEX}
        pages.add(DECISIONS / "README.md")
        self.assertEqual(sorted(pages - named.keys()), [], "pages that docs/index.md does not name")
        self.assertEqual([page for page, times in named.items() if times > 1], [])

    def test_links_between_documents_resolve(self):
        pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
        broken = []
        for page in pages:
            for file, link in targets(page):
                anchor = link.partition("#")[2]
                if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
                    broken.append(f"{page.relative_to(ROOT)}: {link}")
        self.assertEqual(broken, [])


if __name__ == "__main__":
    unittest.main()
