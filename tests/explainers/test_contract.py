"""Test the contract of all discovered explainers: required behaviour and unchanged state."""

import operator
import random
import re
from dataclasses import replace
from functools import cache, partial
from inspect import signature

import contracts
import numpy as np
import pytest
import torch
from small_networks import Custom, loaded
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

from saliency_bench import load_classifier, load_explainer, registry, targets
from saliency_bench.data.geometry import CELL_STEPS
from saliency_bench.errors import UserError
from saliency_bench.options import defaults

NAMES = contracts.complete("explainers")
DECLARED = {name: load_explainer(name).declaration for name in NAMES}
BASELINES = {name for name in NAMES if DECLARED[name].baseline}
CLASSES = 5
WITH_TARGET = [name for name in NAMES if DECLARED[name].targeted and name not in BASELINES]
IN_PASSES = [name for name in NAMES if "batch_size" in dict(load_explainer(name).options)]
ADAPTIVE = [name for name in NAMES if "reliability" in defaults(getattr(registry.load("explainers", name), name))]
ON_CONVOLUTIONS = [name for name in NAMES if not DECLARED[name].needs.startswith("attention")]


def convolutional(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True),
                         nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU(inplace=True), nn.Dropout(0.5),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES))  # fmt: skip


def transformer(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return ViTForImageClassification(ViTConfig(**size, image_size=(20, 28), patch_size=4, num_labels=CLASSES))


@cache
def maker_of(name):
    """Return a function that creates a network for an explainer: if possible convolutional, otherwise a transformer."""
    try:
        classifier = load_classifier(convolutional(), device="cpu", mean=0, std=1)
        load_explainer(name)(classifier, torch.rand(1, 3, 20, 28), targets.one_hot([0], CLASSES))
    except UserError:
        return transformer
    return convolutional


def logits_of(output):
    return getattr(output, "logits", output)


def around(network, call):
    """Return a network whose output is call(network, images)."""
    return Custom(lambda net, x: call(net.inner, x), inner=network)


@pytest.fixture
def classifier(name):
    return load_classifier(maker_of(name)(), mean=(0.5,) * 3, std=(0.2,) * 3, device="cpu")


@pytest.fixture
def images():
    return torch.rand(4, 3, 20, 28, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", contracts.names("explainers"))
def test_explainer_is_complete(name):
    contracts.check("explainers", name)


@pytest.mark.parametrize("name", NAMES)
def test_single_logit_head_matches_two_class_head(name, images, explainer_of, error_of):
    """A head with weights w has the same maps as a head with weights -w and w, for both classes."""
    one, two = maker_of(name)(), maker_of(name)()
    for network in (one, two):
        head = network.classifier if maker_of(name) is transformer else network[-1]
        assert isinstance(head, nn.Linear)
        head.weight.data, head.bias.data = head.weight.data[:1], head.bias.data[:1]
        head.out_features = 1
    head.weight.data, head.bias.data = (torch.cat([-value, value]) for value in (head.weight.data, head.bias.data))
    single, both = (loaded(network, activation="sigmoid", labels=["against", "for"]) for network in (one, two))
    torch.testing.assert_close(single(images), both(images))
    for target in (targets.one_hot([0, 1, 0, 1], 2), targets.contrast([0, 1, 0, 1], [1, 0, 1, 0], 2)):
        assert error_of(*(explainer_of(name)(network, images, target) for network in (single, both))) < 1e-4


@pytest.mark.parametrize("on", ["logit", "probability"])
@pytest.mark.parametrize("name", NAMES)
def test_minus_infinity_logits_keep_maps_of_other_classes(name, on, images, explainer_of):
    def masked(logit):
        rest = torch.arange(CLASSES) > 2
        return loaded(around(maker_of(name)(), lambda inner, x: logits_of(inner(x)).masked_fill(rest, logit)))

    explainer, target = explainer_of(name, on=on), targets.contrast([0, 1, 2, 0], [1, 2, 0, 2], CLASSES)
    infinite, finite = (explainer(masked(logit), images, target) for logit in (-torch.inf, -1e4))
    torch.testing.assert_close(infinite, finite, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name != "rise"]
)  # maps of these explainers have the sign of the logits
def test_maps_have_both_signs_where_declared(name, classifier, images, explainer_of):
    signed, target = DECLARED[name].signed, targets.one_hot([0, 1, 2, 3], CLASSES)
    assert (explainer_of(name)(classifier, images, target).min() < 0) == (signed is True)
    if isinstance(signed, dict):
        assert explainer_of(name, **signed)(classifier, images, target).min() < 0


@pytest.mark.parametrize("name", NAMES)
def test_maps_are_deterministic_and_independent_of_batch_size(name, classifier, explainer_of, error_of):
    """Also test the number of passes of the second call, because the first call also inspects the network."""
    images = torch.rand(16, 3, 20, 28, generator=torch.Generator().manual_seed(2))
    target = targets.one_hot([i % CLASSES for i in range(16)], CLASSES)
    explainer, seeds = explainer_of(name), list(range(100, 116))
    together, before = explainer(classifier, images, target, seeds=seeds), classifier.passes
    assert torch.equal(together, explainer(classifier, images, target, seeds=seeds))
    assert classifier.passes - before == counted(DECLARED[name], explainer, 20, 28) * 16
    alone = [explainer(classifier, images[i : i + 1], target[i : i + 1], seeds=[seeds[i]]) for i in (3, 7, 11, 15)]
    assert error_of(together[3::4], torch.cat(alone)) <= 1e-5 + step_of(explainer)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_maps_with_fewer_draws_are_independent_of_batch(name, classifier, explainer_of, error_of):
    """Require a reliability that half of the images reach after 16 draws, so that the other images need more."""
    images = torch.rand(6, 3, 20, 28, generator=torch.Generator().manual_seed(2))
    target, seeds = targets.one_hot([i % CLASSES for i in range(6)], CLASSES), list(range(100, 106))
    first = explainer_of(name, samples=16, masks=16).made(classifier, images, target, seeds=seeds).reliability
    explainer = explainer_of(name, samples=60, masks=60, reliability=float(np.median(first)))
    together = explainer.made(classifier, images, target, seeds=seeds)
    assert together.draws.count(16) == 3
    for i in range(6):
        alone = explainer.made(classifier, images[i : i + 1], target[i : i + 1], seeds=[seeds[i]])
        assert alone.draws == together.draws[i : i + 1]
        assert error_of(together.maps[i : i + 1], alone.maps) <= 1e-5


def step_of(explainer):
    """Return one step of rounded cells. Last bits may change a small map by this much before it is upsampled."""
    return 1 / CELL_STEPS if re.search("activations|attention", explainer.declaration.needs) else 0


@pytest.mark.parametrize("name", [name for name in NAMES if load_explainer(name).options])
def test_every_option_changes_maps(name, classifier, images, explainer_of):
    explainer, target = explainer_of(name), targets.contrast([0, 1, 2, 3], [1, 2, 3, 4], CLASSES)
    found = {("", None): explainer(classifier, images, target, seeds=[1, 2, 3, 4])}
    same = set()
    for option, value, variant in contracts.variants(explainer):
        maps = variant(classifier, images, target, seeds=[1, 2, 3, 4])
        rivals = [other for (name_of_other, _), other in found.items() if name_of_other in ("", option)]
        same |= {option for other in rivals if torch.equal(other, maps)}
        found[option, value] = maps
    assert same <= {"max_dist"}  # small images have the same superpixels with both values


@pytest.mark.parametrize("name", IN_PASSES)
def test_passes_are_bounded_and_their_size_changes_no_map(name, images, explainer_of, error_of):
    """Memory depends on the size of a pass, not on the number of points, masks, windows or channels."""
    sizes, images, target = [], images[:2], targets.one_hot([0, 1], CLASSES)
    classifier = loaded(around(convolutional(), lambda inner, x: sizes.append(len(x)) or inner(x)))
    explainer = explainer_of(name)
    expected = explainer(classifier, images, target)
    sizes.clear()
    small = load_explainer(name, **dict(explainer.options) | {"batch_size": 3})(classifier, images, target)
    assert max(sizes) <= 3
    assert error_of(small, expected) <= 1e-5 + step_of(explainer)


@pytest.mark.parametrize("name", NAMES)
def test_explainer_supports_every_target_form(name, classifier, images, explainer_of):
    forms = {
        "class": targets.one_hot([0, 1, 2, 3], CLASSES),
        "contrast": targets.contrast([0, 1, 2, 3], [1, 2, 3, 4], CLASSES),
        "class against group": targets.class_vs_group(0, [0, 1, 2], CLASSES),
        "group": targets.group([1, 2], CLASSES),
        "group against group": targets.group_vs_group([0, 1], [3, 4], CLASSES),
    }
    maps = {form: explainer_of(name)(classifier, images, target) for form, target in forms.items()}
    for values in maps.values():
        assert (values.shape, values.dtype, values.requires_grad) == ((4, 20, 28), torch.float32, False)
        assert torch.isfinite(values).all()
    # For a single class, cutting a random network's map at zero might leave nothing.
    assert (maps["contrast"].amax(dim=(1, 2)) > maps["contrast"].amin(dim=(1, 2))).all()
    if name in WITH_TARGET:
        assert len({values.numpy().tobytes() for values in maps.values()}) == len(forms)
    elif name not in BASELINES:
        assert len({values.numpy().tobytes() for values in maps.values()}) == 1


@pytest.mark.parametrize("name", WITH_TARGET)
def test_equivalent_targets_give_equal_maps(name, classifier, images, explainer_of):
    explainer = explainer_of(name)
    single = explainer(classifier, images, targets.one_hot([2], CLASSES))
    assert torch.equal(single, explainer(classifier, images, targets.one_hot([2] * 4, CLASSES)))
    assert torch.equal(single, explainer(classifier, images, targets.group([2], CLASSES)))
    if name != "scorecam":  # the softmax of equal scores is not zero
        assert explainer(classifier, images, targets.contrast(3, 3, CLASSES)).abs().max() == 0


class Failing(nn.Module):
    """Network that raises at the end of call number `broken` and of all later calls, when hooks are installed."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.calls, self.broken = inner, 0, 0

    def forward(self, x):
        out = self.inner(x)
        self.calls += 1
        if self.broken and self.calls >= self.broken:
            raise RuntimeError("broken on purpose")
        return logits_of(out)


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
        torch.overrides._get_current_function_mode_stack(),
    )


@pytest.mark.parametrize("name", NAMES)
def test_explainer_preserves_model_and_random_state(name, images, explainer_of):
    model = Failing(maker_of(name)())
    classifier = loaded(model)
    classifier.train()
    list(model.modules())[-1].eval()
    next(model.parameters()).requires_grad_(False)
    look = state_of(classifier)
    before = look()

    def explain():
        model.calls = 0
        explainer_of(name)(classifier, images, targets.one_hot([1], CLASSES))

    explain()
    explain()  # the second call skips the inspection of the network
    assert look() == before
    for broken in sorted({1, model.calls}) if model.calls else ():
        model.broken = broken
        with pytest.raises(RuntimeError, match="on purpose"):
            explain()
        assert look() == before


@pytest.mark.parametrize("name", NAMES)
def test_mode_precision_and_layout_hardly_change_maps(name, classifier, images, explainer_of, error_of):
    """Explain in training mode: dropout is off, and the running statistics of batch norms are used and not changed."""
    target, make, explainer = targets.one_hot([0, 1, 2, 3], CLASSES), maker_of(name), explainer_of(name)
    expected = explainer(classifier, images, target)
    assert torch.equal(explainer(classifier.train(), images, target), expected)
    for network, precision in ((make(), "bf16"), (make().bfloat16(), "fp32")):
        maps = explainer(loaded(network, precision=precision, mean=0.5, std=0.2), images, target)
        assert maps.dtype == torch.float32
        assert torch.corrcoef(torch.stack([expected.flatten(), maps.flatten()]))[0, 1] > 0.95
    last = images.contiguous(memory_format=torch.channels_last)
    for network in (classifier, load_classifier(classifier, device="cpu", channels_last=True)):
        assert error_of(explainer(network, last, target), expected) <= 1e-5


@pytest.mark.parametrize("size", [(5, 4), (2, 3), (1, 1)])
@pytest.mark.parametrize("name", ON_CONVOLUTIONS)
def test_small_images_have_map_or_are_rejected(name, size, explainer_of, map_or_refusal, others_named):
    """Options have their defaults, except for options that set the amount of computation."""
    classifier = load_classifier(convolutional(), device="cpu", mean=0, std=1)
    explainer = explainer_of(name, window=None, stride=None)
    maps, refusal = map_or_refusal(explainer, classifier, torch.rand(2, 3, *size), targets.one_hot([0, 1], CLASSES))
    if refusal is None:
        assert maps.shape == (2, *size)
        assert torch.isfinite(maps).all()
    else:
        assert size == (1, 1)  # no feature map remains
        assert others_named(refusal, name)


class Written(nn.Module):
    """Network whose ReLUs and skip connection can be written in several ways."""

    def __init__(self, relu, add):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, CLASSES)
        self.one, self.two, self.in_place = nn.ReLU(), nn.ReLU(), nn.ReLU(inplace=True)
        self.relu, self.add = relu, add

    def forward(self, x):
        x = self.relu(self, 0, self.first(x))
        x = self.relu(self, 1, self.add(self.second(x), x))
        return self.head(x.mean(dim=(2, 3)))


WAYS = {
    "one module, used twice": (lambda net, index, x: net.one(x), operator.add),
    "one module, in place": (lambda net, index, x: net.in_place(x), operator.iadd),
    "functions": (lambda net, index, x: nn.functional.relu(x), torch.add),
    "functions in place": (lambda net, index, x: nn.functional.relu(x, inplace=True), operator.iadd),
    "methods": (lambda net, index, x: x.relu_(), lambda a, b: b.add(a)),
}


@pytest.mark.parametrize("name", ON_CONVOLUTIONS)
def test_equivalent_network_code_gives_same_maps(name, images, explainer_of, error_of):
    def explained(*written):
        network = loaded(Written(*written), layer="second")
        return explainer_of(name)(network, images, targets.one_hot([0, 1, 2, 3], CLASSES))

    expected = explained(lambda net, index, x: (net.one, net.two)[index](x), operator.add)
    for way, written in WAYS.items():
        assert error_of(explained(*written), expected) <= 1e-5, way


@pytest.mark.parametrize("name", NAMES)
def test_network_without_gradients_keeps_map_or_is_rejected(name, images, explainer_of, map_or_refusal, others_named):
    target = targets.one_hot([0], CLASSES)
    network, explainer = maker_of(name)(), explainer_of(name)
    switched_off = around(network, torch.no_grad()(lambda inner, x: logits_of(inner(x))))
    maps, refusal = map_or_refusal(explainer, loaded(switched_off), images, target)
    if refusal:
        assert others_named(refusal, name)
    else:
        assert torch.equal(maps, explainer(loaded(network), images, target))


@pytest.mark.parametrize("name", NAMES)
def test_explainer_is_hashable_and_printable(name):
    explainer, again = load_explainer(name), load_explainer(name)
    assert (hash(explainer), explainer, str(explainer)) == (hash(again), again, name)


def counted(declared, explainer, height, width):
    """Return the declared number of passes for the networks above."""
    known = {"channels": 8, "attention": False}  # channels of the last convolution
    passes = declared.passes
    if callable(passes) and (names := signature(passes).parameters):
        passes = partial(passes, **{key: known[key] for key in known if key in names})
    return replace(declared, passes=passes).passes_of(dict(explainer.options), height, width)
