"""Tests of options: values that an annotation allows are accepted, and others are refused at construction."""

from typing import Literal

import numpy as np
import pytest
from refusals import refused

from saliency_bench import load_explainer, options, registry


def method(
    maps,
    *,
    kind: Literal["soft", "hard"] = "soft",
    size: int | None = None,
    tolerance: float = 0,
    threshold: float | Literal["mask_area"] = 0.5,
    fill: Literal["mean"] | None = None,
    flip: bool = False,
    anything=(),
):
    """Has an option of every kind."""


def read(**given):
    return dict(options.resolved("method", method, given))


def text(**given):
    return options.text(options.resolved("method", method, given))


@pytest.mark.parametrize(("given", "words"), [
    ({"kind": "Soft"}, "unknown value of option kind of method 'Soft'; did you mean soft"),
    ({"kind": "x"}, "kind of method 'x'; known: hard, soft"),
    ({"kind": 1}, "option kind of method must be soft or hard; got 1"),
    ({"kind": None}, "must be soft or hard; got None"),
    ({"size": 1.5}, "option size of method must be int or None; got 1.5"),
    ({"size": True}, "must be int or None; got True"), ({"tolerance": "wide"}, "must be float; got 'wide'"),
    ({"tolerance": float("nan")}, "tolerance of method must be a finite number; got nan"),
    ({"tolerance": float("inf")}, "must be a finite number; got inf"),
    ({"threshold": "area"}, "threshold of method 'area'; did you mean mask_area"),
    ({"fill": "median"}, "fill of method 'median'; known: mean|did you mean mean"),
    ({"flip": 1}, "option flip of method must be bool; got 1"),
    ({"sizes": 3}, "option 'sizes' of method; did you mean size"),
])  # fmt: skip
def test_invalid_option_value_is_rejected(given, words):
    refused(words, read, **given)


def test_valid_option_values_are_accepted():
    given = {"kind": "hard", "size": 4, "threshold": "mask_area", "fill": "mean", "flip": True, "anything": [1]}
    assert (read(**given), read(size=None, fill=None)) == (given | {"tolerance": 0.0}, read())


def test_integer_for_float_option_equals_float():
    assert text() == text(tolerance=0) == text(tolerance=0.0)
    assert text(tolerance=1, size=1) == text(tolerance=1.0, size=1)
    assert type(read(size=1)["size"]) is int


def test_whole_floats_and_numpy_numbers_equal_integers():
    for value in (4, 4.0, np.int64(4), np.float32(4), np.array(4)):
        assert text(size=value) == text(size=4)
    assert read(flip=np.bool_(True))["flip"] is True
    assert read(threshold=np.float32(0.5))["threshold"] == 0.5


def test_choices_come_from_literal_annotation():
    assert (options.choices(method, "kind"), options.choices(method, "fill")) == (("soft", "hard"), ("mean",))
    assert options.choices(method, "threshold") == options.choices(method, "anything") == ()
    for name in ("gradcam", "rise", "tattr", "smoothgrad"):
        choices = options.choices(getattr(registry.load("explainers", name), name), "on")
        refused(
            f"option on of {name} '{choices[0]}s'; did you mean .*{choices[0]}",
            load_explainer,
            f"{name}:on={choices[0]}s",
        )
        assert [dict(load_explainer(f"{name}:on={choice}").options)["on"] for choice in choices] == list(choices)
