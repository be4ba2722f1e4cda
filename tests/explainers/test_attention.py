import numpy as np
import pytest
import torch
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets

IMAGES = torch.rand(3, 3, 8, 12, generator=torch.Generator().manual_seed(1))
TARGET = targets.one_hot([0, 1, 2], 3)


def enlarged(grid):
    return F.interpolate(torch.tensor(grid)[:, None].float(), size=(8, 12), mode="bilinear", align_corners=False)[:, 0]


@pytest.mark.parametrize("before", [1, 3])
def test_it_is_the_class_tokens_row_of_the_last_block(before, tiny, attended):
    model = tiny(before=before)
    ours = load_explainer("attention")(load_classifier(model, device="cpu", mean=0, std=1), IMAGES, TARGET)
    attention = attended(model, IMAGES, TARGET)[0][-1]
    expected = np.zeros((3, 2, 3))
    for image in range(3):
        for patch in range(6):
            for head in range(2):
                expected[image, patch // 3, patch % 3] += attention[image, head, 0, before + patch] / 2
    torch.testing.assert_close(ours, enlarged(expected))


def test_without_a_class_token_it_is_the_mean_row(tiny, attended):
    model = tiny(before=0)
    ours = load_explainer("attention")(load_classifier(model, device="cpu", mean=0, std=1), IMAGES, TARGET)
    attention = attended(model, IMAGES, TARGET)[0][-1]
    torch.testing.assert_close(ours, enlarged(attention.mean(axis=(1, 2)).reshape(3, 2, 3)))


def test_queries_of_zero_attend_to_all_tokens_alike(tiny):
    model = tiny()
    torch.nn.init.zeros_(model.blocks[1]["qkv"].weight)
    torch.nn.init.zeros_(model.blocks[1]["qkv"].bias)
    model.blocks[1]["qkv"].bias.data[16:] = 1  # values
    maps = load_explainer("attention")(load_classifier(model, device="cpu", mean=0, std=1), IMAGES, TARGET)
    torch.testing.assert_close(maps, torch.full((3, 8, 12), 1 / 7))


def test_it_takes_one_forward_pass(tiny):
    classifier = load_classifier(tiny(), device="cpu", mean=0, std=1)
    load_explainer("attention")(classifier, IMAGES, TARGET)
    assert classifier.passes == 3
