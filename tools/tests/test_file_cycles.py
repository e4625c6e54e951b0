"""The check for circles between files finds what a file names, however it is named."""

import pathlib
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOOLS / "check"))
from file_cycles import circles, dependencies  # noqa: E402


class FileCycles(unittest.TestCase):
    def graph(self, **files):
        """The dependencies of a crate of these files, `__` in their names for `/`; modules are joined by `::`."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name.replace("__", "/") + ".rs")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            graph = dependencies(folder)
        return {"::".join(path): {"::".join(target) for target in targets} for path, targets in graph.items()}

    def test_items_are_found_by_use_and_by_path(self):
        graph = self.graph(
            lib="mod a; mod b; mod c;",
            a="use crate::b::{X, Y as Z}; fn f() { crate::c::g(); }",
            b="pub struct X; pub enum Y {} fn h() { super::c::g() }",
            c="pub fn g() {}",
        )
        self.assertEqual(graph["a"], {"b", "c"})
        self.assertEqual(graph["b"], {"c"})

    def test_a_name_counts_for_the_file_that_defines_it(self):
        graph = self.graph(
            lib="mod a; mod b; pub use b::Thing;",
            a="use crate::Thing; use crate::b::Deep; fn f() -> crate::b::deep::Other {}",
            b__mod="mod deep; pub use deep::Deep; pub struct Thing;",
            b__deep="pub struct Deep; pub struct Other;",
        )
        self.assertEqual(graph["a"], {"b", "b::deep"})
        # What a module passes on is no dependency of its own.
        self.assertEqual(graph[""], set())

    def test_a_module_may_use_the_files_of_its_folder(self):
        files = {
            "lib": "mod a;",
            "a__mod": "mod b; mod c; pub struct Kind; fn f() { b::f(); c::g(); }",
            "a__b": "use super::Kind; pub fn f() {}",
            "a__c": "use super::b::f; pub fn g() {}",
        }
        self.assertEqual(self.graph(**files)["a"], set())
        self.assertEqual(self.graph(**files)["a::b"], {"a"})

    def test_circles_are_found_and_tests_do_not_count(self):
        with_circle = {("a",): {("b",)}, ("b",): {("c",)}, ("c",): {("a",)}, ("d",): {("a",)}}
        self.assertEqual(circles(with_circle), [[("a",), ("b",), ("c",)]])
        graph = self.graph(
            lib="mod a; mod b;",
            a="use crate::b::X; pub struct Y;",
            b="pub struct X; #[cfg(test)] mod tests { use crate::a::Y; }",
        )
        self.assertEqual(graph["b"], set())


if __name__ == "__main__":
    unittest.main()
