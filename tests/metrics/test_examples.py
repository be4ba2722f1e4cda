"""Run the worked example in the docstring of every metric, and test the pictures on pages of metrics.

Metrics that need a network and an explainer describe the example in words, and their own tests compute it. All other
examples are executed here, including the example in the docstring of every `evaluate` module.
"""

import ast
import doctest
import importlib
import inspect
import os
import re
import sys

import contracts
import evaluate
import pandas as pd
import pytest
from evaluate.loading import evaluation_module_factory, import_main_class, init_dynamic_modules
from site_pages import site_page

from saliency_bench import registry
from saliency_bench.bound_metric import load_metric


@pytest.mark.parametrize("name", contracts.complete("metrics"))
def test_docstring_example_prints_expected_output(name):
    module = registry.load("metrics", name, part="score")
    assert "\nExample" in inspect.getdoc(getattr(module, name))  # equal for Python 3.13, which strips indentation
    examples = [one for one in doctest.DocTestFinder().find(module) if one.examples]
    assert {"explain", "partners"} & set(load_metric(name).inputs) or f"{module.__name__}.{name}" in [
        one.name for one in examples
    ]
    for one in examples:
        assert doctest.DocTestRunner().run(one).failed == 0


@pytest.fixture(scope="module")
def dynamic_modules(tmp_path_factory):
    modules = init_dynamic_modules("examples_of_metrics", str(folder := tmp_path_factory.mktemp("modules")))
    yield modules
    sys.path.remove(str(folder))


@pytest.mark.parametrize("name", registry.names("metrics"))
def test_modules_pass_evaluate_common_test(name, dynamic_modules, monkeypatch):
    """Run the checks of `LocalModuleTest.test_load` in tests/test_metric_common.py of the evaluate repository."""
    load, folder = evaluate.load, registry.files("metrics")[name].parent
    monkeypatch.setattr(evaluate, "load", lambda name, **options: load(os.path.join(folder.parent, name), **options))
    found = evaluation_module_factory(str(folder), module_type="metric", dynamic_modules_path=dynamic_modules)
    module = importlib.import_module(found.module_path)
    parameters = inspect.signature(import_main_class(module.__name__)._compute).parameters
    assert all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values())
    results = doctest.testmod(module, raise_on_error=True)
    assert results.failed == 0
    assert results.attempted > 1


@pytest.mark.parametrize("name", registry.names("metrics"))
def test_module_and_card_have_same_example(name):
    """Test that `inputs_description` shows the code of "How to use" in README.md, which prints what the card shows."""
    folder = registry.files("metrics")[name].parent
    code, printed = re.search(
        r"## How to use\n.*?```python\n(.*?)```.*?```\n(.*?)```", (folder / "README.md").read_text(), flags=re.DOTALL
    ).groups()
    shown = evaluate.load(str(folder)).inputs_description.partition("\nExample:\n")[2]
    assert ast.dump(ast.parse(doctest.script_from_examples(shown))) == ast.dump(ast.parse(code))
    assert "".join(example.want for example in doctest.DocTestParser().get_examples(shown)) == printed


page = site_page("metrics")


def test_page_shows_scores_of_each_map():
    records = pd.DataFrame([
        ("coffee", "gradcam", 0.25), ("coffee", "random", 0.5), ("shape-7", "gradcam", 1.0), ("coffee", "centre", None),
    ], columns=["image_id", "explainer", "value"])  # fmt: skip
    text = page.with_picture("# saliency_miou\n\nWhat it is.\n\n## How to use\n\nSo.\n", "saliency_miou", records)
    assert text.startswith("# saliency_miou\n\nWhat it is.\n\n## On a photograph and on a drawing\n\n![maps of ")
    assert "\n| miou | gradcam | integrated_gradients | rise | centre | random |\n" in text
    assert "\n| coffee | 0.25 | – | – | – | 0.50 |\n| the drawing | 1.00 | – | – | – | – |\n" in text
    assert "higher is better" in text
    assert text.endswith("\n## How to use\n\nSo.\n")


def test_page_omits_metrics_with_people_or_training():
    names = page.measured()
    assert {"saliency_miou", "saliency_energy", "saliency_insertion", "saliency_road"} <= set(names)
    assert not {"saliency_roar", "saliency_crowd_auc", "saliency_cauc"} & set(names)
