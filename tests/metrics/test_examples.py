"""The hand-worked example in the docstring of every metric, executed."""

import doctest

import pytest

from saliency_bench import rooms


@pytest.mark.parametrize("name", rooms.names("metrics"))
def test_the_docstring_s_example_gives_what_it_says(name):
    module = rooms.load("metrics", name, part="score")
    examples = [one for one in doctest.DocTestFinder().find(module) if one.examples]
    assert f"{module.__name__}.{name}" in [one.name for one in examples]
    for one in examples:
        assert doctest.DocTestRunner().run(one).failed == 0
