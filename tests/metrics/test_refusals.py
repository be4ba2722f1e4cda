"""Test one-line errors for invalid options of a metric, when it is loaded by name and when it is called."""

import numpy as np
import pytest
from refusals import refused

from saliency_bench import load_metric, registry
from saliency_bench.target_weights import one_hot

LOADED = {  # error message: metrics
    "threshold must .*got -0.1":
        "saliency_miou:threshold=-0.1 saliency_precision:threshold=-0.1 saliency_iosr:threshold=-0.1",
    "threshold must .*got 1.5": "saliency_miou:threshold=1.5",
    "threshold": "saliency_recall:threshold=half saliency_iosr:threshold=1 saliency_iosr:threshold=mask_area",
    "ties": "saliency_pointing_game:ties=all",
    "tolerance": "saliency_pointing_game:tolerance=-1 saliency_pointing_game:tolerance=inf",
    "step must .*got 0": "saliency_cauc:step=0",
    "threshold must .*got 2": "saliency_cauc:threshold=2",
    "salient .*'max'": "saliency_cauc:salient=max",
    "threshold must .*got -1": "saliency_cdrop:threshold=-1",
    r"blurr\b.*\bblur\b": "saliency_cds:reference=blurr saliency_pgs:reference=blurr",
    r"blakc.*\bblack\b": "saliency_deletion:reference=blakc",
    r"\b1\b.*\b0\b": "saliency_deletion:steps=0",
    "start .*auto.*keep.*subtract": "saliency_insertion:start=zero",
    "exposure must .*got 1.5": "saliency_kae:exposure=1.5",
    "mean": "saliency_roae:reference=men",
    "exposure must .*got 2": "saliency_road:exposure=2",
    "order": "saliency_road:order=last",
    "radius.*draws": "saliency_max_sensitivity:radius=0 saliency_max_sensitivity:draws=0",
    "saliency_randomisation needs": "saliency_randomisation:smooth=-1 saliency_randomisation:layers=-2",
    "did you mean rotate": "saliency_consistency:transform=rotate20",
    "radius=0": "saliency_consistency:radius=0",
    "at least 1; got k=0": "saliency_correctness:k=0",
    "pairings=0": "saliency_correctness:pairings=0",
    "1 or 5": "saliency_correctness:top=3",
    "at least 0 and below 1; got 40; use by=percentile for 0 to 100": "saliency_confidence:threshold=40",
    "at least 0 and below 1; got 1": "saliency_own_region:threshold=1",
    "below 100; got 100": "saliency_confidence:threshold=100,by=percentile "
                          "saliency_own_region:threshold=100,by=percentile",
    "grey": "saliency_own_region:reference=grey",
    "grid=0": "saliency_single_deletion:grid=0",
    "grid=1": "saliency_single_deletion:grid=1",
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), [(text, words) for words in LOADED for text in LOADED[words].split()])
def test_invalid_option_is_rejected_when_loading(text, words):
    refused(words, load_metric, text)


CALLED = [
    *((name, {"threshold": value}, "threshold") for name in ("saliency_miou", "saliency_recall", "saliency_iosr")
      for value in (np.nan, True, None, 1.5, "half")),
    ("saliency_pointing_game", {"tolerance": np.nan}, "tolerance"),
    ("saliency_pointing_game", {"tolerance": True}, "tolerance"),
    ("saliency_pointing_game", {"ties": "all"}, "ties='all'"),
    ("saliency_cdrop", {"threshold": -1}, "threshold must .*got -1"),
    ("saliency_cds", {"reference": "blurr"}, r"blurr\b.*\bblur\b"),
    ("saliency_deletion", {"reference": "blakc"}, r"blakc.*\bblack\b"),
    ("saliency_cauc", {"salient": "max"}, "neither 'range' nor 'maximum'"),
    ("saliency_insertion", {"start": "zero"}, r"start='zero'.*auto.*subtract.*keep"),
    ("saliency_insertion", {"reference": "blurr"}, r"blurr\b.*\bblur\b"),
    *(("saliency_single_deletion", {"grid": grid}, f"grid={grid!r}") for grid in (2.5, True, "4", 7)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "words"), CALLED)
def test_invalid_option_is_rejected_when_calling(name, options, words, slow):
    is_of_curves = "curves" in load_metric(name).inputs
    inputs = [slow.curves(one_hot([0, 1, 2], 4))] if is_of_curves else [np.ones((1, 2, 2)), np.ones((1, 2, 2))]
    with pytest.raises(ValueError, match=words):
        getattr(registry.load("metrics", name, "score"), name)(*inputs, **options)
