import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from small_networks import small
from torch import nn
from torchvision.models import VisionTransformer

import saliency_bench as sb
from saliency_bench.errors import UserError


def picture():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))


def test_explain_matches_explainer_on_predicted_class(resnet, tmp_path):
    seen = sb.explain(picture(), str(resnet), "gradcam", device="cpu")
    classifier = sb.load_classifier(resnet, device="cpu")
    images = classifier.prepare([{"image": picture()}]).images
    with torch.no_grad():
        probabilities = classifier(images).softmax(1)[0]
    best = int(probabilities.argmax())
    assert seen.prediction == seen.target == classifier.labels[best]
    assert seen.probability == pytest.approx(float(probabilities[best]))
    expected = sb.load_explainer("gradcam")(classifier, images, sb.targets.one_hot([best], 8))
    np.testing.assert_array_equal(seen.map, expected[0].numpy())
    assert seen.overlay.size == (32, 32)
    assert seen._repr_png_().startswith(b"\x89PNG")
    assert classifier.labels[best] in repr(seen)
    picture().save(tmp_path / "photo.png")
    from_file = sb.explain(tmp_path / "photo.png", classifier, "gradcam", device="cpu")
    np.testing.assert_array_equal(from_file.map, seen.map)


def test_explain_accepts_targets_options_and_functions(resnet):
    classifier = sb.load_classifier(resnet, device="cpu")
    by_name, by_number = (sb.explain(picture(), classifier, "rise", target=target, masks=30, device="cpu")
                          for target in ("ring", classifier.labels.index("ring")))  # fmt: skip
    np.testing.assert_array_equal(by_name.map, by_number.map)
    assert by_name.explainer == "rise:masks=30"
    weights = sb.targets.contrast([0], [1], 8)
    own = sb.explain(picture(), classifier, lambda c, i, t: i[:, 0], target=weights, device="cpu")
    assert own.target == "your own weights"


def explained(resnet, **asked):
    return sb.explain(picture(), resnet, "gradient", reduction="sum", device="cpu", **asked)


def test_explain_resolves_contrasts_and_groups_by_name(resnet):
    classifier = sb.load_classifier(resnet, device="cpu")
    names = classifier.labels
    images = classifier.prepare([{"image": picture()}]).images
    ring, cross, square = (names.index(name) for name in ("ring", "cross", "square"))

    def expected(weights):
        return sb.load_explainer("gradient", reduction="sum")(classifier, images, weights)[0].numpy()

    contrast = explained(classifier, target="ring", against="cross")
    np.testing.assert_array_equal(contrast.map, expected(sb.targets.contrast(ring, cross, 8)))
    assert contrast.target == "ring - cross"
    group = explained(classifier, target=["ring", cross])
    np.testing.assert_array_equal(group.map, expected(sb.targets.group([ring, cross], 8)))
    np.testing.assert_array_equal(explained(classifier, target="ring|cross").map, group.map)
    mine = {"thin": ["ring", "cross"], "full": ["square"]}
    by_name = explained(classifier, target="thin", groups=mine)
    np.testing.assert_array_equal(by_name.map, group.map)
    of_its_group = explained(classifier, target="ring", against="thin", groups=mine)
    np.testing.assert_array_equal(of_its_group.map, expected(sb.targets.class_vs_group(ring, [ring, cross], 8)))
    both = explained(classifier, target="thin", against="full", groups=mine)
    np.testing.assert_array_equal(both.map, expected(sb.targets.group_vs_group([ring, cross], [square], 8)))
    round_ones = explained(classifier, target="round", against="angular")
    assert "ring" in round_ones.target.partition(" - ")[0]


@pytest.mark.parametrize(("asked", "words"), [
    ({"target": "rong"}, r"'rong'; did you mean.* ring"),
    ({"target": "ring", "against": "crosss"}, r"'crosss'; did you mean cross"),
    ({"target": "rounded"}, r"group.*'rounded'; did you mean round"),
    ({"target": "ring", "against": "ring"}, "are the same, so every map would be zero"),
    ({"target": []}, "at least one class"),
    ({"target": torch.eye(8)[:1], "against": "ring"}, "remove against="),
    ({"target": 8}, "'8'"),
])  # fmt: skip
def test_invalid_targets_are_rejected(asked, words, resnet):
    refused(words, explained, str(resnet), **asked)


def test_weighted_contrast_rejects_against(resnet):
    asked = {"model": str(resnet), "explainer": "gradcam", "target": "ring", "on": "weighted", "device": "cpu"}
    with pytest.raises(UserError, match=r"gradcam:on=weighted .*all others; remove the option against="):
        sb.explain(picture(), against="cross", **asked)
    assert sb.explain(picture(), **asked).target == "ring"


def test_unreadable_image_is_rejected_by_name(resnet, tmp_path):
    (tmp_path / "notes.txt").write_text("no picture")
    refused("image.*not an image", sb.explain, tmp_path / "notes.txt", resnet, "gradcam", device="cpu")
    refused(r"no image file .*gone\.png", sb.explain, tmp_path / "gone.png", resnet)
    (tmp_path / "torn.png").write_bytes(b"\x89PNG")
    refused(r"torn\.png: the image cannot be read", sb.explain, tmp_path / "torn.png", resnet)


# An explainer that fits the network


class Mute(nn.Module):
    """Network without gradients."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        with torch.no_grad():
            return self.network(images)


def transformer():
    torch.manual_seed(0)
    network = VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=24, num_classes=4
    )
    nn.init.normal_(network.heads.head.weight)  # the head of torchvision's network is zero
    return network


@pytest.mark.parametrize(("make", "name", "why"), [
    (small, "gradcam", "feature maps"),
    (transformer, "gae", "vision transformer"),
    (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4)), "integrated_gradients", "no feature maps"),
    (lambda: torch.jit.trace(small().eval(), torch.rand(1, 3, 32, 32)), "integrated_gradients", "no feature maps"),
    (lambda: Mute(small()), "rise", "no gradients"),
], ids=["convolutional", "transformer", "perceptron", "traced", "without gradients"])  # fmt: skip
def test_explain_chooses_and_reports_suitable_explainer(make, name, why, capsys):
    classifier = sb.load_classifier(make(), mean=0.5, std=0.2, size=32)
    seen = sb.explain(picture(), classifier)
    shown = capsys.readouterr().err
    assert seen.explainer == name
    assert why in seen.why
    assert f"using {name}, because {seen.why}" in shown
    assert shown.count("\n") == 1
    assert f"{name} (chosen: {seen.why})" in repr(seen)
    named = sb.explain(picture(), classifier, name)
    np.testing.assert_array_equal(seen.map, named.map)
    assert named.why == ""
    assert capsys.readouterr().err == ""


def test_options_apply_to_chosen_explainer():
    classifier = sb.load_classifier(small(), mean=0.5, std=0.2, size=32)
    asked = sb.explain(picture(), classifier, layer="0")
    np.testing.assert_array_equal(asked.map, sb.explain(picture(), classifier, "gradcam", layer="0").map)
    layered = sb.load_classifier(transformer(), mean=0.5, std=0.2, size=32, layer="conv_proj")
    assert sb.explain(picture(), layered).explainer == "gradcam"
    refused("masks", sb.explain, picture(), classifier, masks=20)
