"""What maps and scores take beside the passes that are counted, and the memory of each cell of a plan."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from saliency_bench.bound_explainer import as_explainer
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.recipes.suites import own_work
from saliency_bench.recipes.suites.costs import Cost, Speed, cost_of_image, cost_of_map, cost_of_score
from saliency_bench.recipes.suites.own_work import OwnWork, seconds_of
from saliency_bench.recipes.suites.plan import Step

SPEED = Speed((0.5,) * 3, (1.0, 1.0, 2.0), (3.0,) * 3, (4.0,) * 3, (0.25,) * 3, memory=10, weights=1000)


def test_costs_count_the_maps_and_scores_that_are_made():
    pairs = [("gradcam", "saliency_miou"), ("gradcam", "saliency_cgc"), ("random", "saliency_miou")]
    made = cost_of_image(pairs).times(3).made
    further = cost_of_score(Cost(), "saliency_cgc").made["saliency_cgc"]
    assert (made["saliency_miou"], made["saliency_cgc"], made["random"], further) == (6, 3, 3, 1)
    assert made["gradcam"] > 3  # the metric asks for further maps
    assert cost_of_map(as_explainer("gradcam")).made == Counter({"gradcam": 1})


def test_the_time_beside_the_passes_is_added_and_steps_are_counted():
    """By hand: 2 passes of 1 to 2 s, 4 steps of 0.25 s; 3 maps of 0.1 s and 5 scores of 0.2 s, of which 4 are known."""
    cost = Cost(forward=2, steps=4, made=Counter({"rise": 3, "saliency_miou": 5, "saliency_cgc": 1}))
    tried = OwnWork(times={"rise": 0.1, "saliency_miou": 0.2})
    assert seconds_of(cost, SPEED, tried) == pytest.approx((4.3, 4.3, 6.3))
    assert seconds_of(cost, SPEED, OwnWork(times={"saliency_miou": -9.0})) == (0.0, 0.0, 0.0)


def test_what_a_batch_takes_is_tried_unless_its_passes_take_long(resnet, monkeypatch):
    classifier = load_classifier(str(resnet), device="cpu")
    ticks = iter(range(10**6))
    monkeypatch.setattr("saliency_bench.recipes.suites.costs.clock", lambda: float(next(ticks)))
    names = ["saliency_miou", "saliency_confidence", "saliency_crowd_auc", "saliency_mcr"]
    pairs = [("gradcam", name) for name in names] + [("rise:masks=100000", "saliency_miou")]
    fast = Speed(*[(1e-4,) * 3] * 5, memory=10)
    tried = OwnWork()
    tried.measure(classifier, fast, pairs, 4)
    # Each try takes a tick for 4 images, of which the counted passes are taken off.
    assert tried.times["gradcam"] == pytest.approx(0.25, abs=0.01)
    assert tried.times["rise:masks=100000"] == 0.0  # 10 s of passes for an image
    assert tried.times["saliency_miou"] == pytest.approx(0.25, abs=0.01)
    assert tried.times["saliency_confidence"] > 0  # with partners among the batch
    assert tried.times["saliency_crowd_auc"] == 0.0  # needs people
    assert tried.has_tried(pairs)
    assert not tried.has_tried([("gradcam", "saliency_cgc")])
    assert tried.peak(pairs) > 10**7
    assert tried.peak([("rise:masks=100000", None)]) is None
    before = dict(tried.times)
    monkeypatch.setattr(own_work, "seconds_per_image", None)
    tried.measure(classifier, fast, pairs, 4)
    assert tried.times == before


def test_each_cell_of_a_plan_says_its_memory_and_a_run_its_size():
    tried = OwnWork(memory={"gradcam": 100, "saliency_miou": 300})
    job = SimpleNamespace(networks=(), folder=Path("run"), spec=SimpleNamespace(model="resnet", batch_size=16))
    pairs = [("gradcam", "saliency_miou"), ("rise", "saliency_miou")]
    step = Step(job, "there", "there", 10, 2, 0, Cost(forward=1), memory=200, left=pairs, speed=SPEED, own_work=tried,
                trainings={Path("network"): Cost()})  # fmt: skip
    memory = {(cell["explainer"], cell["metric"]): cell["memory"] for cell in step.by_cell}
    assert memory == {("gradcam", None): 100, ("gradcam", "saliency_miou"): 300, ("rise", None): 200,
                      ("rise", "saliency_miou"): 300}  # fmt: skip
    assert step.megabytes == pytest.approx((10 * 2 * 300 + 600_000 + 1000) / 1e6)


def test_windows_are_counted_at_the_size_of_the_network():
    """32 pixels have 4 x 4 windows of 8 pixels: 16 forward passes beside that of the whole image."""
    network = SimpleNamespace(start="start", recipe=SimpleNamespace(size=32))
    job = SimpleNamespace(networks=(network,), spec=SimpleNamespace(batch_size=16))
    step = Step(job, "there", "there", 10, 1, 0, None, left=[("occlusion:window=8,stride=8", "saliency_miou")])
    assert [cell["forward"] for cell in step.by_cell] == [10 * 17, 0]
