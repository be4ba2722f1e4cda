import numpy as np
import pytest
import torch
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.errors import UserError
from saliency_bench.explainers import _flow

IMAGES = torch.rand(3, 3, 8, 12, generator=torch.Generator().manual_seed(1))
TARGET = targets.one_hot([0, 1, 2], 3)


def enlarged(grid):
    return F.interpolate(torch.tensor(grid)[:, None].float(), size=(8, 12), mode="bilinear", align_corners=False)[:, 0]


def literal(attentions, image):
    """The token matrix of one image, element by element."""
    tokens = attentions[0].shape[-1]
    joint = np.eye(tokens)
    for attention in attentions:
        mixed = np.zeros((tokens, tokens))
        for i in range(tokens):
            for j in range(tokens):
                mixed[i, j] = np.mean([head[i, j] for head in attention[image]]) + (i == j)
            mixed[i] /= sum(mixed[i])
        joint = np.array([[sum(mixed[i, m] * joint[m, j] for m in range(tokens)) for j in range(tokens)]
                          for i in range(tokens)])  # fmt: skip
    return joint


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("before", [1, 3])
def test_it_is_the_product_over_the_blocks(before, start, tiny, attended):
    model = tiny(blocks=3, before=before)
    ours = load_explainer("rollout", start=start)(load_classifier(model, device="cpu", mean=0, std=1), IMAGES, TARGET)
    attentions, _ = attended(model, IMAGES, TARGET)
    expected = [literal(attentions[start:], image)[0, before:].reshape(2, 3) for image in range(3)]
    torch.testing.assert_close(ours, enlarged(np.stack(expected)))


def test_without_a_class_token_it_is_the_mean_row(tiny, attended):
    model = tiny(blocks=3, before=0)
    ours = load_explainer("rollout")(load_classifier(model, device="cpu", mean=0, std=1), IMAGES, TARGET)
    attentions, _ = attended(model, IMAGES, TARGET)
    expected = [literal(attentions, image).mean(axis=0).reshape(2, 3) for image in range(3)]
    torch.testing.assert_close(ours, enlarged(np.stack(expected)))


def test_uniform_attention_has_a_closed_form(tiny):
    """N = (J / T + I) / 2 with J all ones, so N^L = (1 - 2^-L) J / T + 2^-L I: a class token's row at the patches."""
    model = tiny(blocks=3)
    for block in model.blocks:
        block["qkv"].weight.data[:16] = 0
        block["qkv"].bias.data[:16] = 0
    maps = load_explainer("rollout")(load_classifier(model, device="cpu", mean=0, std=1), IMAGES, TARGET)
    torch.testing.assert_close(maps, torch.full((3, 8, 12), (1 - 1 / 8) / 7))


def test_rows_of_the_whole_token_matrix_sum_to_one(tiny, attended):
    attentions, _ = attended(tiny(blocks=4), IMAGES, TARGET)
    joint = _flow.product(_flow.by_row(torch.tensor(a).mean(dim=1)) for a in attentions) + torch.eye(7)
    torch.testing.assert_close(joint.sum(dim=-1), torch.ones(3, 7))
    torch.testing.assert_close(joint[1].double(), torch.tensor(literal(attentions, 1)), rtol=1e-5, atol=1e-6)


def test_the_product_by_hand():
    """(I + [[0, 1], [0, 0]]) (I + [[0, 0], [2, 0]]) = [[1, 1], [0, 1]] [[1, 0], [2, 1]] = [[3, 1], [2, 1]]."""
    first, second = torch.tensor([[[0.0, 0.0], [2.0, 0.0]]]), torch.tensor([[[0.0, 1.0], [0.0, 0.0]]])
    assert _flow.product([first, second]).tolist() == [[[2, 1], [2, 0]]]
    assert _flow.by_row(first).tolist() == [[[0, 0], [pytest.approx(2 / 3), pytest.approx(1 / 3 - 1)]]]


def test_it_takes_one_forward_pass(tiny):
    classifier = load_classifier(tiny(), device="cpu", mean=0, std=1)
    load_explainer("rollout")(classifier, IMAGES, TARGET)
    assert classifier.passes == 3


@pytest.mark.parametrize(("start", "words"), [(-1, r"\bstart\b.*-1"), (2, r"\b2\b.*blocks")])
def test_a_start_that_is_not_there(start, words, tiny):
    with pytest.raises(UserError, match=words):
        load_explainer("rollout", start=start)(load_classifier(tiny(), device="cpu", mean=0, std=1), IMAGES, TARGET)
