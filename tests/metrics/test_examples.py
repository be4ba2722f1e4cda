"""The hand-worked example in the docstring of every metric.

What needs a network and an explainer tells it in words and works it out in its own test; all others are executed here.
"""

import doctest
import inspect

import contracts
import pytest

from saliency_bench import registry
from saliency_bench.bound_metric import load_metric


@pytest.mark.parametrize("name", contracts.complete("metrics"))
def test_the_docstring_s_example_gives_what_it_says(name):
    module = registry.load("metrics", name, part="score")
    assert "\nExample" in inspect.getdoc(getattr(module, name))  # the same for Python 3.13, which strips indentation
    examples = [one for one in doctest.DocTestFinder().find(module) if one.examples]
    assert {"explain", "partners"} & set(load_metric(name).inputs) or f"{module.__name__}.{name}" in [
        one.name for one in examples
    ]
    for one in examples:
        assert doctest.DocTestRunner().run(one).failed == 0
