"""Test passes with many pictures per image: what they contain, and that results depend on nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.compute.classifiers import passes, windows
from saliency_bench.compute.classifiers.passes import PIXELS_PER_PASS, forward_many, in_passes, plan, scores_of
from saliency_bench.utils.untouched import untouched

CPU = torch.device("cpu")


class Network(nn.Module):
    """Network that records the sizes of its passes; passes above `room` do not fit in memory."""

    def __init__(self, room=10**9):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4),
        )  # fmt: skip
        self.room, self.sizes = room, []

    def forward(self, x):
        if len(x) > self.room:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB")
        self.sizes.append(len(x))
        return self.layers(x)

    def __deepcopy__(self, memo):
        raise RuntimeError("so that every pass is seen here")


def classifier_of(model):
    return load_classifier(model, mean=(0.5,) * 3, std=(0.2,) * 3, device="cpu").eval()


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 30), st.integers(1, 5))
def test_plan_covers_every_picture_once_in_equal_passes(images, count, size, most):
    found = list(plan(images, count, size, CPU, most))
    counted = []
    for one in found:
        samples = one.samples.expand(len(one.pictures))
        assert set(samples.tolist()) == set(one.images)
        counted += list(zip(samples.tolist(), one.pictures.tolist(), strict=True))[: one.count]
        assert len(one.pictures) <= size
        assert count == 1 or len(one.images) <= most
    assert counted == [(sample, picture) for sample in range(images) for picture in range(count)]
    assert len({len(one.pictures) for one in found}) == 1
    if count > 1:
        alone, together = ([one.pictures.tolist() for one in plan(n, count, size, CPU)] for n in (1, images))
        assert together == images * alone


def test_plan_splits_common_counts_as_defined():
    """Check plans for masks, counts, windows, steps and exposures, with 256 and with 10 pictures per pass."""
    for count, size, pieces, each in ((4000, 256, 16, 250), (225, 256, 1, 225), (226, 256, 1, 226), (50, 10, 5, 10),
                                      (225, 10, 23, 10)):  # fmt: skip
        found = [len(one.pictures) for one in plan(1, count, size, CPU)]
        assert found == [each] * pieces
    assert [len(one.pictures) for one in plan(16, 9, 256, CPU, 8)] == [72, 72]
    assert [len(one.pictures) for one in plan(16, 50, 256, CPU, 8)] == [200] * 4  # 4 of the 5 images that fit


def test_pass_size_follows_fixed_number_of_pixels():
    assert passes.pictures_per_pass(torch.zeros(2, 3, 224, 224)) == PIXELS_PER_PASS["cpu"] // 224**2 == 10
    assert PIXELS_PER_PASS["cuda"] // 224**2 == 256
    assert passes.pictures_per_pass(torch.zeros(1, 3, 4096, 4096)) == 1
    assert passes.pictures_per_pass(torch.zeros(1, 3, 4096, 4096), 3) == 3


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 12, 100, None])
def test_scores_of_returns_scores_in_picture_order(batch_size, most, monkeypatch):
    monkeypatch.setitem(passes.TOGETHER, "cpu", most)
    classifier = classifier_of(Network())
    images, target = torch.rand(3, 3, 12, 10), targets.contrast([0, 1, 2], [1, 2, 3], 4)

    def darker(samples, pictures):
        return images[samples] * (pictures / 5).view(-1, 1, 1, 1)

    with untouched(classifier):
        scores = scores_of(classifier, images, target, 5, darker, "logit", batch_size)
    assert classifier.passes == 15  # padding is not counted
    with torch.no_grad():
        expected = torch.stack([targets.score(classifier(images * (i / 5)), target) for i in range(5)], dim=1)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


EXPLAINERS = [
    "occlusion:window=4", "rise:masks=25", "lime:samples=23", "integrated_gradients:steps=7", "smoothgrad:samples=7",
    "gradient_shap:samples=7",
]  # fmt: skip


@pytest.mark.parametrize(("name", "smallest"), [(name, windows.SMALLEST) for name in EXPLAINERS] + [(EXPLAINERS[0], 0)])
def test_maps_do_not_depend_on_batch_order_or_layout(name, smallest, monkeypatch):
    monkeypatch.setattr(windows, "SMALLEST", smallest)
    monkeypatch.setattr(windows, "FEWEST", smallest)
    model = Network() if smallest else Network().layers  # the network can be copied
    classifier, images = classifier_of(model), torch.rand(5, 3, 24, 20)
    target, explainer, seeds = targets.one_hot([0, 1, 2, 3, 0], 4), load_explainer(name, batch_size=8), [5, 6, 7, 8, 9]
    whole = explainer(classifier, images, target, seeds=seeds)
    order = [3, 0, 4]
    part = explainer(classifier, images[order], target[order], seeds=[seeds[i] for i in order])
    assert torch.equal(part, whole[order])
    other = explainer(classifier, images.contiguous(memory_format=torch.channels_last), target, seeds=seeds)
    assert torch.equal(other, whole)


def test_out_of_memory_pass_is_halved_and_counted():
    classifier, images = classifier_of(Network(room=5)), torch.rand(2, 3, 12, 10)
    target = targets.one_hot([0, 1], 4)

    def draw(samples, pictures):
        return images[samples] * (pictures / 20).view(-1, 1, 1, 1)

    with untouched(classifier):
        halved = scores_of(classifier, images, target, 20, draw, "logit", 16)
        assert (classifier.halved, classifier.passes) == (2, 40)
        asked = scores_of(classifier, images, target, 20, draw, "logit", 4)
    assert torch.equal(halved, asked)


def test_out_of_memory_batch_of_single_pictures_is_halved():
    images = torch.rand(7, 3, 8, 8)
    classifier, free = classifier_of(Network(room=2)), classifier_of(Network())
    found, expected = (
        forward_many(one, images, 1, lambda samples, pictures: images[samples], lambda logits, samples: logits)
        for one in (classifier, free)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert (classifier.halved, classifier.passes) == (2, 7)
    assert (free.halved, free.model.sizes) == (0, [7])


def test_single_picture_memory_and_other_errors_are_raised():
    classifier, images = classifier_of(Network(room=0)), torch.rand(2, 3, 12, 10)

    def forward(count):
        def draw(samples, pictures):
            return images[samples].expand(len(pictures), -1, -1, -1)

        return forward_many(classifier, images, count, draw, lambda logits, samples: logits)

    for count in (1, 3):
        with pytest.raises(RuntimeError, match="out of memory"):
            forward(count)
    with pytest.raises(ZeroDivisionError):
        in_passes(classifier, images, 3, None, lambda found: 1 / 0)
