import numpy as np
import pytest
import torch
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets

IMAGES = torch.rand(3, 3, 8, 12, generator=torch.Generator().manual_seed(1))
TARGETS = {
    "class": targets.one_hot([0, 1, 2], 3),
    "contrast": targets.contrast([0, 1, 2], [1, 2, 0], 3),
    "group": torch.cat([targets.group([a, b], 3) for a, b in ((0, 1), (0, 2), (1, 2))]),
}


def enlarged(grid):
    return F.interpolate(torch.tensor(grid)[:, None].float(), size=(8, 12), mode="bilinear", align_corners=False)[:, 0]


def literal(attention, gradient, before, reading):
    """(patches,): of one image, (heads, T, T) each, for the tokens `reading`, element by element."""
    heads, tokens, _ = attention.shape
    cam = np.zeros(tokens - before)
    for token in reading:
        for head in range(heads):
            weight = sum(float(gradient[head, token, j]) for j in range(before, tokens)) / (tokens - before)
            for patch in range(tokens - before):
                cam[patch] += weight * float(attention[head, token, before + patch]) / heads / len(reading)
    return cam


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("form", TARGETS)
def test_it_is_the_weighted_attention_of_the_last_block(form, before, tiny, attended):
    model = tiny(before=before, seed=5)
    ours = load_explainer("gradcam_vit")(load_classifier(model, device="cpu", mean=0, std=1), IMAGES, TARGETS[form])
    attentions, gradients = attended(model, IMAGES, TARGETS[form])
    reading = [0] if before else range(6)
    cams = np.stack([literal(attentions[-1][i], gradients[-1][i], before, reading) for i in range(3)])
    expected = cams if form == "contrast" else cams.clip(min=0)
    assert np.abs(expected).max() > 0
    torch.testing.assert_close(ours, enlarged(expected.reshape(3, 2, 3)), rtol=1e-4, atol=1e-6)


def test_a_weighted_contrast_takes_the_gradient_of_the_probability_and_cuts_nothing(tiny, attended):
    model = tiny(before=1, seed=5)
    classifier = load_classifier(model, device="cpu", mean=0, std=1)
    ours = load_explainer("gradcam_vit", on="weighted")(classifier, IMAGES, TARGETS["class"])
    with torch.no_grad():
        p = model(IMAGES).double().softmax(1)
    weights = torch.stack([p[i, i] * (torch.eye(3).double()[i] - p[i]) for i in range(3)]).float()
    attentions, gradients = attended(model, IMAGES, weights)
    expected = np.stack([literal(attentions[-1][i], gradients[-1][i], 1, [0]) for i in range(3)])
    assert (expected < 0).any()
    tolerance = 1e-4 * np.abs(expected).max()
    torch.testing.assert_close(ours, enlarged(expected.reshape(3, 2, 3)), rtol=1e-4, atol=tolerance)


def test_a_contrast_keeps_what_speaks_against(tiny):
    classifier = load_classifier(tiny(seed=2), device="cpu", mean=0, std=1)
    explainer = load_explainer("gradcam_vit")
    one_way = explainer(classifier, IMAGES, TARGETS["contrast"])
    other_way = explainer(classifier, IMAGES, -TARGETS["contrast"])
    assert (one_way < 0).any()
    torch.testing.assert_close(one_way, -other_way)


def watched(output, reached):
    """Note in `reached` when a gradient comes back to an output."""
    if output.requires_grad:
        output.register_hook(lambda gradient: reached.append(gradient))


def test_the_backward_pass_stops_at_the_last_block(tiny):
    model = tiny()
    reached = []
    model.blocks[1]["qkv"].register_forward_hook(lambda _, inputs, output: watched(output, reached))
    classifier = load_classifier(model, device="cpu", mean=0, std=1)
    load_explainer("gradcam_vit")(classifier, IMAGES, TARGETS["class"])  # the first one also checks the gradients
    reached.clear()
    passes = classifier.passes
    load_explainer("gradcam_vit")(classifier, IMAGES, TARGETS["class"])
    assert reached == []
    assert classifier.passes - passes == len(IMAGES)
    load_explainer("gae")(classifier, IMAGES, TARGETS["class"])
    assert len(reached) == 1
