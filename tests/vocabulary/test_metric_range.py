"""Tests of the declared range of a metric. Intervals depend on the range, so a score outside is an error."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from saliency_bench import registry
from saliency_bench.bound_metric import load_metric
from saliency_bench.declarations import metric
from saliency_bench.errors import UserError


def giving(*values, **changes):
    miou = load_metric("saliency_miou")
    declaration = replace(miou.declaration, **changes)
    return replace(miou, function=lambda *inputs, **named: np.array(values), declaration=declaration)


def test_score_outside_range_is_rejected():
    with pytest.raises(ValueError, match=r"1\.2 is outside the range from 0 to 1"):
        giving(0.5, 1.2)()
    with pytest.raises(ValueError, match=r"-3 is outside"):
        giving(-3.0, range=(0.0, float("inf")))()
    with pytest.raises(ValueError, match=r"7 is outside"):  # a part
        giving([0.5, 7.0], parts=lambda options, classifier: ("a", "b"))()


def test_rounding_nan_and_infinity_are_accepted():
    found = giving(1.0000001, -1e-7, np.nan, np.inf)()
    np.testing.assert_array_equal(found, [1.0000001, -1e-7, np.nan, np.inf])


def test_range_can_depend_on_options(monkeypatch):
    @metric(version=1, range=lambda options: (0.0, options["factor"]))
    def widened(maps, masks, *, factor=1.0):
        return maps

    module = SimpleNamespace(widened=widened)
    monkeypatch.setattr(registry, "load", lambda *names, **named: module)
    assert (load_metric("widened").range, load_metric("widened", factor=3.0).range) == ((0.0, 1.0), (0.0, 3.0))


def test_target_dependent_range_requires_target_input():
    def limits(options, target):
        return target.low, target.high

    with pytest.raises(UserError, match=r"metric blind: its range depends .*curves, or target and classifier"):

        @metric(version=1, range=limits)
        def blind(maps, masks):
            return maps
