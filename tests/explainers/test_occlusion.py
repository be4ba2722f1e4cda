import captum.attr
import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.compute.scoring.perturbation import blurred
from saliency_bench.errors import UserError

MEAN, STD = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)


def small():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 4),
    ).eval()  # fmt: skip


class Branched(nn.Module):
    """A skip connection and functional ReLUs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.stem, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 4, 4)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(x + self.body(x))
        return self.head(F.adaptive_avg_pool2d(x, 2).flatten(1))


def theirs(model, images, labels, window, stride, baselines=0):
    normalised = (images - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    maps = captum.attr.Occlusion(model).attribute(
        normalised,
        target=labels,
        sliding_window_shapes=(3, window, window),
        strides=(3, stride, stride),
        baselines=baselines,
    )
    return maps[:, 0]  # the same in every channel


@pytest.mark.parametrize(("window", "stride"), [(6, 4), (5, 5), (14, 3)])
@pytest.mark.parametrize("make", [small, Branched])
def test_agrees_with_captum(make, window, stride):
    model = make()
    images, labels = torch.rand(2, 3, 14, 18), torch.tensor([0, 3])
    classifier = load_classifier(model, mean=MEAN, std=STD, device="cpu")
    ours = load_explainer("occlusion", window=window, stride=stride)(classifier, images, targets.one_hot(labels, 4))
    expected = theirs(model, images, labels, window, stride)
    assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("baseline", ["black", "white", "blur"])
def test_agrees_with_captum_on_other_fills(baseline):
    model, images, labels = small(), torch.rand(2, 3, 14, 18), torch.tensor([0, 3])
    classifier = load_classifier(model, mean=MEAN, std=STD, device="cpu")
    explainer = load_explainer("occlusion", window=6, stride=4, baseline=baseline)
    ours = explainer(classifier, images, targets.one_hot(labels, 4))
    filled = {"black": images * 0, "white": images * 0 + 1, "blur": blurred(classifier, images)}[baseline]
    expected = theirs(model, images, labels, 6, 4, (filled - classifier.mean) / classifier.std)
    assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert not torch.allclose(ours, theirs(model, images, labels, 6, 4))


def test_agrees_with_captum_on_resnet18():
    torch.manual_seed(3)
    model = torchvision.models.resnet18(weights=None, num_classes=10).eval()
    images, labels = torch.rand(2, 3, 48, 48), torch.tensor([0, 3])
    classifier = load_classifier(model, mean=MEAN, std=STD, device="cpu")
    ours = load_explainer("occlusion", window=24, stride=16)(classifier, images, targets.one_hot(labels, 10))
    expected = theirs(model, images, labels, 24, 16)
    assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("on", ["logit", "probability"])
@pytest.mark.parametrize(("height", "width", "window", "stride"), [(9, 12, 4, 3), (8, 8, 8, 5), (7, 10, 2, 2)])
def test_agrees_with_a_slow_second_writing_of_its_equation(height, width, window, stride, on):
    classifier = load_classifier(small(), mean=MEAN, std=STD, device="cpu")
    images, target = torch.rand(2, 3, height, width), targets.contrast([0, 2], [1, 3], 4)
    options = {"window": window, "stride": stride, "on": on}
    ours = load_explainer("occlusion", **options, batch_size=7)(classifier, images, target)

    def score(image, weights):
        with torch.no_grad():
            logits = classifier(image[None])[0].double()
        return float(((logits if on == "logit" else logits.softmax(0)) * weights).sum())

    for index, image in enumerate(images):
        total, count = np.zeros((height, width)), np.zeros((height, width))
        top = 0
        while True:
            left = 0
            while True:
                covered = image.clone()
                covered[:, top : top + window, left : left + window] = torch.tensor(MEAN).view(3, 1, 1)
                drop = score(image, target[index]) - score(covered, target[index])
                total[top : top + window, left : left + window] += drop
                count[top : top + window, left : left + window] += 1
                if left + window >= width:
                    break
                left += stride
            if top + window >= height:
                break
            top += stride
        np.testing.assert_allclose(ours[index].numpy(), total / count, rtol=1e-4, atol=1e-6)


def test_a_reader_of_two_pixels_worked_out_by_hand():
    """logit 0 = 3 red(0, 0) + 1 red(0, 3); windows of 2, stride 2, so each pixel has one, on a 2 x 4 image of ones."""
    head = nn.Linear(24, 2, bias=False)
    nn.init.zeros_(head.weight)
    head.weight.data[0, 0], head.weight.data[0, 3] = 3.0, 1.0
    classifier = load_classifier(nn.Sequential(nn.Flatten(), head), device="cpu", mean=0, std=1)
    maps = load_explainer("occlusion", window=2, stride=2)(classifier, torch.ones(1, 3, 2, 4), targets.one_hot([0], 2))
    assert maps[0].tolist() == [[3, 3, 1, 1], [3, 3, 1, 1]]


@pytest.mark.parametrize(("window", "stride"), [(8, 4), (5, 2), (6, 6)])
def test_a_positive_linear_reader_of_one_patch(window, stride):
    """Zero beyond the window's reach, largest inside: every window over a pixel of the patch covers part of it."""
    head = nn.Linear(3 * 32 * 40, 2, bias=False)
    weight = torch.zeros(2, 3, 32, 40)
    weight[0, :, 12:18, 20:26] = torch.rand(3, 6, 6) + 0.1
    head.weight.data = weight.flatten(1)
    classifier = load_classifier(nn.Sequential(nn.Flatten(), head), device="cpu", mean=0, std=1)
    (values,) = load_explainer("occlusion", window=window, stride=stride)(
        classifier, torch.rand(1, 3, 32, 40) + 0.1, targets.one_hot([0], 2)
    )
    far = torch.ones(32, 40, dtype=torch.bool)
    far[12 - window + 1 : 18 + window - 1, 20 - window + 1 : 26 + window - 1] = False
    inside = torch.zeros_like(far)
    inside[12:18, 20:26] = True
    assert values[far].abs().max() <= 1e-5 * values.max()
    assert values[inside].min() > 0
    assert values[inside].max() == values.max()


def test_a_window_is_an_eighth_of_the_shorter_side_half_a_window_apart():
    classifier = load_classifier(small(), device="cpu", mean=0, std=1)
    images, target = torch.rand(1, 3, 32, 48), targets.one_hot([1], 4)
    default = load_explainer("occlusion")(classifier, images, target)
    assert torch.equal(default, load_explainer("occlusion", window=4, stride=2)(classifier, images, target))


def test_passes_are_one_for_each_window_and_one_for_the_image():
    classifier = load_classifier(small(), device="cpu", mean=0, std=1)
    load_explainer("occlusion", window=8, stride=4)(classifier, torch.rand(3, 3, 16, 22), targets.one_hot([0], 4))
    assert classifier.passes == 3 * (3 * 5 + 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 0}, "window.*1"),
        ({"stride": 0}, "stride.*1"),
        ({"batch_size": 0}, "batch_size.*1"),
        ({"window": 4, "stride": 5}, "never be covered"),
        ({"stride": 3}, "never be covered"),
        ({"window": 9}, "larger than the image"),
    ],
)
def test_bad_options(options, words):
    classifier = load_classifier(small(), device="cpu", mean=0, std=1)
    with pytest.raises(UserError, match=words):
        load_explainer("occlusion", **options)(classifier, torch.rand(1, 3, 8, 12), targets.one_hot([0], 4))
