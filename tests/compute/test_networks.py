"""Test unusual networks (several outputs, one channel, TorchScript), and errors for unusable networks."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from checkpoints import small_checkpoint
from PIL import Image
from refusals import refused
from small_networks import Custom
from torch import nn
from torch.nn import functional as F
from torchvision.models import detection
from torchvision.transforms.v2 import functional as T
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    ViTImageProcessor,
)

import saliency_bench as sb
from saliency_bench import load_classifier
from saliency_bench.compute.classifiers.fast_forward import fast_forward
from saliency_bench.errors import UserError


def picture(height=40, width=32):
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


class Net(nn.Module):
    """Network of two convolutions and a head. `give` converts (scores, features) to the output."""

    def __init__(self, channels=3, give=lambda scores, features: scores, classes=8):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(channels, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 8, 3, padding=1)
        self.head = nn.Linear(8, classes)
        self.give = give

    def forward(self, images):
        features = torch.relu(self.second(torch.relu(self.norm(self.first(images)))))
        return self.give(self.head(features.mean((2, 3))), features)


def as_dict(scores, features):
    return {"features": features, "scores": scores}


def scores_of(output):
    return output["scores"]


def explained(make, **settings):
    return sb.explain(picture(), load_classifier(make(), mean=0.5, std=0.2, **settings), "gradient")


def doubled(output):
    return 2 * output["scores"]


# Logits among several outputs


@pytest.mark.parametrize(("give", "take"), [(as_dict, scores_of), (lambda *out: out, lambda out: out[0])])
def test_logits_are_taken_from_a_dict_or_tuple(give, take):
    images = torch.rand(2, 3, 16, 16)
    classifier = load_classifier(Net(give=give), mean=0.5, std=0.2, logits=take)
    plain = load_classifier(Net(), mean=0.5, std=0.2)
    with torch.no_grad():
        assert classifier(images).equal(plain(images))
    for name in ("gradcam", "integrated_gradients:steps=3", "occlusion:window=8,stride=8"):
        target = sb.targets.one_hot([1, 2], 8)
        maps = sb.load_explainer(name)(classifier, images, target)
        assert maps.equal(sb.load_explainer(name)(plain, images, target)), name


def test_digest_follows_code_of_logits_function():
    def digest(take, **others):
        return load_classifier(Net(give=as_dict), mean=0.5, std=0.2, logits=take, **others).digest

    assert digest(scores_of) == digest(scores_of)
    assert len({digest(scores_of), digest(doubled), load_classifier(Net(give=as_dict), mean=0.5, std=0.2).digest}) == 3
    scaled = [digest(partial(lambda out, by: by * out["scores"], by=by)) for by in (1.0, 2.0, 2.0)]
    assert scaled[0] != scaled[1] == scaled[2]
    first = nn.Linear(8, 3)
    second = copy.deepcopy(first)
    second.weight.data += 1
    heads = [digest(nn.Sequential(Taken(), head)) for head in (first, second)]
    assert heads[0] != heads[1]


class Taken(nn.Module):
    def forward(self, output):
        return output["scores"]


def test_unhashable_logits_function_gets_digest_per_load(capsys):
    endless = (number for number in range(3))
    take = partial(lambda out, held: out["scores"], held=endless)
    classifier = load_classifier(Net(give=as_dict), mean=0.5, std=0.2, logits=take)
    assert "logits= of Net cannot be hashed" in capsys.readouterr().err
    assert classifier.digest == classifier.digest
    assert classifier.digest != load_classifier(Net(give=as_dict), mean=0.5, std=0.2, logits=take).digest


def test_logits_function_is_copied_with_classifier():
    images = torch.rand(2, 3, 16, 16)
    classifier = load_classifier(Net(give=as_dict), mean=0.5, std=0.2, logits=doubled)
    with torch.no_grad():
        expected = classifier(images)
        assert copy.deepcopy(classifier)(images).equal(expected)
        assert load_classifier(classifier, activation="sigmoid")(images).equal(expected)
        forward = fast_forward(classifier, images)
        assert forward is not classifier
        assert torch.allclose(forward(images), expected, atol=1e-5)
    headed = load_classifier(Net(give=as_dict), mean=0.5, std=0.2, logits=nn.Sequential(Taken(), nn.Linear(8, 3)))
    moved = load_classifier(headed, channels_last=True)
    assert not set(map(id, moved.parameters())) & set(map(id, headed.parameters()))


@pytest.mark.parametrize(("give", "take", "words"), [
    (as_dict, None, r"a dict of features, scores instead of logits \(B, K\); .*logits=lambda out: out\['scores'\]"),
    (lambda s, f: (f, s), None, r"a tuple of 2 instead.*logits=lambda out: out\[1\]"),
    (lambda s, f: {"out": f}, None, r"logits=lambda out: out\['out'\]\.mean\(\(2, 3\)\)"),
    (lambda s, f: f, None, r"\(1, 8, 40, 32\).*logits=lambda out: out\.mean\(\(2, 3\)\)"),
    (lambda s, f: s[:, 0], None, r"\(1,\).*out\[:, None\].*activation=.sigmoid"),
    (lambda s, f: s.argmax(1), None, r"without the argmax"),
    (lambda s, f: {"boxes": s, "labels": s}, None, "is an object detector"),
    (lambda s, f: [{"boxes": s, "labels": s}], None, "is an object detector"),
    (as_dict, lambda out: out["score"], r"logits= fails on.*a dict of features, scores.*KeyError.*score"),
    (as_dict, lambda out: out["features"], r"logits= of module:Net returns \(1, 8, 40, 32\)"),
    (as_dict, lambda out: None, r"logits= of module:Net returns NoneType"),
])  # fmt: skip
def test_other_outputs_are_rejected_with_fix(give, take, words):
    refused(words, explained, partial(Net, give=give), logits=take)


def test_incompatible_models_and_settings_are_rejected(resnet):
    for model, settings, words in (
        (str(resnet), {"logits": scores_of}, "and name= apply only to a torch module"),
        (load_classifier(resnet, device="cpu"), {"logits": scores_of}, "and name= apply only to a torch module"),
        (Net(give=as_dict), {"logits": "scores"}, "logits= must be a function.*got 'scores'"),
        (Net(give=as_dict), {"logits": 0}, "logits= must be a function.*got 0"),
        (Net().state_dict(), {}, r"weights without a network.*load_state_dict"),
        (Net(channels=1), {"mean": (0.4, 0.5, 0.6), "std": 0.2},
         "module:Net takes images with one channel, but mean has three values; pass mean="),
    ):  # fmt: skip
        refused(words, load_classifier, model, **settings)


# One channel


def test_single_channel_network_gets_grey_images(capsys):
    network = Net(channels=1)
    classifier = load_classifier(network, mean=0.5, std=0.2)
    assert "module:Net takes images with one channel, so images are converted to grey" in capsys.readouterr().err
    assert "in grey" in repr(classifier)
    images = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        expected = network((T.rgb_to_grayscale(images) - 0.5) / 0.2)
        assert torch.allclose(classifier(images), expected, atol=1e-3)  # with rounded weights


def test_grey_network_maps_match_the_network_itself():
    network = Net(channels=1)
    images, target = torch.rand(2, 3, 16, 16), sb.targets.one_hot([1, 5], 8)
    classifier = load_classifier(network, mean=0.5, std=0.2)
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    grey = (images * weights).sum(1, keepdim=True).requires_grad_()
    network.eval()((grey - 0.5) / 0.2).gather(1, torch.tensor([[1], [5]])).sum().backward()
    summed = sb.load_explainer("gradient", reduction="sum")(classifier, images, target)
    torch.testing.assert_close(summed, grey.grad[:, 0])  # the weights of the channels sum to 1
    by_hand = load_classifier(wrapped(network, lambda images: (images * weights).sum(1, keepdim=True)), mean=0, std=1)
    for name in ("gradcam", "occlusion:window=4,stride=4", "rise:masks=20"):
        explainer = sb.load_explainer(name)
        same = load_classifier(network, mean=0, std=1)
        torch.testing.assert_close(explainer(same, images, target), explainer(by_hand, images, target))


def wrapped(network, before):
    return Custom(lambda self, images: self.network(before(images)), network=network)


def test_module_that_converts_to_grey_gets_colour_images(capsys):
    network = wrapped(Net(channels=1), lambda images: images[:, :1]).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    classifier = load_classifier(network, mean=0, std=1)
    assert all(value.equal(before[name]) for name, value in network.state_dict().items())
    assert (classifier.channels, capsys.readouterr().err) == (3, "")
    images = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        assert classifier(images).equal(network.eval()(images))


@pytest.mark.parametrize("make", [
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 5)),
    lambda: torch.jit.trace(Net(channels=1, classes=5).eval(), torch.rand(1, 1, 28, 28)),
    lambda: ResNetForImageClassification(
        ResNetConfig(num_channels=1, embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], num_labels=5)
    ),
], ids=["perceptron", "traced", "transformers"])  # fmt: skip
def test_other_single_channel_networks_are_explained(make):
    classifier = load_classifier(make(), mean=0.5, std=0.2, size=28)
    assert classifier.channels == 1
    assert sb.explain(picture(), classifier, "gradient").map.shape == (28, 28)


def test_grey_checkpoint_is_loaded_and_explained(tmp_path):
    processor = ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.4], image_std=[0.3])
    small_checkpoint(tmp_path, num_channels=1, processor=processor)
    classifier = load_classifier(str(tmp_path), device="cpu")
    assert classifier.channels == 1
    assert classifier.mean.flatten().tolist() == pytest.approx([0.4] * 3)
    assert sb.explain(picture(), classifier, "gradcam").map.shape == (32, 32)


# TorchScript, and wrappers of a network

SCRIPTS = {
    "scripted": lambda network, path: torch.jit.script(network),
    "traced": lambda network, path: torch.jit.trace(network, torch.rand(1, 3, 16, 16)),
    "loaded": lambda network, path: (torch.jit.script(network).save(path / "m.pt"), torch.jit.load(path / "m.pt"))[1],
    "frozen": lambda network, path: torch.jit.freeze(torch.jit.script(network)),
}


def plain_network(scale=1.0):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2), nn.Hardtanh(-scale, scale),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    ).eval()  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SCRIPTS)
def test_torchscript_maps_match_original_network(kind, tmp_path):
    network = plain_network()
    script = SCRIPTS[kind](network, tmp_path)
    classifier = load_classifier(script, mean=0.5, std=0.2)
    assert classifier.id == "module:Sequential"
    images, target = torch.rand(3, 3, 16, 16), sb.targets.one_hot([0, 1, 2], 4)
    for name in ("gradient", "integrated_gradients:steps=4", "occlusion:window=8,stride=8", "rise:masks=20"):
        maps = sb.load_explainer(name)(classifier, images, target)
        expected = sb.load_explainer(name)(load_classifier(network, mean=0.5, std=0.2), images, target)
        torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-5)
    for name in ("gradcam", "scorecam", "gae"):
        refused(r"TorchScript.*pass the module", sb.load_explainer(name), classifier, images, target)


@pytest.mark.sample(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SCRIPTS)
def test_torchscript_digest_follows_code_constants_and_weights(kind, tmp_path):
    def digest(network):
        return load_classifier(SCRIPTS[kind](network, tmp_path), mean=0.5, std=0.2).digest

    other = plain_network()
    with torch.no_grad():
        other[0].weight.add_(1)
    first = digest(plain_network())
    for _ in range(2):  # torch renames classes that it has seen before, and writes separate files for them
        torch.jit.script(plain_network())
        assert digest(plain_network()) == first
    assert len({first, digest(plain_network(2.0)), digest(other)}) == 3


@pytest.mark.filterwarnings("ignore")
def test_gradcam_accepts_network_with_scripted_part():
    network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), torch.jit.script(nn.Sequential(nn.AdaptiveAvgPool2d(1),
                            nn.Flatten(), nn.Linear(6, 4)))).eval()  # fmt: skip
    classifier = load_classifier(network, mean=0.5, std=0.2)
    maps = sb.load_explainer("gradcam")(classifier, torch.rand(2, 3, 16, 16), sb.targets.one_hot([0, 1], 4))
    assert maps.shape == (2, 16, 16)


@pytest.mark.parametrize("wrap", [nn.DataParallel, partial(torch.compile, backend="eager")])
def test_network_wrappers_are_removed(wrap):
    network = plain_network()
    classifier = load_classifier(wrap(network), mean=0.5, std=0.2)
    assert classifier.model is network
    assert classifier.digest == load_classifier(network, mean=0.5, std=0.2).digest


# Unusable networks


class Late(nn.Module):
    def forward(self, images):
        return F.conv2d(images.permute(0, 3, 1, 2), torch.zeros(4, 3, 1, 1)).mean((2, 3))


class Numpy(Net):
    def forward(self, images):
        return super().forward(torch.from_numpy(images.numpy()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "words"), [
    (lambda: torch.ao.quantization.quantize_dynamic(Net(), {nn.Linear}), r"Net is quantised \(Linear\)"),
    (lambda: torch.export.export(plain_network(), (torch.rand(1, 3, 16, 16),)).module(), r"torch\.export"),
    (lambda: Net().to("meta"), r"no weights \(first\.weight"),
    (lambda: detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None),
     "FasterRCNN is an object detector; use a classifier"),
    (lambda: SegformerForSemanticSegmentation(SegformerConfig(hidden_sizes=[8] * 4, decoder_hidden_size=8)),
     "not for image classification.*logits="),
    (Late, r"channels last.*permute\(0, 2, 3, 1\)"),
    (Numpy, "NumPy.*no gradients.*rise"),
], ids=["quantised", "exported", "meta", "detection", "segmentation", "channels last", "numpy"])  # fmt: skip
def test_unusable_networks_are_rejected_with_fix(make, words):
    refused(words, explained, make)


def test_size_independent_network_accepts_any_image_size():
    classifier = load_classifier(Net(), mean=0.5, std=0.2)
    for height, width in ((40, 32), (33, 71)):
        assert sb.explain(picture(height, width), classifier, "gradcam").map.shape == (height, width)
    with pytest.raises(UserError, match="differ in size; call load_classifier with size="):
        classifier.prepare([{"image": picture(40, 32)}, {"image": picture(33, 71)}])


def in_chunks(x):
    raise RuntimeError("Shape mismatch, can't divide axis of length 24 in chunks of 16")  # error text of einops


@pytest.mark.parametrize("forward", [
    nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 2)),
    lambda x: (x.flatten(2) + torch.zeros(3, 256)).mean(dim=2),  # position embeddings
    in_chunks,
    nn.Sequential(nn.Conv2d(3, 2, 32), nn.Flatten()),
])  # fmt: skip
def test_wrong_image_size_is_rejected_with_fix(forward):
    classifier = load_classifier(Custom(lambda self, x: forward(x)), mean=0.5, std=0.25)
    with pytest.raises(UserError, match=r"Custom does not accept images of 24 x 24 .*size=\(H, W\)"):
        sb.explain(picture(24, 24), classifier, "occlusion")


class Patches(nn.Linear):
    def forward(self, pixel_values, pixel_attention_mask=None, spatial_shapes=None):
        return super().forward(pixel_values).mean(1)


def test_patch_network_error_does_not_blame_image_size():
    refused(r"takes images that are already cut into patches .*whose forward cuts images into patches",
            load_classifier(Patches(48, 4), mean=0, std=1), torch.rand(1, 3, 16, 16))  # fmt: skip
