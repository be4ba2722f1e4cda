"""Tests of the names of methods and metrics on a board: lookalike names are refused, and normal names are accepted."""

import json
import re
from functools import partial

import numpy as np
import pytest
from refusals import refused
from submissions import write

import saliency_bench as sb
from saliency_bench.board.submission_schema import read_result
from saliency_bench.bound_explainer import as_explainer, list_explainers, load_explainer
from saliency_bench.bound_metric import list_metrics, load_metric
from saliency_bench.compute.maps.composing import absolute, blurred, over_layers, positive, smoothed
from saliency_bench.read.public_names import COMPOSING, refused_label

GOOD = 0.7 + 0.1 * np.random.default_rng(0).random(60)


def test_names_like_a_known_method_show_their_version(tmp_path):
    names = ["GradCAM", "grad-cam", "Grad_CAM.", "gradcams"]
    write(tmp_path, {f"{name}@0123456789abcdef": GOOD for name in names})
    rows = sb.load_results(tmp_path).rows
    assert all(row.own_method for row in rows)
    shown = {row.cell.explainer_text for row in rows}
    assert shown == {*(f"{name} (version 012345)" for name in names[:3]), "gradcams"}


@pytest.mark.parametrize(
    "name",
    ["gradcam\u00a0", "gradc\u0430m", "gradcam@2", "\u115f", "gra\u0301\u0301\u0301dcam", "\uff47radcam", "a" * 101, "",
     "gradcam(official)", "gradcam,rank1", "<b>",
     "absolute(gradc\u0430m)", f"absolute({'a' * 400})", "@ada", "-1"],
)  # fmt: skip
def test_lookalike_and_invisible_names_are_refused(tmp_path, name):
    path = write(tmp_path, {"mine@0123456789abcdef": GOOD, "gradcam": GOOD}) / "result.json"
    content = json.loads(path.read_text())
    content["cells"][0]["explainer"] = name
    path.write_text(json.dumps(content))
    assert refused(r"cells\.0\.explainer", read_result, path).isascii()
    content["cells"][0]["explainer"] = "mine"
    content["cells"][0]["metric"] = name
    path.write_text(json.dumps(content))
    refused(r"cells\.0\.metric", read_result, path)


@pytest.mark.parametrize("chosen", [{"note": "gradc\u0430m"}, {"\u115f": 1}, {"note": "x" * 1500}, {"note": "a\x7f"}])
def test_unreadable_options_are_refused(chosen):
    assert "options that a board does not accept" in refused_label("mine", chosen)


def test_names_of_honest_methods_are_accepted():
    def my_method(classifier, images, target):
        return images.mean(1)

    class Own:
        def __call__(self, classifier, images, target):
            return images.mean(1)

    nameless = lambda classifier, images, target: images.mean(1)  # noqa: E731
    methods = [my_method, nameless, partial(my_method), Own(), absolute(my_method),
               smoothed("gradient:reduction=sum", draws=3), positive(blurred("gradcam")),
               over_layers("gradcam", ["layer3", "layer4.1"])]  # fmt: skip
    for method in (*map(as_explainer, methods), *map(load_explainer, list_explainers())):
        assert refused_label(method.name, dict(method.options)) == ""
    assert {kind for method in methods for kind in re.findall(r"(\w+)\(", as_explainer(method).name)} == set(COMPOSING)
    for name in list_metrics():
        assert refused_label(name, dict(load_metric(name).options)) == ""
