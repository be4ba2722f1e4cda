import pytest
import torch

from saliency_bench import load_explainer, targets
from saliency_bench.utils.seeds import normal, seed_of

# In a deep network, some ReLU input is so close to 0 that the last bits of another batch size change its sign.
KINKS = pytest.mark.parametrize("peer", ["small", "branched"], indirect=True)


@KINKS
@pytest.mark.parametrize("reduction", ["max", "sum"])
def test_agrees_with_a_slow_second_writing_of_its_equation(peer, reduction, error_of, stepped_up):
    target, seeds, samples, sigma = targets.contrast([0, 3, 1], [1, 2, 2], 4), [5, 6, 7], 5, 0.2
    explainer = load_explainer("smoothgrad", samples=samples, sigma=sigma, reduction=reduction)
    ours = explainer.made(peer.classifier, peer.images, target, seeds=seeds)
    expected = []
    for index, seed in enumerate(seeds):
        clean, gradients = peer.inputs[index], []
        for copy in range(samples):
            noise = torch.from_numpy(normal(seed_of(seed, "smoothgrad", copy), clean.numel())).view_as(clean)
            noisy = (clean + sigma * (clean.max() - clean.min()) * noise).requires_grad_()
            (peer.model(noisy[None])[0] * target[index]).sum().backward()
            gradients.append(noisy.grad / peer.classifier.std[0])  # with respect to the image
        whole, even, odd = (mean.abs().amax(dim=0) if reduction == "max" else mean.sum(dim=0)
                            for mean in (sum(gradients) / samples, sum(gradients[::2]) / 3,
                                         sum(gradients[1::2]) / 2))  # fmt: skip
        expected.append(whole)
        assert ours.reliability[index] == pytest.approx(stepped_up(even, odd), abs=1e-3)
    assert error_of(ours.maps, torch.stack(expected)) <= 1e-4
    assert ours.draws == [samples] * len(ours.maps)
