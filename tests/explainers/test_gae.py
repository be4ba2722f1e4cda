import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.errors import UserError

IMAGES = torch.rand(3, 3, 8, 12, generator=torch.Generator().manual_seed(1))
TARGETS = {
    "class": targets.one_hot([0, 1, 2], 3),
    "contrast": targets.contrast([0, 1, 2], [1, 2, 0], 3),
    "group against group": targets.group_vs_group([0], [1, 2], 3),
}


def enlarged(grid):
    return F.interpolate(torch.tensor(grid)[:, None].float(), size=(8, 12), mode="bilinear", align_corners=False)[:, 0]


def literal(attentions, gradients, image):
    """The relevance matrix of one image, element by element."""
    tokens = attentions[0].shape[-1]
    relevance = np.eye(tokens)
    for attention, gradient in zip(attentions, gradients, strict=True):
        mean = np.zeros((tokens, tokens))
        for head in range(len(attention[image])):
            for i in range(tokens):
                for j in range(tokens):
                    product = float(attention[image, head, i, j]) * float(gradient[image, head, i, j])
                    mean[i, j] += max(product, 0) / len(attention[image])
        relevance = relevance + mean @ relevance
    return relevance


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("form", TARGETS)
def test_relevance_is_added_block_by_block(form, start, tiny, attended):
    model = tiny(blocks=3, before=2)
    ours = load_explainer("gae", start=start)(
        load_classifier(model, device="cpu", mean=0, std=1), IMAGES, TARGETS[form]
    )
    attentions, gradients = attended(model, IMAGES, TARGETS[form])
    expected = [literal(attentions[start:], gradients[start:], i)[0, 2:].reshape(2, 3) for i in range(3)]
    torch.testing.assert_close(ours, enlarged(np.stack(expected)), rtol=1e-4, atol=1e-6)


def test_without_a_class_token_it_is_the_mean_row_less_the_tokens_themselves(tiny, attended):
    model = tiny(blocks=3, before=0)
    ours = load_explainer("gae")(load_classifier(model, device="cpu", mean=0, std=1), IMAGES, TARGETS["class"])
    matrices = attended(model, IMAGES, TARGETS["class"])
    expected = [(literal(*matrices, image) - np.eye(6)).mean(axis=0).reshape(2, 3) for image in range(3)]
    torch.testing.assert_close(ours, enlarged(np.stack(expected)), rtol=1e-4, atol=1e-6)


class OneBlock(nn.Module):
    """logit_k = w_k . sum_j A[0, j] v_j with one head, so that d logit_k / d A[0, j] = w_k . v_j."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.patch, self.token = nn.Conv2d(3, 4, 4, stride=4), nn.Parameter(torch.randn(1, 1, 4))
        self.qkv, self.head = nn.Linear(4, 12), nn.Linear(4, 2, bias=False)

    def tokens(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.qkv(torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)).chunk(3, dim=2)

    def forward(self, x):
        q, k, v = (x[:, None] for x in self.tokens(x))
        return self.head(F.scaled_dot_product_attention(q, k, v)[:, 0, 0])


def test_one_block_has_a_closed_form():
    model = OneBlock()
    ours = load_explainer("gae")(load_classifier(model, device="cpu", mean=0, std=1), IMAGES, targets.one_hot([1], 2))
    with torch.no_grad():
        q, k, v = model.tokens(IMAGES)
        row = (q[:, :1] @ k.transpose(1, 2) / 2).softmax(dim=-1)[:, 0]  # (3, 7)
        expected = (row * (v @ model.head.weight[1])).relu()[:, 1:]
    torch.testing.assert_close(ours, enlarged(expected.reshape(3, 2, 3).numpy()))


def test_it_takes_one_forward_pass(tiny):
    classifier = load_classifier(tiny(), device="cpu", mean=0, std=1)
    load_explainer("gae")(classifier, IMAGES, TARGETS["class"])
    assert classifier.passes == 3


def test_a_start_below_zero():
    with pytest.raises(UserError, match=r"\bstart\b.*-1"):
        load_explainer("gae", start=-1)
