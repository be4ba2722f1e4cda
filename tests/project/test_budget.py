import re
from pathlib import Path

import budget


def test_tests_stay_within_their_budget():
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    most = float(re.search(r"more\s+than\s+(\d\.\d+)\s+lines\s+of\s+tests", text)[1])
    tests, product = budget.counted()
    assert tests / product <= most, budget.sentence(tests, product)
