import captum.attr
import numpy as np
import pytest
import torch
from small_networks import Branched, small

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.compute.scoring.perturbation import blurred

MEAN, STD = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)


def theirs(model, images, labels, window, stride, baselines=0):
    normalised = (images - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    maps = captum.attr.Occlusion(model).attribute(normalised, target=labels, sliding_window_shapes=(3, window, window),
                                                  strides=(3, stride, stride), baselines=baselines)  # fmt: skip
    return maps[:, 0]  # the same in every channel


@pytest.mark.parametrize(("window", "stride"), [(6, 4), (5, 5), (14, 3)])
@pytest.mark.parametrize("make", [small, Branched])
def test_agrees_with_captum(make, window, stride):
    model = make().eval()
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


def test_a_window_is_an_eighth_of_the_shorter_side_half_a_window_apart():
    classifier = load_classifier(small(), device="cpu", mean=0, std=1)
    images, target = torch.rand(1, 3, 32, 48), targets.one_hot([1], 4)
    default = load_explainer("occlusion")(classifier, images, target)
    assert torch.equal(default, load_explainer("occlusion", window=4, stride=2)(classifier, images, target))
