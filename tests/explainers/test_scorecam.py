import cv2
import numpy as np
import pytest
import torch
import torchvision
from enlarging import rounding
from pytorch_grad_cam import ScoreCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from small_networks import Branched, small
from torch import nn

from saliency_bench import load_classifier, load_explainer, registry, targets
from saliency_bench.data import geometry

MEAN, STD = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)


def resnet18():
    torch.manual_seed(2)
    return torchvision.models.resnet18(weights=None, num_classes=4).eval()


NETWORKS = {"small": (small, "3", 20), "branched": (Branched, "body", 20), "resnet18": (resnet18, "layer2", 40)}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_agrees_with_pytorch_grad_cam(name):
    """Apply what pytorch-grad-cam does to our small map: it applies min-max twice and enlarges with OpenCV."""
    make, layer, height = NETWORKS[name]
    model = make().eval()
    images, labels = torch.rand(2, 3, height, height + 4), [0, 3]
    classifier = load_classifier(model, mean=MEAN, std=STD, layer=layer, device="cpu")
    with ScoreCAM(model, [dict(model.named_modules())[layer]]) as cam:
        theirs = cam((images - classifier.mean) / classifier.std, [ClassifierOutputTarget(label) for label in labels])
    small_maps = []
    with pytest.MonkeyPatch.context() as patch:
        module = registry.load("explainers", "scorecam")
        patch.setattr(module, "enlarge", lambda cam, images: small_maps.append(cam) or geometry.enlarge(cam, images))
        load_explainer("scorecam", align_corners=True)(classifier, images, targets.one_hot(labels, 4))
    for ours, expected in zip(small_maps[0].numpy(), theirs, strict=True):
        ours = (ours - ours.min()) / (ours.max() - ours.min())
        ours = cv2.resize(ours, (height + 4, height))
        ours = (ours - ours.min()) / (ours.max() - ours.min())
        assert np.abs(ours - expected).max() <= 1e-4


@pytest.mark.parametrize("on", ["logit", "probability"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_agrees_with_a_slow_second_writing_of_its_equation(on, align_corners):
    model = small()
    images, target = torch.rand(2, 3, 10, 14), targets.contrast([0, 2], [1, 3], 4)
    classifier = load_classifier(model, mean=MEAN, std=STD, device="cpu")
    ours = load_explainer("scorecam", layer="2", on=on, align_corners=align_corners, batch_size=5)(
        classifier, images, target
    )
    grey = torch.tensor(MEAN).view(3, 1, 1)
    for index, image in enumerate(images):
        with torch.no_grad():
            maps = model[:3]((image[None] - classifier.mean) / classifier.std)[0]  # signed values before the ReLU
            scores = []
            for channel in maps:
                mask = enlarged(channel.numpy(), 10, 14, align_corners)
                mask = torch.from_numpy((mask - mask.min()) / (mask.max() - mask.min())).float()
                logits = classifier((grey + mask * (image - grey))[None])[0].double()
                outputs = logits if on == "logit" else logits.softmax(0)
                scores.append(float((outputs * target[index]).sum()))
        weights = np.exp(scores) / np.exp(scores).sum()
        total = sum(weight * channel.numpy() for weight, channel in zip(weights, maps, strict=True))
        allowed = 1e-6 + rounding(total[None])
        np.testing.assert_allclose(ours[index].numpy(), enlarged(total, 10, 14, False), rtol=1e-4, atol=allowed)


def enlarged(values, height, width, align_corners):
    """Return a map enlarged bilinearly, position by position."""
    rows, columns = values.shape

    def places(length, cells):
        for index in range(length):
            if align_corners:
                place = index * (cells - 1) / (length - 1)
            else:
                place = min(max((index + 0.5) * cells / length - 0.5, 0), cells - 1)
            yield int(place), min(int(place) + 1, cells - 1), place - int(place)

    out = np.zeros((height, width))
    for y, (top, below, v) in enumerate(places(height, rows)):
        for x, (left, right, u) in enumerate(places(width, columns)):
            upper = (1 - u) * values[top, left] + u * values[top, right]
            lower = (1 - u) * values[below, left] + u * values[below, right]
            out[y, x] = (1 - v) * upper + v * lower
    return out


def test_a_flat_channel_shows_nothing_and_a_contrast_with_itself_is_the_mean_of_the_channels():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(4 * 36, 2))
    model[0].weight.data[0] = 0
    classifier = load_classifier(model, layer="0", device="cpu", mean=0, std=1)
    images = torch.rand(2, 3, 6, 6)
    maps = load_explainer("scorecam")(classifier, images, targets.contrast([1], [1], 2))
    with torch.no_grad():
        torch.testing.assert_close(maps, model[0](images).mean(dim=1).relu())
