import captum.attr
import torch
from torch import nn

from saliency_bench import load_classifier, load_explainer, targets


def test_agrees_with_captum(peer, error_of):
    ours = load_explainer("input_x_gradient")(peer.classifier, peer.images, peer.target)
    theirs = captum.attr.InputXGradient(peer.model).attribute(peer.inputs, target=peer.labels).sum(dim=1)
    assert error_of(ours, theirs) <= 1e-4


def test_on_a_linear_network_each_pixel_has_its_term_of_the_score():
    torch.manual_seed(0)
    linear = nn.Linear(3 * 4 * 5, 3, bias=False)
    images, mean, std = torch.rand(2, 3, 4, 5), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    classifier = load_classifier(nn.Sequential(nn.Flatten(), linear), mean=mean, std=std, device="cpu")
    maps = load_explainer("input_x_gradient")(classifier, images, targets.contrast([0, 1], [2, 0], 3))
    weights = linear.weight.detach().view(3, 3, 4, 5)
    for index, (a, b) in enumerate([(0, 2), (1, 0)]):
        for y in range(4):
            for x in range(5):
                terms = [
                    (weights[a, c, y, x] - weights[b, c, y, x]) * (images[index, c, y, x] - mean[c]) / std[c]
                    for c in range(3)
                ]
                torch.testing.assert_close(maps[index, y, x], sum(terms), rtol=1e-4, atol=1e-6)


def test_without_biases_a_relu_network_is_shared_out_whole():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(8 * 4 * 3, 3, bias=False),
    )  # fmt: skip
    classifier, images = load_classifier(model, mean=(0.4,) * 3, std=(0.2,) * 3, device="cpu"), torch.rand(4, 3, 12, 10)
    target = targets.class_vs_group(1, [0, 1, 2], 3)
    maps = load_explainer("input_x_gradient")(classifier, images, target)
    with torch.no_grad():
        torch.testing.assert_close(
            maps.sum(dim=(1, 2)), targets.score(classifier(images), target), rtol=1e-4, atol=1e-6
        )
