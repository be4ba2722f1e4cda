"""Tests of errors in users' metrics: one line that names the metric, without tracebacks or silent failures."""

import asyncio
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from refusals import refused

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.bound_explainer import as_explainer
from saliency_bench.compute.scoring.inputs import MetricInputs
from saliency_bench.target_weights import one_hot

B = 3


class Mean(torch.nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))


def metric(function, *needs, **changes):
    miou = sb.load_metric("saliency_miou")
    return replace(miou, name="saliency_mine", function=function, inputs=needs or ("maps",), options=(),
                   declaration=replace(miou.declaration, **changes))  # fmt: skip


def inputs():
    images = torch.rand(B, 3, 4, 4)
    classifier = sb.load_classifier(Mean(), mean=0, std=1)
    return MetricInputs(
        classifier, sb.load_explainer("gradient"), images, one_hot([0, 1, 2], 3), classifier(images).detach(),
        lambda sample, purpose: sample, maps=torch.rand(B, 4, 4), masks=np.ones((B, 4, 4), bool), unusable=[None] * B,
    )  # fmt: skip


def giving(value, **changes):
    return metric(lambda maps=None: value, **changes)


WRONG = {"a scalar": (0.5, r"a number.*one score for each of 3 samples"),
         "too few": (np.zeros(2), r"shape \(2,\).*each of 3 samples"),
         "none": (np.zeros(0), r"shape \(0,\).*each of 3 samples"),
         "two axes": (np.zeros((B, 1)), r"shape \(3, 1\).*each of 3 samples"),
         "texts": (["a", "b", "c"], "instead of real numbers"), "nothing": (None, "instead of real numbers"),
         "complex": (np.zeros(B, complex), "instead of real numbers"),
         "ragged": ([[1], [1, 2], []], "instead of real numbers"),
         "out of range": ([0.5, 1.5, 0.5], r"1\.5 is outside the range from 0 to 1")}  # fmt: skip


@pytest.mark.parametrize(("value", "words"), WRONG.values(), ids=WRONG)
def test_invalid_scores_give_error_with_metric_name(value, words):
    refused(f"saliency_mine.*{words}", inputs().score, giving(value))


PARTS = {"no parts": (np.zeros(B), r"shape \(3,\).*must return values of shape \(B, P\)"),
         "turned": (np.zeros((2, B)), r"shape \(2, 3\).*3 samples and 2 parts"),
         "out of range": ([[0.5, 7.0]] * B, "7 is outside the range from 0 to 1")}  # fmt: skip


@pytest.mark.parametrize(("value", "words"), PARTS.values(), ids=PARTS)
def test_invalid_parts_are_rejected(value, words):
    refused(f"saliency_mine.*{words}", inputs().score, giving(value, parts=lambda options, classifier: ("a", "b")))


def fails(*given):
    raise KeyError("nothing here")


def test_faulty_declared_functions_are_rejected():
    two = {"parts": lambda options, classifier: ("a", "b")}
    for changes, words in (
        ({"reduce": lambda values, options: 0.5}, r"reduce.*each of 3 samples"),
        ({"parts": lambda options, classifier: ("a", "a")}, "parts.*distinct"),
        ({"parts": lambda options, classifier: "ab"}, "parts.*distinct"),
        ({"parts": fails}, "parts. raised KeyError"),
        ({"parts": lambda options, classifier: sys.exit(0)}, "parts. raised SystemExit"),
    ):
        refused(f"saliency_mine.*{words}", inputs().score, giving(np.zeros((B, 2)), **(two | changes)))
    refused("saliency_mine.*marked.*each of 3 samples", inputs().score, giving(np.zeros(B), marked=lambda maps: True))
    for question in (lambda *given: [()], lambda *given: 3, fails):
        refused("saliency_mine: .*`question`", giving(np.zeros(B), question=question).questions, np.zeros((B, 3)), None)


def test_nan_integers_booleans_and_tensors_are_valid_scores():
    assert inputs().score(giving([np.nan, 1, 0])).values == [None, 1, 0]
    assert inputs().score(giving(torch.tensor([0, 1, 0.5], requires_grad=True))).values == [0, 1, 0.5]
    assert inputs().score(giving(torch.tensor([0, 1, 1], dtype=torch.bfloat16))).values == [0, 1, 1]
    assert inputs().score(giving(np.array([True, False, True]))).values == [1, 0, 1]


def test_rounding_nan_and_infinity_are_accepted():
    scores = np.array([1.0000001, -1e-7, np.nan, np.inf])
    np.testing.assert_array_equal(giving(scores)(), scores)
    refused("-3 is outside", inputs().score, giving([0, 0, -3.0], range=(0.0, np.inf)))


def test_range_can_depend_on_options(monkeypatch):
    @sb.metric(version=1, range=lambda options: (0.0, options["factor"]))
    def widened(maps, masks, *, factor=1.0):
        return maps

    monkeypatch.setattr(registry, "load", lambda *names, **named: SimpleNamespace(widened=widened))
    assert (sb.load_metric("widened").range, sb.load_metric("widened", factor=3.0).range) == ((0.0, 1.0), (0.0, 3.0))


class Wicked(BaseException):
    pass


LEAVING = {"sys.exit": (lambda: sys.exit(0), "SystemExit: 0"), "a bare exit": (lambda: sys.exit(), "SystemExit"),
           "cancelled": (lambda: (_ for _ in ()).throw(asyncio.CancelledError()), "CancelledError"),
           "its own": (lambda: (_ for _ in ()).throw(Wicked("off")), "Wicked: off")}  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize(("leave", "words"), LEAVING.values(), ids=LEAVING)
def test_exit_in_metric_or_explainer_counts_as_error(leave, words, shapes, resnet, tmp_path):
    def leaving(classifier, images, target):
        leave()

    explainers, metrics = [leaving, "random"], ["saliency_miou", metric(lambda maps: leave())]
    done = sb.run(dataset=str(shapes), model=str(resnet), explainers=explainers, metrics=metrics, limit=4,
                  out=tmp_path / "run", device="cpu", progress=False)  # fmt: skip
    cells = {(cell["explainer"], cell["metric"]): cell for cell in done.summary["cells"]}
    assert cells["random", "saliency_miou"]["n"] == 4
    for name in ("saliency_miou", "saliency_mine"):
        assert cells["leaving", name]["left_out"] == {f"the explainer raised {words}": 4}
    assert cells["random", "saliency_mine"]["left_out"] == {f"the metric raised {words}": 4}
    refused(f"leaving.*{words}", sb.run, dataset=str(shapes), model=str(resnet), explainers=[leaving], limit=4,
            metrics=["saliency_miou"], out=tmp_path / "strict", device="cpu", progress=False, strict=True)  # fmt: skip


def test_keyboard_interrupt_is_not_swallowed():
    def stopped(*given, **named):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inputs().score(metric(stopped))
    with pytest.raises(KeyboardInterrupt):
        as_explainer(stopped)(Mean(), torch.rand(2, 3, 4, 4), one_hot([0, 1], 3))


def test_exit_during_plugin_import_is_reported(tmp_path, monkeypatch):
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    import saliency_bench.explainers as plugins

    monkeypatch.setattr(plugins, "__path__", [*plugins.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "folders", lambda kind: [tmp_path])
    refused(r"leaving.*sys.exit\(0\).*imported", registry.load, "explainers", "leaving")
