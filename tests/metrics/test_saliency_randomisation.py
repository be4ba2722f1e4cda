"""Compare saliency_randomisation with values computed by hand, simple loops, Quantus and scikit-image.

The network must not change.
"""

import copy
import math

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.stats import spearmanr
from skimage.metrics import structural_similarity
from small_networks import gradient
from torch import nn

import saliency_bench as sb
from saliency_bench.bound_explainer import as_explainer
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.maps.randomised import cascade, layer_names
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.metrics.saliency_randomisation.score import rank_correlation
from saliency_bench.target_weights import one_hot

H, W, K = 12, 10, 3


class Small(nn.Module):
    """Network of two convolutions with a normalisation, and a linear layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 5, 3, padding=1, bias=False)
        self.head = nn.Linear(5, K)
        self.norm.running_mean.normal_()
        self.norm.running_var.fill_(2)
        for parameter in self.norm.parameters():
            nn.init.normal_(parameter)

    def forward(self, images):
        features = torch.relu(self.second(torch.relu(self.norm(self.first(images)))))
        return self.head(features.mean(dim=(2, 3)))


def edges(classifier, images, target):
    """Return a map that does not depend on the weights."""
    return (images - images.roll(1, dims=3)).abs().sum(dim=1)


@pytest.fixture
def made():
    torch.manual_seed(1)
    return sb.load_classifier(Small(), mean=0.5, std=0.25, device="cpu"), torch.rand(3, 3, H, W)


def scored(made, explainer=gradient, **options):
    classifier, images = made
    return score_samples("saliency_randomisation", images, classifier, explainer, target=[0, 1, 2], seed=7, **options)


def with_parts(made, explainer=gradient, **options):
    classifier, images = made
    explain, target = MapProvider(as_explainer(explainer), classifier, [0, 1, 2]), one_hot([0, 1, 2], K)
    metric = load_metric("saliency_randomisation", **options)
    return metric.with_parts(explain(images, target), images, target, classifier, explain, [0, 1, 2], 7)


def test_layers_with_weights_are_listed_from_logits_down(made):
    assert layer_names(made[0]) == ["head", "second", "first"]
    for options, names in (({}, "head second first"), ({"layers": 2}, "head first"), ({"layers": 1}, "first"),
                           ({"layers": 9}, "head second first"), ({"form": "complexity"}, "first")):  # fmt: skip
        assert load_metric("saliency_randomisation", **options).parts(made[0]) == tuple(names.split())


def test_cascade_randomises_one_more_layer_per_step(made):
    classifier, _ = made
    before = {key: value.clone() for key, value in classifier.state_dict().items()}
    lost = [["head"], ["head", "second"], ["head", "second", "first", "norm"]]
    for (_, randomised), gone in zip(cascade(classifier, 7), lost, strict=True):
        for key, value in randomised.state_dict().items():
            own, same = key.removeprefix("model.").split(".")[0], torch.equal(value, before[key])
            assert same == (own not in gone or key.endswith("num_batches_tracked")), key
    assert all(torch.equal(before[key], value) for key, value in classifier.state_dict().items())


def test_weights_follow_torch_initialisation_and_seed(made):
    *_, (_, randomised) = cascade(made[0], 7)
    network = randomised.model
    for layer, inputs in ((network.first, 27), (network.second, 36), (network.head, 5)):
        for parameter in layer.parameters():
            assert 0 < parameter.abs().max() <= inputs**-0.5
    assert network.second.weight.std().item() == pytest.approx(math.sqrt(1 / 3 / 36), rel=0.1)
    assert (network.norm.weight == 1).all()
    assert (network.norm.bias == 0).all()
    assert (network.norm.running_mean == 0).all()
    *_, (_, again) = cascade(made[0], 7)
    *_, (_, other) = cascade(made[0], 8)
    assert torch.equal(again.model.first.weight, network.first.weight)
    assert not torch.equal(other.model.first.weight, network.first.weight)


def test_cascade_randomises_all_vision_transformer_weights():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
                                    image_size=16, patch_size=8, num_labels=3)  # fmt: skip
    classifier = sb.load_classifier(transformers.ViTForImageClassification(config), mean=0.5, std=0.5, device="cpu")
    before = {key: value.clone() for key, value in classifier.named_parameters()}
    *_, (_, randomised) = cascade(classifier, 0)
    kept = [
        key for key, value in randomised.named_parameters()
        if torch.equal(value, before[key]) and not ("layernorm" in key or key.endswith(("bias", "layer_norm.weight")))
    ]  # fmt: skip
    assert kept == []
    assert randomised(torch.rand(1, 3, 16, 16)).isfinite().all()


def literal_entropy(values):
    low, high = values.min(), values.max()
    counts = [0] * 100
    for value in values.ravel():
        counts[min(99, int((value - low) / (high - low) * 100))] += 1
    return -sum(n / values.size * math.log(n / values.size) for n in counts if n)


def absolute(values):
    """Return the absolute values scaled to [0, 1]."""
    values = np.abs(values)
    return (values - values.min()) / (values.max() - values.min())


@pytest.mark.parametrize("form", ["ssim", "spearman", "complexity"])
def test_scores_of_layers_match_literal_loop(made, form):
    classifier, images = made
    target = one_hot([0, 1, 2], K)
    scores, parts = with_parts(made, form=form)
    before = as_explainer(gradient)(classifier, images, target).double().numpy()
    stages = [as_explainer(gradient)(copy.deepcopy(one), images, target).double().numpy()
              for _, one in cascade(classifier, 7)]  # fmt: skip
    for i in range(3):
        if form == "complexity":
            old, new = literal_entropy(before[i]), literal_entropy(stages[-1][i])
            expected = [(new - old) / old]
        elif form == "ssim":
            old = absolute(before[i])
            expected = [structural_similarity(old, absolute(after[i]), data_range=1) for after in stages]
        else:
            expected = [spearmanr(*(np.abs(maps[i]).ravel() for maps in (before, after))).statistic for after in stages]
        np.testing.assert_allclose(parts[i], expected, atol=1e-7)
        assert scores[i] == pytest.approx(np.mean(parts[i]))


class Drawn(nn.Linear):
    """Linear layer that Quantus re-initialises with the same weights as this package."""

    own: dict

    def reset_parameters(self):
        if hasattr(self, "own"):
            self.load_state_dict(self.own)
        else:
            super().reset_parameters()


@pytest.mark.slow
def test_scores_match_quantus_mprt_with_same_weights():
    quantus = pytest.importorskip("quantus")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), Drawn(3 * 30, 8), nn.ReLU(), Drawn(8, 6), nn.ReLU(), Drawn(6, K)).eval()
    classifier = sb.load_classifier(network, mean=0, std=1, device="cpu")
    images, labels = torch.rand(3, 3, 5, 6), [0, 1, 2]
    *_, (_, drawn) = cascade(classifier, 7)
    for layer, random in zip(network, drawn.model, strict=True):
        if isinstance(layer, Drawn):
            layer.own = copy.deepcopy(random.state_dict())

    def explain(model, inputs, targets, **_):
        maps = gradient(model, torch.as_tensor(inputs), one_hot(torch.as_tensor(targets), K))
        return maps.numpy()[:, None]

    metric = quantus.MPRT(similarity_func=quantus.similarity_func.correlation_spearman, disable_warnings=True, abs=True,
                          normalise=False, return_average_correlation=False, layer_order="top_down")  # fmt: skip
    found = metric(model=network, x_batch=images.numpy(), y_batch=np.array(labels), explain_func=explain)
    target = one_hot(labels, K)
    provider = MapProvider(as_explainer(gradient), classifier, [0, 1, 2])
    ours = load_metric("saliency_randomisation", form="spearman")
    inputs = provider(images, target), images, target, classifier, provider, [0, 1, 2], 7
    assert ours.parts(classifier) == ("5", "3", "1")
    for column, name in enumerate(ours.parts(classifier)):
        np.testing.assert_allclose(ours.with_parts(*inputs)[1][:, column], found[name], atol=1e-6)
    metric = quantus.EfficientMPRT(disable_warnings=True, normalise=False, return_aggregate=False)
    found = metric(model=network, x_batch=images.numpy(), y_batch=np.array(labels), explain_func=explain)
    np.testing.assert_allclose(load_metric("saliency_randomisation", form="complexity")(*inputs), found, atol=1e-9)


def test_scores_match_docstring_example(made):
    before, after = torch.zeros(1, 4, 4), torch.zeros(1, 4, 4)
    before[:, 0], after[:, :2] = -1, 1
    classifier, images = made[0], torch.rand(1, 3, 4, 4)
    weights = classifier.model.first.weight.clone()

    def explainer(classifier, images, target):
        return before if torch.equal(classifier.model.first.weight, weights) else after

    def score(**options):
        return score_samples("saliency_randomisation", images, classifier, explainer, layers=1, **options)[0]

    assert score(form="spearman") == pytest.approx(1 / math.sqrt(3))
    assert score(form="complexity") == pytest.approx(math.log(2) / (math.log(4) - 0.75 * math.log(3)) - 1)
    assert score(form="complexity") == pytest.approx(0.2326, abs=1e-4)


@pytest.mark.parametrize("peak", [1e2, 1e4, 1e8])
def test_rank_correlation_is_unaffected_by_peak_height(peak):
    one = np.random.default_rng(0).random((1, 9, 8)).astype(np.float32)
    two = one + 0.1 * np.random.default_rng(1).random((1, 9, 8)).astype(np.float32)
    one[0, 4, 4] = two[0, 4, 4] = peak
    expected = spearmanr(one.ravel(), two.ravel()).statistic
    assert 0.9 < expected < 1
    assert rank_correlation(one, two)[0] == pytest.approx(expected, abs=1e-12)


def test_maps_with_ties_are_marked_for_spearman_only(made):
    def tied(classifier, images, target):
        maps = gradient(classifier, images, target)
        maps[1, :3] = maps[1, 0, 0]  # 29 of 120 pixels
        maps[2, 0, :] = -maps[2, 1, :]  # 10 of 120
        return maps

    inputs = {"maps": tied(*made, one_hot([0, 1, 2], K)).numpy(), "explain": MapProvider(tied, made[0], [0, 1, 2])}
    for form in ("spearman", "ssim", "complexity"):
        metric = load_metric("saliency_randomisation", form=form)
        marks = metric.marks(**dict.fromkeys(metric.inputs) | inputs).tolist()
        assert marks == [False, form == "spearman", False]


def test_weight_independent_maps_score_worst_and_flat_maps_nan(made):
    for form, worst in {"ssim": 1, "spearman": 1, "complexity": 0}.items():
        assert scored(made, edges, form=form).tolist() == pytest.approx([worst] * 3)
    assert scored(made).max() < 0.9
    assert np.isnan(scored(made, lambda classifier, images, target: images.new_ones(len(images), H, W))).all()


def test_flat_map_after_randomisation_has_zero_similarity(made):
    weights = made[0].model.head.weight.clone()

    def explainer(classifier, images, target):
        maps = images.mean(dim=1)
        return maps if torch.equal(classifier.model.head.weight, weights) else torch.zeros_like(maps)

    assert scored(made, explainer, form="spearman").tolist() == [0, 0, 0]


def test_smooth_option_averages_noisy_copies(made):
    from saliency_bench.compute.maps.composing import smoothed

    classifier, images = made
    target, explainer = one_hot([0, 1, 2], K), smoothed(gradient, draws=3, sigma=0.1)
    before = explainer(classifier, images, target, seeds=[4, 5, 6]).double().numpy()
    *_, (_, randomised) = cascade(classifier, 7)
    after = explainer(randomised, images, target, seeds=[4, 5, 6]).double().numpy()
    options = {"seeds": [4, 5, 6], "smooth": 3, "layers": 1, "form": "spearman"}
    np.testing.assert_allclose(scored(made, **options), rank_correlation(before, after), atol=1e-3)
    assert not np.allclose(scored(made, **options | {"smooth": 0}), rank_correlation(before, after), atol=1e-3)


def test_network_is_unchanged_and_passes_are_counted(made):
    classifier, _ = made
    before, passes = copy.deepcopy(classifier.state_dict()), classifier.passes
    scored(made)
    assert all(torch.equal(before[key], value) for key, value in classifier.state_dict().items())
    assert classifier.passes - passes == 3 * (1 + 1 + 3)  # predictions, maps, and maps of three layers
    passes = classifier.passes
    scored(made, smooth=2, layers=2)
    assert classifier.passes - passes == 3 * (1 + 1 + 2 * (1 + 2))


def test_run_seed_determines_random_weights(made):
    def score(seed, **given):
        return score_samples("saliency_randomisation", *reversed(made), gradient, seed=seed, image_ids=list("abc"),
                             **given).tolist()  # fmt: skip

    assert score(1) == score(1) != score(2)
    assert score(1) == pytest.approx(score(1, batch_size=1), rel=1e-5)


class Locked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, images):
        return self.linear(images.mean(dim=(2, 3)))

    def __deepcopy__(self, memo):
        raise RuntimeError("bound to a file")


@pytest.mark.parametrize(("network", "line"), [
    (Locked(), "cannot be copied.*bound to a file"), (nn.Flatten(), "has no weights")
])  # fmt: skip
def test_network_that_cannot_be_randomised_is_rejected(network, line):
    classifier = sb.load_classifier(network, mean=0, std=1, device="cpu")
    refused(line, score_samples, "saliency_randomisation", torch.rand(1, 3, 8, 8), classifier, edges)


def test_direction_and_range_follow_the_form():
    metrics = {form: load_metric("saliency_randomisation", form=form) for form in ("ssim", "spearman", "complexity")}
    assert [metric.higher_is_better for metric in metrics.values()] == [False, False, True]
    assert [metric.range for metric in metrics.values()] == [(-1, 1), (-1, 1), (-1, float("inf"))]
