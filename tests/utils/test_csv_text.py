"""Tests that no string in a CSV file becomes a formula in a spreadsheet, and that each string can be restored."""

import csv
import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from saliency_bench.utils.csv_text import csv_rows, csv_text, escaped, unescaped

NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|-"
PLAIN = ["-5", "+0.5", "-1e-3", "a=b", "x-y", "", "-", "it's", "a; b", "1-2", "me@home"]


def cells(text):
    """Return the cells of a line for every separator that a spreadsheet may use."""
    return [cell for sign in ";\t\n\r" for cell in text.split(sign)] + [text]


@given(st.text(alphabet="=+-@' ;\t\r\na1.", max_size=12))
@example("-2+3+cmd|' /C calc'!A0")
def test_formulas_are_escaped_and_restored(text):
    plain = escaped(text)
    assert re.fullmatch(NUMBER, text) or not any(re.match(r"\s*[=+\-@]", cell) for cell in cells(plain))
    assert plain == text or re.search(r"(^|[;\t\r\n])[ ']*[=+\-@]", text)
    assert unescaped(plain) == text
    (header, row) = csv.reader(io.StringIO(csv_text(["a", text], [[text, 1.5, None, float("nan"), -2]]), newline=""))
    assert header == ["a", plain]
    assert row == [plain, "1.5", "", "", "-2"]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_texts_are_unchanged(text):
    assert escaped(text) == unescaped(text) == text


def test_csv_readers_restore_escaped_texts(tmp_path):
    """Test that ids and classes that `csv_text` escapes are restored by every reader of a CSV file."""
    from saliency_bench.compute.targets.class_groups import _read
    from saliency_bench.compute.targets.rules import load_rule
    from saliency_bench.recipes.suites.suite_pictures import _listed

    names = ["=a", "@b"]
    assert csv_rows(csv_text(["image_id", "x"], [[name, 1] for name in names])) == [
        {"image_id": name, "x": "1"} for name in names
    ]
    (tmp_path / "targets.csv").write_text(csv_text(["image_id", "target"], [["=a", "@b"]]))
    assert load_rule(str(tmp_path / "targets.csv"), names, 2).by_id.keys() == {"=a"}
    (tmp_path / "groups.csv").write_text(csv_text(["class", "group"], [[name, "=g"] for name in names]))
    assert _read(tmp_path / "groups.csv") == {"=g": names}
    (tmp_path / "ids.csv").write_text(csv_text(["image_id", "x"], [[name, 1] for name in names]))
    assert _listed(tmp_path / "ids.csv") == names
