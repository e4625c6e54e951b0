"""The layer check finds what it is there to find."""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOOLS / "check"))
import layers  # noqa: E402


def metadata():
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=TOOLS.parent).stdout)


class CheckLayers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.clean = metadata()

    def package(self, data, name):
        return next(package for package in data["packages"] if package["name"] == name)

    def test_the_workspace_is_clean(self):
        self.assertEqual(layers.violations(self.clean), [])

    def test_an_upward_dependency_is_found(self):
        data = copy.deepcopy(self.clean)
        self.package(data, "forebay-shard")["dependencies"].append({"name": "forebay-loader", "kind": None})
        self.assertIn("forebay-shard depends on forebay-loader, which is not below it", layers.violations(data))

    def test_a_development_dependency_may_point_up(self):
        data = copy.deepcopy(self.clean)
        self.package(data, "forebay-shard")["dependencies"].append({"name": "forebay-loader", "kind": "dev"})
        self.assertEqual(layers.violations(data), [])

    def test_a_forbidden_crate_is_found_at_any_depth(self):
        data = copy.deepcopy(self.clean)
        ids = {package["name"]: package["id"] for package in data["packages"]}
        self.package(data, "crc32c")["name"] = "tokio"
        self.assertIn("forebay-shard pulls in tokio", layers.violations(data))
        self.assertIn("crc32c", ids)

    def test_a_compiler_behind_a_feature_is_no_violation_without_it(self):
        self.assertEqual(layers.featureless_violations(), [])
        closure = layers.featureless_closure
        self.addCleanup(setattr, layers, "featureless_closure", closure)
        layers.featureless_closure = lambda root: {"cc", "serde"}
        expected = ["forebay-shard without default features pulls in cc"]
        self.assertEqual(layers.featureless_violations(), expected)

    def test_json_without_a_bound_is_found(self):
        self.assertEqual(layers.json_violations(layers.sources(self.clean)), [])
        with tempfile.TemporaryDirectory() as place:
            source = pathlib.Path(place) / "forebay-x" / "src"
            source.mkdir(parents=True)
            code = "// serde_json::from_str\nlet a = serde_json::from_slice(b);\n"
            (source / "a.rs").write_text(code)
            (source / "tests.rs").write_text(code)
            (source / "b.rs").write_text("#[cfg(test)]\nmod tests {\n    serde_json::from_str(a);\n}\n")
            found = layers.json_violations({"forebay-x": source})
        self.assertEqual([sentence.split()[0] for sentence in found], ["forebay-x/src/a.rs"])

    def test_a_package_that_is_compiled_twice_is_found(self):
        self.assertEqual(layers.shared_build_violations(*layers.shared_build()), [])
        tested = {"forebay-shard v1|conformance,zstd", "serde v1|std"}
        packaged = {"forebay-python v1|test-build", "forebay-shard v1|zstd", "serde v1|std"}
        found = layers.shared_build_violations(packaged, tested)
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].startswith("the Python package compiles forebay-shard v1 again"))

    def test_a_crate_without_a_layer_is_found(self):
        data = copy.deepcopy(self.clean)
        self.package(data, "forebay-bench")["name"] = "forebay-odds-and-ends"
        self.assertTrue(any("has no layer" in sentence for sentence in layers.violations(data)))

    def test_licences(self):
        for good in ["MIT", "MIT OR Apache-2.0", "MIT/Apache-2.0", "(MIT OR GPL-3.0) AND BSD-3-Clause",
                     "Apache-2.0 WITH LLVM-exception OR MIT"]:
            self.assertTrue(layers.permissive(good), good)
        for bad in [None, "", "GPL-3.0", "MIT AND GPL-3.0", "MPL-2.0"]:
            self.assertFalse(layers.permissive(bad), bad)


if __name__ == "__main__":
    unittest.main()
