"""Test saliency_ccs, saliency_cgc, saliency_pgs and saliency_cgs by hand and by loops. Test costs and invariances."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from saliency_bench.bound_explainer import as_explainer
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.maps import descending

NAMES = ["saliency_ccs", "saliency_cgc", "saliency_pgs", "saliency_cgs"]
SIZE, K = 6, 6
GROUPS = ClassGroups("drawn", ((0, 1, 2), (3, 4), (2, 3, 4, 5)))


class Halves(nn.Module):
    """Network with p_A = u / 2, p_B = 3 l / 10 for the brightness u and l of the halves; C : D is 3 : 1."""

    def forward(self, images):
        upper, lower = images[:, :, :2].mean(dim=(1, 2, 3)), images[:, :, 2:].mean(dim=(1, 2, 3))
        rest = 1 - upper / 2 - 0.3 * lower
        return torch.stack([upper / 2, 0.3 * lower, 0.75 * rest, 0.25 * rest], dim=1).clamp(min=1e-12).log()


def halves(classifier, images, target):
    """Return maps with twice the target's weight of A in the upper half and its weight of B in the lower half."""
    maps = torch.zeros(len(images), 4, 4)
    maps[:, :2], maps[:, 2:] = 2 * target[:, 0, None, None], target[:, 1, None, None]
    return maps


class Mixture(nn.Module):
    """Network with additive probabilities: each class has its own pixels, and all classes share the remainder."""

    def __init__(self, seed=0):
        super().__init__()
        weights = np.random.default_rng(seed).dirichlet(np.full(K * SIZE * SIZE, 0.3))
        self.register_buffer("weights", torch.from_numpy(weights).view(K, SIZE, SIZE))

    def forward(self, images):
        p = torch.einsum("bhw,khw->bk", images.double().mean(dim=1), self.weights)
        return (p + (1 - p.sum(dim=1, keepdim=True)) / K).log().float()

    def picture(self, k):
        """Return a picture (3, H, W) of class k, bright at the class's most important pixels."""
        return torch.where(self.weights.argmax(dim=0) == k, 1.0, 0.02).expand(3, -1, -1)


def truth(classifier, images, target):
    """Return the contribution of each pixel to the target's probability."""
    weights = classifier.model.weights - classifier.model.weights.mean(dim=0)
    return torch.einsum("bhw,khw,bk->bhw", images.double().mean(dim=1), weights, target.double()).float()


def scored(name, classifier, images, explainer, groups=GROUPS, seeds=None, activation="softmax", **options):
    classifier = load_classifier(classifier, device="cpu", mean=0, std=1, activation=activation)
    with torch.no_grad():
        logits = classifier(images)
    seeds = list(range(len(images))) if seeds is None else seeds
    explain = MapProvider(as_explainer(explainer), classifier, seeds)
    return load_metric(name, **options)(images, classifier, logits, groups, explain, seeds)


@pytest.mark.parametrize(("name", "value"), zip(NAMES, [0.3375, 0.16875, 0.2296875, 0.2296875], strict=True))
def test_scores_match_hand_computed_example(name, value):
    groups = ClassGroups("two", ((0, 1), (2, 3)))
    assert scored(name, Halves(), torch.ones(2, 3, 4, 4), halves, groups) == pytest.approx([value] * 2, abs=1e-6)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_score_direction_follows_options(name, published):
    """Test the published options: all metrics except PGS score the true evidence lower than its negation."""
    metric = load_metric(name, published=published)
    assert metric.higher_is_better == (not published or name == "saliency_pgs")
    module, groups = Mixture(), ClassGroups("two", ((0, 1), (2, 3)))

    def evidence(classifier, images, target):
        return truth(classifier, images, target.clamp(min=0))

    images = torch.stack([module.picture(k) for k in range(4)])
    good = scored(name, module, images, evidence, groups, published=published)
    bad = scored(name, module, images, lambda *given: -evidence(*given), groups, published=published)
    assert (good > bad if metric.higher_is_better else good < bad).all()


def literal(name, classifier, image, explainer, groups, published, activation):
    """Score one sample literally by the equations, drawing the pictures of a top share pixel by pixel."""

    def f(picture):
        logits = classifier(picture[None]).double()
        return (logits.sigmoid() if activation == "sigmoid" else logits.softmax(dim=1))[0].tolist()

    whole = f(image)
    a = whole.index(max(whole))
    own = min((members for members in groups.members if a in members), key=len, default=None)
    if own is None:
        return np.nan
    others = [k for k in own if k != a]
    apart = [members for members in groups.members if not set(members) & set(own)]
    weights = np.zeros(len(whole))
    if name in ("saliency_ccs", "saliency_cgc") and not others:
        return np.nan
    if name == "saliency_ccs":
        b = max(others, key=lambda k: whole[k])
        weights[a], weights[b] = (1, -1) if published else (-1, 1)
    elif name == "saliency_cgc":
        weights[a], weights[others] = 1, -1
    elif name == "saliency_pgs":
        weights[list(own)] = 1
    elif not apart:
        return np.nan
    else:
        rival = max(apart, key=lambda members: sum(whole[k] for k in members) / len(members))
        weights[list(own)], weights[list(rival)] = 1, -1
    ranked = descending(explainer(classifier, image[None], torch.tensor(weights)[None].float()).numpy())[0]
    values = []
    for tenth in range(1, 10):
        picture, pixels = image.clone(), SIZE * SIZE
        for pixel in ranked[: int(np.linspace(0.1, 0.9, 9)[tenth - 1] * pixels) if published else round(tenth * 3.6)]:
            picture[:, pixel // SIZE, pixel % SIZE] = 0
        x = f(picture)
        if name == "saliency_ccs":
            values.append(x[a] - x[b])
        elif name == "saliency_cgc":
            risen, fallen = np.mean([x[k] - whole[k] for k in others]), whole[a] - x[a]
            values.append((risen - fallen) / 2 if published else (risen + fallen) / 2)
        elif name == "saliency_pgs":
            values.append(np.mean([whole[k] - x[k] for k in own]))
        else:
            fallen, risen = np.mean([whole[k] - x[k] for k in own]), np.mean([x[j] - whole[j] for j in rival])
            values.append((risen - fallen) / 2 if published else (fallen + risen) / 2)
    total = sum((left + right) / 2 * 0.1 for left, right in pairwise(values))
    return total if published else total / 0.8


@pytest.mark.parametrize(("published", "activation"), [(False, "softmax"), (True, "softmax"), (False, "sigmoid")])
@pytest.mark.parametrize("name", NAMES)
def test_scores_match_literal_loop(name, published, activation):
    module = Mixture(seed=2)
    images = torch.cat([torch.stack([module.picture(k) for k in range(K)]), torch.rand(4, 3, SIZE, SIZE)])
    classifier = load_classifier(module, device="cpu", mean=0, std=1)
    expected = [literal(name, classifier, image, truth, GROUPS, published, activation) for image in images]
    scores = scored(name, module, images, truth, published=published, activation=activation)
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    assert classifier(images)[:K].argmax(dim=1).tolist() == list(range(K))
    assert np.isnan(scores).any() == (name == "saliency_cgs")  # classes whose group overlaps with every other group


@pytest.mark.parametrize("name", NAMES)
def test_defined_samples_cost_one_map_and_nine_passes(name):
    asked = []

    def watching(classifier, images, target):
        asked.append(target.clone())
        return truth(classifier, images, target)

    module, lonely = Mixture(), ClassGroups("lonely", ((0, 1), (2, 3)))
    images = torch.stack([module.picture(k) for k in (1, 4, 2)])
    classifier = load_classifier(module, device="cpu", mean=0, std=1)
    logits = classifier(images)
    assert logits.argmax(dim=1).tolist() == [1, 4, 2]  # the second class is in no group
    explain = MapProvider(as_explainer(watching), classifier, [0, 1, 2])
    before = classifier.passes
    scores = load_metric(name)(images, classifier, logits, lonely, explain, [0, 1, 2])
    assert np.isnan(scores).tolist() == [False, True, False]
    assert classifier.passes - before == 9 * 2
    assert load_metric(name).declaration.passes == (9, 1)
    row = {
        "saliency_ccs": [[1, -1, 0, 0, 0, 0], [0, 0, -1, 1, 0, 0]],
        "saliency_cgc": [[-1, 1, 0, 0, 0, 0], [0, 0, 1, -1, 0, 0]],
        "saliency_pgs": [[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]],
        "saliency_cgs": [[1, 1, -1, -1, 0, 0], [-1, -1, 1, 1, 0, 0]],
    }[name]
    assert [one.tolist() for one in asked] == [row]  # one batch


@pytest.mark.parametrize(("groups", "defined"), [
    (ClassGroups("alone", ((1,), (2, 3))), ["saliency_pgs", "saliency_cgs"]),
    (ClassGroups("one", ((0, 1),)), ["saliency_ccs", "saliency_cgc", "saliency_pgs"]),
    (ClassGroups("nested", ((0, 1), (0, 1, 2))), ["saliency_ccs", "saliency_cgc", "saliency_pgs"]),
    (ClassGroups("none", ((2, 3),)), []),
])  # fmt: skip
def test_undefined_scores_are_nan(groups, defined):
    module = Mixture()
    images = module.picture(1)[None]
    assert [name for name in NAMES if not np.isnan(scored(name, module, images, truth, groups)).any()] == defined


@pytest.mark.parametrize("reference", ["blur", "mean", "noise", "inpaint", "farthest", "gaussian"])
def test_other_references_match_curves(reference):
    module, images = Mixture(), torch.rand(2, 3, SIZE, SIZE)
    scores = scored("saliency_pgs", module, images, truth, seeds=[8, 9], reference=reference)
    classifier = load_classifier(module, device="cpu", mean=0, std=1)
    p = classifier(images).double().softmax(dim=1)
    members = [list(GROUPS.group_of(int(one.argmax()))) for one in p.detach()]
    target = torch.zeros(2, K)
    for index, held in enumerate(members):
        target[index, held] = 1
    curves = Curves(classifier, images, target, truth(classifier, images, target), [8, 9])
    along = curves.probabilities("rest", reference, [4, 7, 11, 14, 18, 22, 25, 29, 32]).astype(float)
    for index, held in enumerate(members):
        values = (p[index].detach().numpy() - along[index])[:, held].mean(axis=1)
        assert scores[index] == pytest.approx((values.sum() - (values[0] + values[-1]) / 2) / 8)
