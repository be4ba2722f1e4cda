import pytest
import torch

from saliency_bench import load_explainer, targets
from saliency_bench.errors import UserError
from saliency_bench.utils.seeds import normal, seed_of

# A deep network has a ReLU so close to its kink that the last bit of another batch size turns it.
KINKS = pytest.mark.parametrize("peer", ["small", "branched"], indirect=True)


@KINKS
@pytest.mark.parametrize("reduction", ["max", "sum"])
def test_agrees_with_a_slow_second_writing_of_its_equation(peer, reduction, error_of, stepped_up):
    target, seeds, samples, sigma = targets.contrast([0, 3, 1], [1, 2, 2], 4), [5, 6, 7], 5, 0.2
    explainer = load_explainer("smoothgrad", samples=samples, sigma=sigma, reduction=reduction)
    ours = explainer.made(peer.classifier, peer.images, target, seeds=seeds)
    expected = []
    for index, seed in enumerate(seeds):
        clean = peer.inputs[index]
        gradients = []
        for copy in range(samples):
            noise = torch.from_numpy(normal(seed_of(seed, "smoothgrad", copy), clean.numel())).view_as(clean)
            noisy = (clean + sigma * (clean.max() - clean.min()) * noise).requires_grad_()
            (peer.model(noisy[None])[0] * target[index]).sum().backward()
            gradients.append(noisy.grad / peer.classifier.std[0])  # by the image, not by the normalised one
        whole, even, odd = (
            mean.abs().amax(dim=0) if reduction == "max" else mean.sum(dim=0)
            for mean in (sum(gradients) / samples, sum(gradients[::2]) / 3, sum(gradients[1::2]) / 2)
        )
        expected.append(whole)
        assert ours.reliability[index] == pytest.approx(stepped_up(even, odd), abs=1e-3)
    assert error_of(ours.maps, torch.stack(expected)) <= 1e-4
    assert ours.draws == samples


def test_without_noise_it_is_the_gradient(peer, error_of):
    ours = load_explainer("smoothgrad", sigma=0.0, samples=4)(peer.classifier, peer.images, peer.target)
    assert error_of(ours, load_explainer("gradient")(peer.classifier, peer.images, peer.target)) <= 1e-5


@KINKS
def test_noise_differs_between_seeds_and_not_between_batches(peer):
    explainer = load_explainer("smoothgrad", samples=2)
    twice = peer.images[:1].expand(2, -1, -1, -1)
    maps = explainer(peer.classifier, twice, peer.target[:1], seeds=[1, 2])
    assert not torch.allclose(maps[0], maps[1], rtol=1e-2)
    alone = explainer(peer.classifier, peer.images[:1], peer.target[:1], seeds=[2])
    torch.testing.assert_close(maps[1], alone[0], rtol=1e-4, atol=1e-5 * float(alone.max()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, r"samples.*smoothgrad.*1"),
        ({"sigma": -0.1}, "sigma.*0"),
        ({"reduction": "mean"}, "'mean'"),
        ({"batch_size": 0}, r"batch_size.*smoothgrad.*1"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(UserError, match=words):
        load_explainer("smoothgrad", **options)
