import numpy as np
import pytest
import torch
from pytorch_grad_cam import GradCAMPlusPlus
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch.nn import functional as F

from saliency_bench import load_explainer, targets
from saliency_bench.maps import normalise


def test_agrees_with_pytorch_grad_cam_which_scales_to_1(peer):
    ours = load_explainer("gradcam_plus_plus")(peer.classifier, peer.images, peer.target).numpy()
    with GradCAMPlusPlus(peer.model, [dict(peer.model.named_modules())[peer.layer]]) as cam:
        theirs = cam(peer.inputs, [ClassifierOutputTarget(label) for label in peer.labels.tolist()])
    np.testing.assert_allclose(normalise(ours), theirs, atol=1e-4)


@pytest.mark.parametrize("contrast", [False, True])
def test_agrees_with_a_slow_second_writing_of_its_equation(peer, contrast):
    target = targets.contrast([0, 3, 1], [1, 2, 2], 4) if contrast else peer.target
    ours = load_explainer("gradcam_plus_plus")(peer.classifier, peer.images, target)
    kept = []

    def keep(module, inputs, output):
        output.retain_grad()
        kept.append(output)

    handle = dict(peer.model.named_modules())[peer.layer].register_forward_hook(keep)
    (peer.model(peer.inputs) * target).sum().backward()
    handle.remove()
    for index in range(3):
        a, g = kept[0][index].detach().double(), kept[0].grad[index].double()
        cam = torch.zeros(a.shape[1:], dtype=torch.float64)
        for channel in range(len(a)):
            weight, total = 0.0, float(a[channel].sum())
            for slope in g[channel].flatten().tolist():
                alpha = slope**2 / (2 * slope**2 + total * slope**3 + 1e-6) if slope != 0 else 0
                weight += max(slope, 0) * alpha
            cam += weight * a[channel]
        cam = cam if contrast else cam.relu()
        expected = F.interpolate(cam[None, None], size=peer.images.shape[2:], mode="bilinear", align_corners=False)[
            0, 0
        ]
        assert (ours[index] - expected).abs().max() <= 1e-4 * expected.abs().max()
