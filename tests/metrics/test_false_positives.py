"""Test saliency_mcs, saliency_mcr and saliency_idr with loops, worked examples, properties and known maps."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

import saliency_bench as sb
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.scoring.bam import preprocessed
from saliency_bench.compute.scoring.inputs import OtherModel
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.target_weights import one_hot

B = 3
MAPS = arrays(np.float32, (2, B, 4, 5), elements=st.integers(-4, 8).map(float))
MASKS = arrays(bool, (B, 4, 5))
RIGHT = arrays(bool, (2, B))
QUARTER = np.pad(np.ones((2, 2), bool), ((2, 0), (2, 0)))
OF_OBJECT = np.array([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 4, 4], [0, 0, 2, 0]])
OF_SCENE = np.array([[4, 4, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]])


class Says(nn.Module):
    """Classifier that predicts class 1 (correct) if the first pixel is bright, else class 0 (wrong)."""

    def forward(self, images):
        bright = (images[:, 0, 0, 0] > 0.5).float()
        return torch.stack([1 - bright, bright], dim=1)


OBJECTS, SCENES = Says(), Says()


def asked(metric, maps, masks, right, without=None):
    """Return a metric's inputs for correct and wrong predictions and for maps of objects and scenes."""
    images, pictures = torch.zeros(len(masks), 3, *masks.shape[1:]), torch.zeros(len(masks), 3, *masks.shape[1:])
    pictures[:, 0, 0, 0] = 1
    labels = np.tile([False, True], (len(masks), 1))
    logits = [one_hot([int(one) for one in own], 2) for own in right]

    def explain(shown, target, samples=None, classifier=None):
        samples = range(len(masks)) if samples is None else samples
        whose = without if shown is not images else maps[int(classifier is SCENES)]
        return np.stack([whose[sample] for sample in samples]).astype(np.float32)

    inputs = {
        "images": images, "masks": masks, "logits": logits[0], "labels": labels, "classifier": OBJECTS,
        "explain": explain,
        "other": OtherModel(SCENES, logits[1], labels, [None] * len(masks)),
        "columns": {"image_without_object": pictures},
    }  # fmt: skip
    return {need: inputs[need] for need in metric.inputs}


def literal_scale(one):
    """Return the positive part, clipped at the interpolated 99th percentile and scaled to [0, 1]."""
    values = [max(float(value), 0.0) for value in one.flat]
    ordered = sorted(values)
    place = 0.99 * (len(ordered) - 1)
    low = ordered[int(place)]
    top = low + (place - int(place)) * (ordered[min(int(place) + 1, len(ordered) - 1)] - low)
    clipped = [min(value, top) for value in values]
    least, most = min(clipped), max(clipped)
    return [(value - least) / (most - least) if most > least else 0.0 for value in clipped]


def literal_inside(one, mask, share):
    values = literal_scale(one)
    inside = [value for value, there in zip(values, mask.flat, strict=True) if there]
    if not inside:
        return np.nan
    if share:
        return sum(inside) / sum(values) if sum(values) > 0 else 0.0
    return sum(inside) / len(inside)


def literal_contrast(maps, masks, right, share, each):
    rows = []
    for sample, mask in enumerate(masks):
        both = [literal_inside(own[sample], mask, share) for own in maps]
        ok = [bool(right[0][sample]), bool(right[1][sample])]
        ok = ok if each else [all(ok)] * 2
        rows.append([value if kept else np.nan for value, kept in zip(both, ok, strict=True)])
    return np.array(rows)


@given(st.sampled_from(["saliency_mcs", "saliency_mcr"]), st.sampled_from(["both", "each"]), MAPS, MASKS, RIGHT)
def test_contrasts_match_literal_loop(name, chosen, maps, masks, right):
    metric = load_metric(name, filter=chosen)
    scores, parts = metric.with_parts(**asked(metric, maps, masks, right))
    expected = literal_contrast(maps, masks, right, name.endswith("mcr"), chosen == "each")
    np.testing.assert_allclose(parts, expected, rtol=1e-12, atol=1e-12)
    difference = expected[:, 0] - expected[:, 1]
    if chosen == "each":  # the two means refer to different images
        difference = np.full(B, np.nan)
    np.testing.assert_allclose(scores, difference, rtol=1e-12, atol=1e-12)
    assert metric.parts(OBJECTS) == ("object model", "scene model")
    assert (metric.aggregate is not None) == (chosen == "each")


@pytest.mark.slow
@given(MAPS, MASKS, RIGHT)
def test_rate_matches_literal_loop(maps, masks, right):
    metric = load_metric("saliency_idr")
    found = metric(**asked(metric, maps, masks, right, without=maps[0]))
    for sample, mask in enumerate(masks):
        more, less = (literal_inside(own[sample], mask, False) for own in (maps[1], maps[0]))
        expected = np.nan
        if right[1][sample] and mask.any():
            expected = 0.5 if abs(more - less) < 1e-12 else float(more > less)
        assert found[sample] == pytest.approx(expected, nan_ok=True)


def test_rate_of_all_images_includes_wrong_predictions():
    """Test equation 14 with three images. The region gains, loses and gains, and some predictions are wrong."""
    masks = np.zeros((3, 4, 4), bool)
    masks[:, :2, :2] = True
    less, more = np.where(masks, 1, 4).astype(np.float32), np.where(masks, 4, 1).astype(np.float32)
    scene, without = np.stack([more[0], less[1], more[2]]), np.stack([less[0], more[1], less[2]])
    right, rates = np.array([[True] * 3, [True, False, True]]), {}
    for chosen in ("right", "all"):
        metric = load_metric("saliency_idr", filter=chosen)
        inputs = asked(metric, np.stack([scene, scene]), masks, right, without=without)
        rates[chosen] = metric(**inputs).tolist()
    assert (rates["all"], rates["right"]) == ([1, 0, 1], pytest.approx([1, np.nan, 1], nan_ok=True))


@pytest.mark.parametrize(("name", "score", "parts"), [
    ("saliency_mcs", 0.5625, [0.625, 0.0625]), ("saliency_mcr", 8 / 9, [1, 1 / 9]), ("saliency_idr", 1, None),
])  # fmt: skip
def test_scores_match_docstring_examples(name, score, parts):
    metric, without = load_metric(name), np.where(QUARTER, 0, OF_SCENE)[None]
    inputs = asked(metric, np.stack([OF_OBJECT, OF_SCENE])[:, None], QUARTER[None], np.ones((2, 1), bool), without)
    found, own = metric.with_parts(**inputs)
    assert found.tolist() == pytest.approx([score])
    assert own is parts is None or own[0].tolist() == pytest.approx(parts)


def test_values_above_99th_percentile_are_clipped():
    one = np.arange(1000, dtype=np.float32).reshape(1, 25, 40)
    spiked = one.copy()
    spiked[0, -1, -5:] = 1e6
    np.testing.assert_array_equal(preprocessed(spiked), preprocessed(one))
    assert (preprocessed(one) == 1).sum() == 10
    lonely = np.zeros((1, 20, 20))
    lonely[0, 3, 3] = 5
    assert not preprocessed(lonely).any()


class Knows(nn.Module):
    """Classifier with correct logits: it looks up the class of each picture by its pixels."""

    def __init__(self, classes, known):
        super().__init__()
        self.classes, self.known = classes, known

    def forward(self, images):
        found = [self.known[key_of(image)] for image in images]
        return 5 * one_hot(found, self.classes).to(images)


def key_of(image):
    return (255 * image).round().byte().cpu().numpy().tobytes()


@pytest.fixture(scope="module")
def planted(shapes):
    """Return (rows, object model, scene model, {picture: (mask of its object, whether it shows the object)})."""
    rows = sb.load_dataset(shapes)
    plain = sb.load_classifier(Says(), mean=0, std=1, device="cpu")
    batch = plain.prepare(rows[:], columns=["image_without_object"])
    without = batch.columns["image_without_object"].values
    objects, scenes, masks = {}, {}, {}
    for index, mask in enumerate(batch.masks.numpy()):
        for shown, pictures in ((True, batch.images), (False, without)):
            key = key_of(pictures[index])
            objects[key], scenes[key], masks[key] = rows["label"][index], rows["scene"][index], (mask, shown)
    models = [sb.load_classifier(Knows(8, known), mean=0, std=1, labels=rows.features[name].names, device="cpu")
              for known, name in ((objects, "label"), (scenes, "scene"))]  # fmt: skip
    return rows, *models, masks


def test_planted_maps_get_expected_scores(planted, tmp_path):
    rows, of_objects, of_scenes, masks = planted

    def drawn(classifier, images, of_object, of_scene):
        found = [masks[key_of(image)] for image in images]
        is_scene = classifier.labels == of_scenes.labels
        return torch.from_numpy(np.stack([(of_scene if is_scene else of_object)(*one)
                                          for one in found]).astype(np.float32))  # fmt: skip

    def truth(classifier, images, target):
        """Return the object for object targets, and the background for scene targets."""
        return drawn(classifier, images, lambda mask, shown: mask, lambda mask, shown: ~mask if shown else mask)

    def same(classifier, images, target):
        """Return the object for every target."""
        return drawn(classifier, images, lambda mask, shown: mask, lambda mask, shown: mask)

    def swapped(classifier, images, target):
        """Return the object for scene targets, and zeros without the object."""
        return drawn(classifier, images, lambda mask, shown: ~mask, lambda mask, shown: mask & shown)

    done = sb.run(dataset=rows, model=of_objects, other_model=of_scenes, other_label="scene", device="cpu",
                  explainers=[truth, same, swapped, "random", "centre"], out=tmp_path / "run", progress=False,
                  metrics=["saliency_mcs", "saliency_mcs:filter=each", "saliency_mcr", "saliency_idr"])  # fmt: skip
    cells = {(cell.explainer, cell.metric_text): cell for cell in done.cells}
    by_hand = {"truth": (1, 1, 0), "same": (0, 0, 0.5), "swapped": (-1, -1, 1), "centre": (0, 0, 0.5)}
    for explainer, expected in by_hand.items():
        found = [cells[explainer, f"saliency_{name}"].value for name in ("mcs", "mcr", "idr")]
        assert found == pytest.approx(expected, abs=1e-9), explainer
    for name, chance in (("mcs", 0), ("mcr", 0), ("idr", 0.5)):
        cell = cells["random", f"saliency_{name}"]
        assert cell.low < chance < cell.high
    parts = cells["truth", "saliency_mcs"].parts
    assert {name: part.value for name, part in parts.items()} == {"object model": 1, "scene model": 0}
    each = cells["truth", "saliency_mcs:filter=each"]
    assert (each.value, each.rank) == (1, None)
    assert all(cell.n == len(rows) for cell in done.cells)
    assert done.summary["model"]["accuracy"]["value"] == done.summary["other_model"]["accuracy"]["value"] == 1
    assert {cell.metric: cell.rank for cell in done.cells if cell.explainer == "truth" and cell.rank} == {}  # few


def test_filter_each_is_difference_of_model_means(planted, tmp_path):
    """Also test that `score_samples` returns the scores of the run."""
    rows, of_objects, of_scenes, _ = planted
    wrong = [replace_known(of_objects, rows, lambda index: index % 3 == 0),
             replace_known(of_scenes, rows, lambda i: i < 9)]  # fmt: skip
    done = sb.run(dataset=rows, model=wrong[0], other_model=wrong[1], other_label="scene", explainers="edges",
                  metrics=["saliency_mcs:filter=each", "saliency_mcs", "saliency_mcr", "saliency_idr"], device="cpu",
                  out=tmp_path / "run", progress=False)  # fmt: skip
    each, both, *others = done.cells
    first, second = each.parts["object model"], each.parts["scene model"]
    assert (first.n, second.n) == (len(rows) - len(range(0, len(rows), 3)), len(rows) - 9)
    assert each.value == pytest.approx(first.value - second.value)
    assert both.n == sum(index % 3 != 0 and index >= 9 for index in range(len(rows)))
    reason = "not defined for this sample: a model does not classify the image correctly"
    assert both.left_out == {reason: len(rows) - both.n}
    batch = of_objects.prepare(rows[:], columns=["image_without_object"])
    given = {"masks": batch.masks, "other": wrong[1], "other_labels": rows["scene"]}
    for cell in (both, *others):
        more = {"columns": {"image_without_object": batch.columns["image_without_object"].values}}
        more = more if cell.metric == "saliency_idr" else {"labels": rows["label"]}
        scores = score_samples(cell.metric, batch.images, wrong[0], "edges", **given, **more)
        assert np.nanmean(scores) == pytest.approx(cell.value)


def replace_known(classifier, rows, is_wrong):
    """Make a classifier predict another class for the pictures of these rows."""
    network = classifier.model
    keys = list(network.known)  # two pictures per row: with and without the object
    known = {key: (number + is_wrong(place // 2)) % network.classes for place, (key, number) in
             enumerate((key, network.known[key]) for key in keys)}  # fmt: skip
    return sb.load_classifier(Knows(network.classes, known), mean=0, std=1, labels=classifier.labels, device="cpu")
