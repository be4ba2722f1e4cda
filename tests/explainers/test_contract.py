"""What every explainer must do and must leave alone, for all that are discovered."""

import random
from functools import cache

import numpy as np
import pytest
import timm
import torch
from torch import nn

from saliency_bench import load_classifier, load_explainer, rooms, targets
from saliency_bench.errors import UserError

NAMES = rooms.names("explainers")
CHEAP = {"rise": {"masks": 60}, "integrated_gradients": {"steps": 8}}
BASELINES = {name for name in NAMES if getattr(rooms.load("explainers", name), "BASELINE", False)}
NO_TARGET = {name for name in NAMES if not getattr(rooms.load("explainers", name), "TARGETED", True)} | BASELINES
CLASSES = 5


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def transformer() -> nn.Module:
    torch.manual_seed(0)
    model = timm.models.vision_transformer.VisionTransformer(
        patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=CLASSES, dynamic_img_size=True, drop_rate=0.5
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    return model


@cache
def has_maps_of(name: str, make) -> bool:
    try:
        explainer_of(name)(load_classifier(make(), device="cpu"), torch.rand(1, 3, 20, 28), torch.eye(CLASSES)[:1])
    except UserError:
        return False
    return True


def network(name: str) -> nn.Module:
    """The first network that the explainer is defined for."""
    return next(make() for make in (convolutional, transformer) if has_maps_of(name, make))


@pytest.fixture
def classifier(name):
    return load_classifier(network(name), mean=(0.5,) * 3, std=(0.2,) * 3, device="cpu")


@pytest.fixture
def images():
    return torch.rand(4, 3, 20, 28, generator=torch.Generator().manual_seed(1))


def explainer_of(name):
    return load_explainer(name, **CHEAP.get(name, {}))


@pytest.mark.parametrize("name", NAMES)
def test_maps_have_the_shape_of_the_images_and_are_finite(name, classifier, images):
    maps = explainer_of(name)(classifier, images, targets.one_hot([0, 1, 2, 3], CLASSES))
    assert maps.shape == (4, 20, 28)
    assert maps.dtype == torch.float32
    assert torch.isfinite(maps).all()
    assert not maps.requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_equal_calls_give_equal_bits_and_batch_size_changes_nothing_that_matters(name, classifier):
    images = torch.rand(16, 3, 20, 28, generator=torch.Generator().manual_seed(2))
    target = targets.one_hot([i % CLASSES for i in range(16)], CLASSES)
    explainer, seeds = explainer_of(name), list(range(100, 116))
    together = explainer(classifier, images, target, seeds=seeds)
    again = explainer(classifier, images, target, seeds=seeds)
    assert torch.equal(together, again)
    alone = torch.cat(
        [explainer(classifier, images[i : i + 1], target[i : i + 1], seeds=[seeds[i]]) for i in range(16)]
    )
    assert (together - alone).abs().max() <= 1e-5 * together.abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_every_form_of_target(name, classifier, images):
    forms = {
        "class": targets.one_hot([0, 1, 2, 3], CLASSES),
        "contrast": targets.contrast([0, 1, 2, 3], [1, 2, 3, 4], CLASSES),
        "class against group": targets.class_vs_group(0, [0, 1, 2], CLASSES),
        "group": targets.group([1, 2], CLASSES),
        "group against group": targets.group_vs_group([0, 1], [3, 4], CLASSES),
    }
    maps = {form: explainer_of(name)(classifier, images, target) for form, target in forms.items()}
    assert all(values.shape == (4, 20, 28) for values in maps.values())
    if name not in NO_TARGET:
        assert len({values.numpy().tobytes() for values in maps.values()}) == len(forms)


@pytest.mark.parametrize("name", sorted(set(NAMES) - NO_TARGET))
def test_one_row_stands_for_all_a_group_of_one_is_a_class_and_a_contrast_with_itself_is_zero(name, classifier, images):
    explainer = explainer_of(name)
    single = explainer(classifier, images, targets.one_hot([2], CLASSES))
    assert torch.equal(single, explainer(classifier, images, targets.one_hot([2] * 4, CLASSES)))
    assert torch.equal(single, explainer(classifier, images, targets.group([2], CLASSES)))
    assert explainer(classifier, images, targets.contrast(3, 3, CLASSES)).abs().max() == 0


class Failing(nn.Module):
    """Raises in the middle of the explanation, when hooks are in place."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.broken = inner, False

    def forward(self, x):
        out = self.inner(x)
        if self.broken:
            raise RuntimeError("broken on purpose")
        return out


def state_of(classifier):
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    return lambda: (
        [module.training for module in classifier.modules()],
        [(p.requires_grad, p.grad) for p in classifier.parameters()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in classifier.modules()],
        {key: value.clone().tolist() for key, value in classifier.state_dict().items()},
        torch.get_rng_state().tolist(),
        np.random.get_state()[1].tolist(),
        random.getstate(),
        torch.is_grad_enabled(),
    )


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "after an exception"])
@pytest.mark.parametrize("name", NAMES)
def test_the_callers_model_and_random_states_are_left_as_they_were(name, broken, images):
    model = Failing(network(name))
    classifier = load_classifier(model, device="cpu")
    classifier.train()
    next(module for module in model.modules() if module not in (model, model.inner)).eval()
    next(model.parameters()).requires_grad_(False)
    explainer_of(name)(classifier, images, targets.one_hot([1], CLASSES))  # what it looks up once is known
    look = state_of(classifier)
    before = look()
    model.broken = broken
    if broken and name not in BASELINES:
        with pytest.raises(RuntimeError, match="on purpose"):
            explainer_of(name)(classifier, images, targets.one_hot([1], CLASSES))
    else:
        explainer_of(name)(classifier, images, targets.one_hot([1], CLASSES))
    assert look() == before


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("name", NAMES)
def test_a_caller_without_gradients_gets_the_same_maps(name, context, classifier, images):
    target = targets.one_hot([0, 1, 2, 3], CLASSES)
    outside = explainer_of(name)(classifier, images, target)
    with context():
        inside = explainer_of(name)(classifier, images * 1.0, target)
    assert torch.equal(outside, inside)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_gives_float32_maps_near_those_of_full(name, images):
    target = targets.one_hot([0, 1, 2, 3], CLASSES)
    full = explainer_of(name)(load_classifier(network(name), device="cpu"), images, target)
    half = explainer_of(name)(load_classifier(network(name), device="cpu", precision="bf16"), images, target)
    assert half.dtype == torch.float32
    correlation = torch.corrcoef(torch.stack([full.flatten(), half.flatten()]))[0, 1]
    assert correlation > 0.95


@pytest.mark.parametrize("name", NAMES)
def test_images_are_not_changed(name, classifier, images):
    before = images.clone()
    explainer_of(name)(classifier, images, targets.one_hot([0], CLASSES))
    assert torch.equal(images, before)
    assert images.grad is None


@pytest.mark.parametrize("name", NAMES)
def test_it_is_hashable_printable_and_documented(name):
    explainer = load_explainer(name)
    assert hash(explainer) == hash(load_explainer(name))
    assert explainer == load_explainer(name)
    assert str(explainer) == name
    module = rooms.load("explainers", name)
    assert len(module.__doc__.splitlines()[0]) > 10
    assert module.VERSION >= 1
    assert getattr(module, name).__doc__
