"""The budget refuses growth, allows what an allowance covers, and only ever falls by itself."""

import pathlib
import sys
import tomllib
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "check"))
import budget  # noqa: E402
import lines  # noqa: E402

TEXT = """\
# Why.
[rust]
a = 1_000  # of old
b = 20

[words]
"of all" = 30

[[allowance]]
name = "speed"
lines = 100
reason = "faster"
used = { "rust.b" = 5 }
"""


def now(a=1000, b=25, words=30, **crates):
    return {"rust": {"a": a, "b": b, **crates}, "words": {"of all": words}}


class Budget(unittest.TestCase):
    def found(self, text, numbers):
        return budget.violations(tomllib.loads(text), numbers)

    def test_equal_and_smaller_numbers_pass(self):
        self.assertEqual(self.found(TEXT, now()), [])
        self.assertEqual(self.found(TEXT, now(a=1, b=2, words=3)), [])

    def test_an_exceeded_row_is_named_with_the_remedy(self):
        found = self.found(TEXT, now(a=1001, words=40))
        remedy = "delete, or raise the row in tools/check/budget.toml with a reason"
        self.assertEqual(found[0], f"rust.a is 1,001, 1 over its budget of 1,000: {remedy}")
        self.assertTrue(found[1].startswith("words.of all is 40, 10 over"))

    def test_an_allowance_adds_to_its_rows(self):
        self.assertEqual(len(self.found(TEXT.replace('"rust.b" = 5', ""), now())), 1)
        self.assertEqual(self.found(TEXT.replace("= 5", "= 101"), now()), ['allowance "speed": 101 used of 100'])
        self.assertEqual(self.found(TEXT.replace("faster", ""), now()), ['allowance "speed" is used without a reason'])
        self.assertIn("no row is called rust.c", self.found(TEXT.replace("rust.b", "rust.c"), now(b=1))[0])

    def test_a_crate_without_a_row_is_refused(self):
        self.assertTrue(self.found(TEXT, now(c=1))[0].startswith("rust.c has no row"))

    def test_lowering_keeps_comments_and_raises_nothing(self):
        text = budget.rewritten(TEXT, now(a=900, b=10, words=50), min)
        self.assertEqual(text, TEXT.replace("1_000", "900").replace("b = 20", "b = 5"))

    def test_rows_of_crates_that_are_gone_are_left_out(self):
        text = budget.rewritten(TEXT, {"rust": {"a": 1000}, "words": {"of all": 30}}, min)
        self.assertEqual(text, TEXT.replace("b = 20\n", ""))

    def test_setting_takes_every_number_and_adds_rows(self):
        numbers = now(a=2000, b=30, words=50, c=7)
        text = budget.with_new_rows(budget.rewritten(TEXT, numbers, lambda _, today: today), numbers)
        expected = TEXT.replace("1_000", "2000").replace("b = 20", "b = 25\nc = 7").replace("= 30", "= 50")
        self.assertEqual(text, expected)
        self.assertEqual(self.found(text, numbers), [])

    def test_the_table_has_a_row_a_number(self):
        table = budget.report(tomllib.loads(TEXT), now(a=1100), {"tests": 9})
        self.assertEqual([line.split()[-1] for line in table], ["difference", "+100", "0", "+100", "0", "9", "used"])

    def test_the_file_of_the_repository_is_complete(self):
        found = tomllib.loads((lines.ROOT / budget.FILE).read_text())
        self.assertEqual({entry["name"] for entry in found["allowance"] if not {"lines", "words"} & entry.keys()}, set())
        text = (lines.ROOT / budget.FILE).read_text()
        tables = {table: rows for table, rows in found.items() if table != "allowance"}
        limits = {table: {row: number + budget.used(found, table, row) for row, number in rows.items()} for table, rows in tables.items()}
        self.assertEqual(budget.rewritten(text, limits, min), text)


if __name__ == "__main__":
    unittest.main()
