"""The check for circular modules reads Rust as far as it needs to."""

import pathlib
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOOLS / "check"))
import layers  # noqa: E402
from module_cycles import cyclic_edges, dependencies, public_types  # noqa: E402


class ModuleCycles(unittest.TestCase):
    def graph(self, **files):
        """The dependencies of a crate of these files, `__` in their names for `/`."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name.replace("__", "/") + ".rs")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return dependencies(folder)

    def test_names_of_other_modules_are_dependencies(self):
        graph = self.graph(
            lib="mod a; mod b; mod c; mod d; mod e; pub use e::{Thing, other::Deep};",
            a="use crate::{b::{X, Y}, c};",
            b="fn f() { crate::c::g(); }",
            c="use super::d::Z;",
            d__mod="mod inner;",
            d__inner="use super::super::e::W; use super::sibling;",
            e="",
        )
        expected = {"a": {"b", "c"}, "b": {"c"}, "c": {"d"}, "d": {"e"}, "e": set()}
        self.assertEqual(graph, expected)

    def test_items_of_the_root_belong_to_their_modules(self):
        graph = self.graph(lib="mod a; mod b; pub use b::{Thing, deep::Other};", a="use crate::Thing;", b="")
        self.assertEqual(graph["a"], {"b"})

    def test_an_inline_module_is_one_level_deeper(self):
        graph = self.graph(lib="mod a; mod b; mod c;", a="mod x { use super::b::Y; } use super::c::Z;", b="", c="")
        self.assertEqual(graph["a"], {"c"})

    def test_tests_comments_and_strings_do_not_count(self):
        graph = self.graph(
            lib="mod a; mod b;",
            a="""
            //! See [`crate::b`].
            /* crate::b */ const TEXT: &str = "crate::b \\" crate::b"; const RAW: &str = r#"crate::b"#;
            const QUOTE: char = '"';
            #[cfg(test)]
            mod tests { use crate::b; mod more { fn f() {} } }
            #[cfg(test)]
            #[path = "a_tests.rs"]
            mod a_tests;
            #[cfg(any(test, feature = "fuzzing"))]
            pub(crate) mod fuzzing;
            """,
            a__a_tests="use crate::b;",
            a__fuzzing="use crate::b;",
            a__tests="use crate::b;",
            b="fn f<'a>(x: &'a str) {} // \"",
        )
        self.assertEqual(graph, {"a": set(), "b": set()})

    def test_edges_of_cycles_are_found(self):
        graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
        self.assertEqual(cyclic_edges(graph), {("a", "b"), ("b", "c"), ("c", "a")})
        self.assertEqual(cyclic_edges({"a": {"b"}, "b": set()}), set())

    def test_cycles_are_refused(self):
        found = layers.module_violations({"crate": {"a": {"b"}, "b": {"a"}, "c": {"a"}}})
        self.assertEqual(len(found), 2)
        self.assertIn("the module a depends on b", found[0])

    def test_public_types_are_those_that_the_root_shows(self):
        with tempfile.TemporaryDirectory() as source:
            files = {
                "lib.rs": "mod a; pub mod b; mod c; pub use a::{One, two}; pub use other::Three; pub struct Four;",
                "a.rs": "pub struct One; pub struct Hidden; pub fn two() {}",
                "b.rs": "pub enum Five {} pub(crate) struct Inner;",
                "c.rs": "pub trait Unseen {}",
            }
            for name, text in files.items():
                pathlib.Path(source, name).write_text(text)
            self.assertEqual(public_types(source), {"One", "Four", "Five"})

    def test_a_name_of_two_types_is_refused(self):
        types = {"x": {"Plan", "Error", "A"}, "y": {"Plan", "Error", "B"}}
        found = layers.name_violations(types)
        self.assertEqual(len(found), 1)
        self.assertIn("Plan is defined by x and by y", found[0])


if __name__ == "__main__":
    unittest.main()
