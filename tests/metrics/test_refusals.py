"""Options that a metric refuses, in one line: by name when it is loaded, and where its function is called."""

import numpy as np
import pytest
from refusals import refused

from saliency_bench import load_metric, registry
from saliency_bench.target_weights import one_hot

LOADED = {
    "saliency_miou:threshold=-0.1": "threshold=-0.1",
    "saliency_miou:threshold=1.5": "threshold=1.5",
    "saliency_precision:threshold=-0.1": "threshold=-0.1",
    "saliency_recall:threshold=half": "threshold",
    "saliency_iosr:threshold=-0.1": "threshold",
    "saliency_iosr:threshold=1": "threshold",
    "saliency_iosr:threshold=mask_area": "threshold",
    "saliency_pointing_game:ties=all": "ties",
    "saliency_pointing_game:tolerance=-1": "tolerance",
    "saliency_pointing_game:tolerance=inf": "tolerance",
    "saliency_cauc:step=0": "step=0",
    "saliency_cauc:threshold=2": "threshold=2",
    "saliency_cauc:salient=max": "salient .*'max'",
    "saliency_cdrop:threshold=-1": "threshold=-1",
    "saliency_cds:reference=blurr": r"blurr\b.*\bblur\b",
    "saliency_pgs:reference=blurr": r"blurr\b.*\bblur\b",
    "saliency_deletion:reference=blakc": r"blakc.*\bblack\b",
    "saliency_deletion:steps=0": r"\b1\b.*\b0\b",
    "saliency_insertion:start=zero": "start .*auto.*keep.*subtract",
    "saliency_kae:exposure=1.5": "exposure=1.5",
    "saliency_roae:reference=men": "mean",
    "saliency_road:exposure=2": "exposure=2",
    "saliency_road:order=last": "order",
    "saliency_max_sensitivity:radius=0": "radius.*draws",
    "saliency_max_sensitivity:draws=0": "radius.*draws",
    "saliency_randomisation:smooth=-1": "saliency_randomisation needs",
    "saliency_randomisation:layers=-2": "saliency_randomisation needs",
    "saliency_consistency:transform=rotate20": "did you mean rotate",
    "saliency_consistency:radius=0": "radius=0",
    "saliency_correctness:k=0": "at least 1; got k=0",
    "saliency_correctness:pairings=0": "pairings=0",
    "saliency_correctness:top=3": "1 or 5",
    "saliency_confidence:threshold=40": "from 0 to below 1; got 40; by=percentile takes 0 to 100",
    "saliency_confidence:threshold=100,by=percentile": "below 100; got 100",
    "saliency_own_region:threshold=1": "from 0 to below 1; got 1",
    "saliency_own_region:threshold=100,by=percentile": "below 100; got 100",
    "saliency_own_region:reference=grey": "grey",
    **{f"saliency_single_deletion:grid={grid}": f"grid={grid}" for grid in (0, 1)},
}


@pytest.mark.parametrize("text", LOADED)
def test_an_option_is_refused_when_the_metric_is_loaded(text):
    refused(LOADED[text], load_metric, text)


CALLED = [
    *((name, {"threshold": value}, "threshold") for name in ("saliency_miou", "saliency_recall", "saliency_iosr")
      for value in (np.nan, True, None, 1.5, "half")),
    ("saliency_pointing_game", {"tolerance": np.nan}, "tolerance"),
    ("saliency_pointing_game", {"tolerance": True}, "tolerance"),
    ("saliency_pointing_game", {"ties": "all"}, "ties='all'"),
    ("saliency_cdrop", {"threshold": -1}, "threshold=-1"),
    ("saliency_cds", {"reference": "blurr"}, r"blurr\b.*\bblur\b"),
    ("saliency_deletion", {"reference": "blakc"}, r"blakc.*\bblack\b"),
    ("saliency_cauc", {"salient": "max"}, "neither 'range' nor 'maximum'"),
    ("saliency_insertion", {"start": "zero"}, r"start='zero'.*auto.*subtract.*keep"),
    ("saliency_insertion", {"reference": "blurr"}, r"blurr\b.*\bblur\b"),
    *(("saliency_single_deletion", {"grid": grid}, f"grid={grid!r}") for grid in (2.5, True, "4", 7)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "words"), CALLED)
def test_an_option_is_refused_where_the_function_is_called(name, options, words, slow):
    is_of_curves = "curves" in load_metric(name).inputs
    inputs = [slow.curves(one_hot([0, 1, 2], 4))] if is_of_curves else [np.ones((1, 2, 2)), np.ones((1, 2, 2))]
    with pytest.raises(ValueError, match=words):
        getattr(registry.load("metrics", name, "score"), name)(*inputs, **options)
