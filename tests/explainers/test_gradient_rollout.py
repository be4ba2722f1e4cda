import numpy as np
import pytest
import torch
from enlarging import rounding
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.errors import UserError
from saliency_bench.explainers import _flow

IMAGES = torch.rand(3, 3, 8, 12, generator=torch.Generator().manual_seed(1))
TARGETS = {
    "class": targets.one_hot([0, 1, 2], 3),
    "contrast": targets.contrast([0, 1, 2], [1, 2, 0], 3),
    "class against group": targets.class_vs_group(0, [1, 2], 3),
}


def enlarged(grid):
    return F.interpolate(torch.tensor(grid)[:, None].float(), size=(8, 12), mode="bilinear", align_corners=False)[:, 0]


def literal(attentions, gradients, image, relu=True):
    """The token matrix of one image, element by element."""
    tokens = attentions[0].shape[-1]
    joint = np.eye(tokens)
    for attention, gradient in zip(attentions, gradients, strict=True):
        mixed = np.zeros((tokens, tokens))
        for i in range(tokens):
            for j in range(tokens):
                products = [float(g[i, j]) * float(a[i, j]) for a, g in zip(attention[image], gradient[image])]  # noqa: B905
                mixed[i, j] = np.mean([max(product, 0) if relu else product for product in products]) + (i == j)
            mixed[i] /= sum(mixed[i])
        joint = mixed @ joint
    return joint


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("form", TARGETS)
def test_it_is_the_product_over_the_blocks(form, start, relu, tiny, attended):
    model = tiny(blocks=3, before=2)
    ours = load_explainer("gradient_rollout", start=start, relu=relu)(
        load_classifier(model, device="cpu", mean=0, std=1), IMAGES, TARGETS[form]
    )
    attentions, gradients = attended(model, IMAGES, TARGETS[form])
    expected = [literal(attentions[start:], gradients[start:], i, relu)[0, 2:].reshape(2, 3) for i in range(3)]
    torch.testing.assert_close(ours, enlarged(np.stack(expected)), rtol=1e-4, atol=1e-6 + rounding(expected))
    assert (ours >= 0).all() or not relu


@pytest.mark.parametrize("relu", [True, False])
def test_a_weighted_contrast_takes_the_gradients_of_the_probability(relu, tiny, attended):
    """Compare with Eriksson et al.: gradient of the class probability times attention, multiplied over the blocks."""
    model = tiny(blocks=2, before=1)
    ours = load_explainer("gradient_rollout", relu=relu, on="weighted")(
        load_classifier(model, device="cpu", mean=0, std=1), IMAGES, TARGETS["contrast"]
    )
    with torch.no_grad():
        p = model(IMAGES).double().softmax(1)
    # d p_t = p_t (d y_t - sum_k p_k d y_k): the weights over the logits whose gradients these are
    weights = torch.stack([p[i, i] * (torch.eye(3).double()[i] - p[i]) for i in range(3)]).float()
    attentions, gradients = attended(model, IMAGES, weights)
    expected = [literal(attentions, gradients, i, relu)[0, 1:].reshape(2, 3) for i in range(3)]
    torch.testing.assert_close(ours, enlarged(np.stack(expected)), rtol=1e-4, atol=1e-6 + rounding(expected))


def test_without_a_class_token_it_is_the_mean_row_less_the_tokens_themselves(tiny, attended):
    model = tiny(blocks=3, before=0)
    ours = load_explainer("gradient_rollout")(
        load_classifier(model, device="cpu", mean=0, std=1), IMAGES, TARGETS["class"]
    )
    matrices = attended(model, IMAGES, TARGETS["class"])
    expected = [(literal(*matrices, image) - np.eye(6)).mean(axis=0).reshape(2, 3) for image in range(3)]
    torch.testing.assert_close(ours, enlarged(np.stack(expected)), rtol=1e-4, atol=1e-6 + rounding(expected))


def test_rows_of_the_whole_token_matrix_sum_to_one(tiny, attended):
    attentions, gradients = attended(tiny(blocks=4), IMAGES, TARGETS["class"])
    pairs = zip(gradients, attentions, strict=True)
    weighted = [_flow.positive(torch.tensor(g), torch.tensor(a)) for g, a in pairs]
    joint = _flow.product(_flow.by_row(matrix) for matrix in weighted) + torch.eye(7)
    assert all(matrix.max() > 0.01 for matrix in weighted)
    torch.testing.assert_close(joint.sum(dim=-1), torch.ones(3, 7))
    expected = torch.tensor(literal(attentions, gradients, 1))
    torch.testing.assert_close(joint[1].double(), expected, rtol=1e-4, atol=1e-6)


def test_it_takes_one_forward_pass(tiny):
    classifier = load_classifier(tiny(), device="cpu", mean=0, std=1)
    load_explainer("gradient_rollout")(classifier, IMAGES, TARGETS["class"])
    assert classifier.passes == 3


def test_a_start_below_zero():
    with pytest.raises(UserError, match=r"start.*-1"):
        load_explainer("gradient_rollout", start=-1)
