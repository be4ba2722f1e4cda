"""Test common properties of metrics, and that alignment metrics rank damaged masks of shapes-xai correctly."""

from itertools import pairwise
from pathlib import Path

import contracts
import numpy as np
import planted as script
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.target_weights import one_hot

METRICS = [load_metric(name) for name in contracts.complete("metrics")]
ALIGNMENT = [metric.name for metric in METRICS if metric.inputs == ("maps", "masks")]
CURVES = [metric.name for metric in METRICS if "curves" in metric.inputs]
# These metrics delete pixels above a share of the map's range, so values matter in addition to their order.
BY_VALUE = ["saliency_cauc", "saliency_cdrop"]
# These metrics use only the order of the pixels. Add new metrics with this property.
BY_ORDER = ["saliency_cds", "saliency_deletion", "saliency_insertion", "saliency_kae", "saliency_roae"]
# For these metrics, no map is worse than the inverse of the mask.
OF_REGIONS = ["saliency_average_precision", "saliency_iosr", "saliency_miou", "saliency_pointing_game",
              "saliency_precision", "saliency_recall"]  # fmt: skip
NORMALISED = [metric.name for metric in METRICS if {"normalise", "threshold"} <= set(dict(metric.options))]

MAPS = arrays(np.float32, (2, 4, 5), elements=st.integers(-8, 8).map(float))
MASKS = arrays(bool, (2, 4, 5))
# Values that stay distinct in float32.
INCREASING = (lambda x: np.exp(x / 2), lambda x: x**3 - 7, np.arctan, lambda x: x * np.abs(x) / 3)


def with_both(masks):
    """Make masks neither empty nor full."""
    masks[:, 0, 0], masks[:, -1, -1] = True, False
    return masks


def distinct(*arrays):
    return [len(np.unique(one)) for array in arrays for one in array]


class Network(nn.Module):
    """Network whose logits are linear in the pixels, and that records its inputs."""

    def __init__(self, height, width, classes=3):
        super().__init__()
        self.register_buffer("mean", torch.full((1, 3, 1, 1), 0.4))
        self.linear = nn.Linear(3 * height * width, classes)
        self.seen = []

    def forward(self, images):
        self.seen += [image.numpy().tobytes() for image in images]
        return 4 * self.linear(images.flatten(1))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Network(4, 5), torch.rand(2, 3, 4, 5)


def by_curves(name, network, maps, **options):
    classifier, images = network
    return scored(load_metric(name, **options), Curves(classifier, images, one_hot([0, 1], 3), maps))


def scored(metric, curves):
    """Return the scores, with the target's class as label for metrics that need a label."""
    return metric(curves, curves.target > 0) if "labels" in metric.inputs else metric(curves)


def test_listed_metrics_exist():
    assert set(OF_REGIONS) <= set(ALIGNMENT)
    assert set(BY_ORDER) | set(BY_VALUE) <= set(CURVES)
    assert {"saliency_miou", "saliency_precision", "saliency_recall"} <= set(NORMALISED)


@pytest.mark.parametrize("name", ALIGNMENT)
@given(MASKS.map(with_both))
def test_mask_is_the_best_map(name, masks):
    metric = load_metric(name)
    assert (metric(masks, masks) == metric.range[metric.higher_is_better]).all()


@pytest.mark.parametrize("name", OF_REGIONS)
@given(MASKS.map(with_both), MAPS)
def test_inverse_mask_is_the_worst_map(name, masks, maps):
    score = load_metric(name)
    # Break the ties of the inverse, because average precision handles tied pixels together, which raises the score.
    inverse = ~masks * 100 + np.random.default_rng(0).permutation(masks.size).reshape(masks.shape)
    worst, plain = score(inverse, masks), score(~masks, masks)
    assert (worst <= score(maps, masks)).all()
    share = masks.mean(axis=(1, 2)) if name == "saliency_average_precision" else 0
    np.testing.assert_allclose(plain, share, rtol=1e-12)


@pytest.mark.parametrize(("name", "options"),
                         [("saliency_pointing_game", {}), ("saliency_pointing_game", {"ties": "any"}),
                          ("saliency_average_precision", {})]
                         + [(name, {"threshold": "mask_area", "normalise": normalise}) for name in NORMALISED
                            for normalise in (True, False)])  # fmt: skip
@given(MAPS, MASKS, st.sampled_from(INCREASING))
def test_increasing_transform_keeps_rank_based_scores(name, options, maps, masks, change):
    changed = change(maps.astype(np.float64)).astype(np.float32)
    assert distinct(maps) == distinct(changed)
    score = load_metric(name, **options)
    np.testing.assert_array_equal(score(changed, masks), score(maps, masks))


@pytest.mark.parametrize("name", BY_ORDER)
@settings(max_examples=25)
@given(MAPS, st.sampled_from(INCREASING))
def test_increasing_transform_keeps_curves(network, name, maps, change):
    changed = change(maps.astype(np.float64)).astype(np.float32)
    assert distinct(maps) == distinct(changed)
    np.testing.assert_array_equal(by_curves(name, network, changed), by_curves(name, network, maps))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NORMALISED)
@given(MAPS, MASKS, st.integers(-4, 4), st.integers(-64, 64))
def test_affine_transform_keeps_normalised_scores(name, maps, masks, exponent, shift):
    # Powers of two and small whole numbers are exact in float32, so results are bit-identical.
    changed = maps * np.float32(2.0**exponent) + np.float32(shift)
    np.testing.assert_array_equal(load_metric(name)(changed, masks), load_metric(name)(maps, masks))


@pytest.mark.parametrize("name", BY_VALUE)
@settings(max_examples=25)
@given(MAPS, st.integers(-4, 4), st.integers(-64, 64))
def test_affine_transform_keeps_range_based_curves(network, name, maps, exponent, shift):
    changed = maps * np.float32(2.0**exponent) + np.float32(shift)
    before = by_curves(name, network, maps, step=2)
    np.testing.assert_array_equal(by_curves(name, network, changed, step=2), before)


@pytest.mark.parametrize("options", [{}, {"steps": 3}])
def test_no_path_is_classified_twice(options):
    """Score one map with all variants of insertion, deletion, both accuracies and CDS."""
    torch.manual_seed(0)
    classifier, maps = Network(8, 8), np.random.default_rng(0).normal(size=(1, 8, 8))
    curves = Curves(classifier, torch.rand(1, 3, 8, 8), one_hot(1, 3), maps)
    for text in ("insertion", "insertion:start=subtract", "deletion", "kae", "roae", "kae:exposure=0.3", "cds"):
        scored(load_metric(f"saliency_{text}"), curves)
    for reference in ("mean", "blur"):
        load_metric("saliency_insertion", reference=reference, **options)(curves)
    load_metric("saliency_insertion", reference="blur", start="keep", **options)(curves)
    rows, exposures, fractions = 9, 9, 10
    others = 2 * (4 if options else rows)
    needed = rows + rows + exposures + exposures + 1 + fractions + others
    assert len(classifier.seen) == curves.passes == needed


def test_run_counts_shared_passes_once(shapes, resnet, tmp_path):
    metrics = ["insertion", "deletion", "kae", "roae", "insertion:start=subtract"]
    result = sb.run(dataset=str(shapes), model=str(resnet), explainers=["centre"], out=tmp_path, limit=3, batch_size=3,
                    metrics=[f"saliency_{name}" for name in metrics], progress=False, device="cpu")  # fmt: skip
    passes = [cell["forward_passes"]["metric"] for cell in result.summary["cells"]]
    assert passes == [3 * 33, 3 * 33, 3 * 9, 3 * 9, 0]  # for 32 x 32 pixels: 33 steps of a row; nine exposures


@pytest.fixture(scope="module")
def masks():
    shapes = registry.load("hub_builders", "shapes-xai")
    return np.stack([shapes.drawn(index, 64)["mask"] > 0 for index in range(96)])


@pytest.mark.parametrize("name", ALIGNMENT)
def test_damaged_masks_are_ranked_correctly(masks, name):
    metric, maps = load_metric(name), script.planted(masks)
    scores = {kind: metric(maps[kind], masks).mean() for kind in script.ORDER}
    goodness = [score if metric.higher_is_better else -score for score in scores.values()]
    assert scores["mask"] == metric.range[metric.higher_is_better]
    for better, worse in pairwise(goodness[1:]):
        assert better > worse
    # A blurred mask has its maximum inside the mask, so the pointing game gives both maps the same score.
    assert goodness[0] > goodness[1] or name == "saliency_pointing_game"


def test_page_of_damaged_masks_marks_wrong_orders():
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    lines = {line.split()[1]: line for line in page.splitlines() if line.startswith("| saliency_")}
    assert {"saliency_miou", "saliency_deletion"} <= set(lines) <= {metric.name for metric in METRICS}
    for name, line in lines.items():
        means = [float(cell.strip("* ")) for cell in line.split("|")[2:-1]]
        assert script.row(load_metric(name), means) == line
        assert name not in ALIGNMENT or "**" not in line
