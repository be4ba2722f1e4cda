"""No explainer and no metric changes what another computes: each gets copies, and what it leaves changed is refused."""

import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import saliency_bench as sb
from saliency_bench.composing import absolute
from saliency_bench.errors import UserError
from saliency_bench.explainer import ChangedError, as_explainer
from saliency_bench.explaining.map_provider import halving
from saliency_bench.scoring.inputs import MetricInputs
from saliency_bench.target import one_hot
from saliency_bench.utils.isolation import SETTINGS


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.drop, self.fc = nn.Dropout(0.1), nn.Linear(4, 3)

    def forward(self, images):
        return self.fc(self.drop(F.relu(self.layer1(images)).mean(dim=(2, 3))))


@pytest.fixture
def classifier():
    return sb.load_classifier(Small(), mean=0, std=1, labels=["a", "b", "c"])


IMAGES = torch.rand(2, 3, 6, 5, generator=torch.Generator().manual_seed(1))
TARGET = one_hot([0, 2], 3)


def inner(classifier):
    return classifier.model


def exchanged(classifier):
    weight = inner(classifier).layer1[0].weight.data
    weight.copy_(weight.flip(0))


def trained(classifier):
    classifier.train()
    classifier(IMAGES)


def normalised(classifier):
    norm = inner(classifier).layer1[1]
    F.batch_norm(torch.rand(2, 4, 3, 3), norm.running_mean, norm.running_var, training=True)


def autocast(classifier):
    torch.set_autocast_enabled("cpu", True)


def hooked_tensor(classifier):
    inner(classifier).fc.bias.requires_grad_().register_hook(lambda gradient: 2 * gradient)


def unhooked(classifier):
    inner(classifier).drop._forward_hooks.clear()


def guided(classifier):
    nn.ReLU.forward = lambda self, images: images.abs()


def patched(classifier):
    F.relu = torch.abs


def with_no_grad(classifier):
    with torch.no_grad():
        inner(classifier).fc.weight.mul_(2)


def view(classifier):
    inner(classifier).fc.bias.detach().numpy()[0] += 1


def softmax(classifier):
    torch.softmax = lambda *given, **named: torch.zeros(1)


def absolute_value(classifier):
    torch.Tensor.abs = lambda self: self


def moved(classifier):
    os.chdir("/")
    inner(classifier).fc.weight.data.add_(1)


FC = r"the weights of the model \(fc.weight\)"
SABOTEURS = {
    "in place": (with_no_grad, FC),
    "through data": (lambda c: inner(c).fc.weight.data.add_(1), FC),
    "through numpy": (view, r"weights of the model \(fc.bias\)"),
    "exchanged": (exchanged, r"weights of the model \(layer1.0.weight\)"),
    "other data": (lambda c: setattr(inner(c).fc.weight, "data", torch.zeros(3, 4)), FC),
    "other parameter": (lambda c: setattr(inner(c).fc, "weight", nn.Parameter(torch.zeros(3, 4))), FC),
    "train mode": (trained, r"weights of the model \(layer1.1.running_mean|num_batches_tracked\)"),
    "batch norm": (normalised, r"weights of the model \(layer1.1.running_mean\)"),
    "new buffer": (lambda c: inner(c).register_buffer("extra", torch.zeros(1)), r"weights of the model \(extra\)"),
    "forward hook": (
        lambda c: inner(c).layer1[0].register_forward_hook(lambda m, i, o: 0 * o), r"hooks of the model \(layer1.0\)"),
    "before forward": (
        lambda c: inner(c).fc.register_forward_pre_hook(lambda m, i: None), r"hooks of the model \(fc\)"),
    "backward hook": (
        lambda c: inner(c).fc.register_full_backward_hook(lambda m, i, o: None), r"hooks of the model \(fc\)"),
    "hook of a tensor": (hooked_tensor, r"hooks of the model \(fc\)"),
    "hook removed": (unhooked, r"hooks of the model \(drop\)"),
    "hook of all modules": (
        lambda c: nn.modules.module.register_module_forward_hook(lambda m, i, o: None), "hooks of all modules"),
    "module": (lambda c: setattr(inner(c), "drop", nn.Identity()), r"a module of the model \(drop\)"),
    "module inside": (lambda c: inner(c).layer1.__setitem__(2, nn.GELU()), r"a module of the model \(layer1.2\)"),
    "method": (lambda c: setattr(inner(c).fc, "forward", lambda x: x[:, :3]), r"method forward of the model \(fc\)"),
    "class": (guided, "method forward of the class ReLU"),
    "inner method": (
        lambda c: setattr(nn.Conv2d, "_conv_forward", lambda self, x, w, b: x),
        "method _conv_forward of the class Conv2d"),
    "inherited method": (
        lambda c: setattr(nn.Module, "_call_impl", lambda self, *x: x[0]), "method _call_impl of the class Module"),
    "added method": (lambda c: setattr(nn.Linear, "eval", lambda self: self), "method eval of the class Linear"),
    "function of torch": (softmax, "the functions of torch"),
    "function of linear algebra": (lambda c: setattr(torch.linalg, "inv", abs), "the functions of torch"),
    "method of tensors": (absolute_value, "the methods of tensors"),
    "own method of tensors": (lambda c: setattr(torch.Tensor, "norm", lambda self: self), "the methods of tensors"),
    "oneDNN": (lambda c: setattr(torch.backends.mkldnn, "enabled", False), "enabled of torch.backends.mkldnn"),
    "attention": (lambda c: torch.backends.cuda.enable_math_sdp(False), "kernels of torch's attention"),
    "function": (patched, "functions of torch.nn.functional"),
    "probability": (lambda c: setattr(inner(c).drop, "p", 0.9), r"a setting of the model \(drop.p\)"),
    "stride": (lambda c: setattr(inner(c).layer1[0], "stride", (2, 2)), r"a setting of the model \(layer1.0.stride\)"),
    "layer": (lambda c: setattr(c, "layer", "layer1"), r"a setting of the model \(layer\)"),
    "labels": (lambda c: c.labels.reverse(), r"a setting of the model \(labels\)"),
    "mean": (lambda c: c.mean.add_(1), r"weights of the model \(mean\)"),
    "dtype": (lambda c: torch.set_default_dtype(torch.float64), "the default dtype of torch"),
    "device": (lambda c: torch.set_default_device("meta"), "the default device of torch"),
    "deterministic": (lambda c: torch.use_deterministic_algorithms(True), "the deterministic mode of torch"),
    "autocast": (autocast, "the autocast of torch"),
    "threads": (lambda c: torch.set_num_threads(torch.get_num_threads() + 1), "the number of threads of torch"),
    "cudnn": (lambda c: setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark), "cuDNN"),
    "numpy": (lambda c: np.seterr(all="raise"), "the error handling of numpy"),
}  # fmt: skip
LASTING = ("weights", "a module", "a setting", "method forward of the model")  # which a run cannot set back


@pytest.fixture
def put_back():
    """Whatever happens, the next test starts with torch as it was."""
    settings = {name: get() for name, (get, _) in SETTINGS.items()}
    methods = {kind: dict(vars(kind)) for kind in (nn.ReLU, nn.Conv2d, nn.Linear, nn.Module)}
    yield
    for kind, before in methods.items():
        for name in vars(kind).keys() - before.keys():
            delattr(kind, name)
        for name, value in before.items():
            if vars(kind)[name] is not value:
                setattr(kind, name, value)
    nn.modules.module._global_forward_hooks.clear()
    for name, (get, put) in SETTINGS.items():
        if get() != settings[name]:
            put(settings[name])


@pytest.mark.usefixtures("put_back")
@pytest.mark.parametrize(("sabotage", "words"), SABOTEURS.values(), ids=SABOTEURS)
@pytest.mark.parametrize("raises", [False, True])
def test_what_is_left_changed_is_refused_by_name(sabotage, words, raises, classifier):
    def saboteur(classifier, images, target):
        sabotage(classifier)
        if raises:
            raise ZeroDivisionError("afterwards")
        return images.detach().mean(dim=1)

    inner(classifier).drop.register_forward_hook(lambda module, inputs, output: output * 1)
    expected = sb.load_explainer("gradient")(classifier, IMAGES, TARGET)
    logits = classifier(IMAGES)
    with pytest.raises(ChangedError, match=rf"explainer saboteur changed .*{words}") as caught:
        as_explainer(saboteur)(classifier, IMAGES, TARGET)
    assert "\n" not in str(caught.value)
    if not any(what in words for what in LASTING) and words != "hooks of the model (fc)":
        assert torch.equal(classifier(IMAGES), logits)
        assert torch.equal(sb.load_explainer("gradient")(classifier, IMAGES, TARGET), expected)


def in_place(classifier, images, target):
    """What it gets, it may change."""
    images.mul_(0)
    target.zero_()
    images.data.add_(1)
    return images.mean(dim=1)


def switching(classifier, images, target):
    """Modes, gradients, autograd and global generators are each explainer's own."""
    classifier.model.drop.train()
    for parameter in classifier.parameters():
        parameter.requires_grad_()
    classifier(images).sum().backward()
    torch.set_grad_enabled(False)
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    return images.mean(dim=1)


def wandering(classifier, images, target):
    os.chdir("/")
    return images.mean(dim=1)


@pytest.mark.parametrize("own", [in_place, switching, wandering])
def test_what_an_explainer_may_do_is_not_seen_by_others(own, classifier):
    images, target, weight = IMAGES.clone(), TARGET.clone(), inner(classifier).fc.weight
    weight.grad = torch.ones_like(weight)
    flags, gradient = [parameter.requires_grad for parameter in classifier.parameters()], weight.grad
    expected = sb.load_explainer("gradient")(classifier, images, target)
    folder = Path.cwd()
    drawn = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    as_explainer(own)(classifier, images, target)
    assert torch.equal(images, IMAGES)
    assert torch.equal(target, TARGET)
    assert torch.is_grad_enabled()
    assert Path.cwd() == folder
    assert not classifier.training
    assert not any(module.training for module in classifier.modules())
    assert [parameter.requires_grad for parameter in classifier.parameters()] == flags
    assert weight.grad is gradient
    assert torch.equal(gradient, torch.ones_like(weight)) or own is switching
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert (np.random.get_state()[1] == drawn[1]).all()
    assert random.getstate() == drawn[2]
    assert torch.equal(sb.load_explainer("gradient")(classifier, images, target), expected)


def test_a_map_that_its_function_goes_on_writing_to_is_a_copy(classifier):
    kept = torch.zeros(2, 6, 5)

    def reusing(classifier, images, target):
        return kept.add_(1)

    first = as_explainer(reusing)(classifier, IMAGES, TARGET)
    as_explainer(reusing)(classifier, IMAGES, TARGET)
    assert (first == 1).all()


def test_a_model_that_changes_itself_is_named_and_not_the_explainer():
    class Counting(Small):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, images):
            self.calls += 1
            return super().forward(images)

    classifier = sb.load_classifier(Counting(), mean=0, std=1)
    with pytest.raises(ChangedError, match=r"weights of the model \(calls\) changed while explainer gradient ran"):
        sb.load_explainer("gradient")(classifier, IMAGES, TARGET)


def started(out, shapes, resnet, explainers, metrics=("saliency_miou", "saliency_insertion:steps=4"), **options):
    return sb.run(dataset=shapes, model=resnet, explainers=explainers, metrics=list(metrics), out=out, limit=12,
                  batch_size=8, device="cpu", progress=False, **options)  # fmt: skip


def rows_of(folder, name):
    return [row for row in pq.read_table(folder / "records.parquet").to_pylist() if row["explainer"] == name]


def test_the_others_of_a_run_get_the_pictures_as_they_are(shapes, resnet, tmp_path):
    alone = started(tmp_path / "alone", shapes, resnet, ["gradcam"])
    both = started(tmp_path / "both", shapes, resnet, [in_place, "gradcam"])
    assert rows_of(both.folder, "gradcam") == rows_of(alone.folder, "gradcam")


class Late:
    """Harmless on the first chunk; then it doubles a weight where torch does not count it."""

    calls = 0

    def __call__(self, classifier, images, target):
        Late.calls += 1
        if Late.calls == 2:
            next(classifier.parameters()).data.mul_(2)
        return images.mean(dim=1)


def test_a_run_stops_and_the_others_are_as_without_the_refused(shapes, resnet, tmp_path):
    Late.calls = 0
    with pytest.raises(UserError, match=r"explainer Late changed the weights of the model \(resnet.*\)"):
        started(tmp_path / "run", shapes, resnet, [Late(), "gradcam", "random"])
    assert not (tmp_path / "run" / "records.parquet").exists()
    assert not (tmp_path / "run" / "summary.json").exists()
    again = started(tmp_path / "run", shapes, resnet, ["gradcam", "random"])
    alone = started(tmp_path / "alone", shapes, resnet, ["gradcam", "random"])
    for name in ("records.parquet", "predictions.parquet"):
        assert (again.folder / name).read_bytes() == (alone.folder / name).read_bytes()


def test_one_picture_and_a_metric_outside_of_a_run_are_guarded_as_well(classifier, shapes):
    def saboteur(classifier, images, target):
        classifier.mean.data.add_(1)
        return images.mean(dim=1)

    from saliency_bench.scoring.samples import score_samples

    picture = sb.load_dataset(shapes)[0]["image"]
    with pytest.raises(UserError, match="explainer saboteur changed the weights"):
        sb.explain(picture, classifier, saboteur)
    with pytest.raises(UserError, match="explainer saboteur changed the weights"):
        score_samples("saliency_deletion", IMAGES, classifier, saboteur)
    with pytest.raises(UserError, match="explainer saboteur changed the weights"):
        score_samples("saliency_max_sensitivity", IMAGES, classifier, saboteur, draws=2)
    with pytest.raises(UserError, match="explainer saboteur changed the weights"):
        absolute(saboteur)(classifier, IMAGES, TARGET)
    with pytest.raises(UserError, match="explainer saboteur changed the weights"):
        halving(as_explainer(saboteur), classifier, IMAGES, TARGET, [0, 1])


def of_everything(maps, masks, curves, classifier, images, target, logits, labels, seeds):
    for array in (maps, masks, labels):
        array[:] = 0
    for tensor in (images, target, logits):
        tensor.data.zero_()
    curves.images.zero_()
    curves.maps[:] = 0
    seeds.clear()
    return np.zeros(len(masks))


def hooking(maps, masks, classifier):
    classifier.register_forward_hook(lambda module, inputs, output: 0 * output)
    return np.zeros(len(masks))


def own_metric(function, *needs):
    return replace(sb.load_metric("saliency_miou"), name=f"saliency_{function.__name__}", function=function,
                   needs=needs, options=())  # fmt: skip


OF_ALL = ("maps", "masks", "curves", "classifier", "images", "target", "logits", "labels", "seeds")


def inputs_of(classifier):
    return MetricInputs(
        classifier, sb.load_explainer("gradient"), IMAGES.clone(), TARGET.clone(), classifier(IMAGES).detach(),
        lambda sample, purpose: sample, maps=torch.rand(2, 6, 5, generator=torch.Generator().manual_seed(2)),
        masks=np.eye(6, 5, dtype=bool)[None].repeat(2, axis=0), unusable=[None, None],
        labels=np.eye(3, dtype=bool)[[0, 2]],
    )  # fmt: skip


def test_a_metric_changes_nothing_for_the_next(classifier):
    metrics = [sb.load_metric(name) for name in ("saliency_miou", "saliency_deletion", "saliency_class_sensitivity")]
    alone = inputs_of(classifier)
    expected = [alone.score(metric).values for metric in metrics]
    for before in (True, False):
        inputs = inputs_of(classifier)
        if not before:
            assert [inputs.score(metric).values for metric in metrics] == expected
        assert inputs.score(own_metric(of_everything, *OF_ALL)).values == [0, 0]
        assert [inputs.score(metric).values for metric in metrics] == expected


def test_what_a_metric_leaves_changed_is_refused_by_name(classifier):
    logits = classifier(IMAGES)
    with pytest.raises(ChangedError, match=r"metric saliency_hooking changed the hooks of the model"):
        inputs_of(classifier).score(own_metric(hooking, "maps", "masks", "classifier"))
    assert torch.equal(classifier(IMAGES), logits)


class Wandering:
    """Changes the working directory, and stays there for a while."""

    def __call__(self, classifier, images, target):
        os.chdir("/")
        return images.mean(dim=1)


def test_a_relative_folder_stays_where_it_was_whatever_an_explainer_does(shapes, resnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = started("run", shapes, resnet, [Wandering()])
    assert done.folder == tmp_path / "run"
    assert Path.cwd() == tmp_path
    assert (tmp_path / "run" / "report.html").exists()
    monkeypatch.chdir("/")
    assert len(done.records()) == 24


METRIC = """
PAPER = "none"
HIGHER_IS_BETTER = True
RANGE = (0.0, 1.0)
VERSION = 1


def saliency_sly(maps, classifier):
    parameter = next(classifier.parameters())
    parameter.data.add_(1)
    return maps.mean(axis=(1, 2)) * 0
"""


def test_a_metric_folder_that_changes_weights_behind_the_back_of_torch_is_refused(tmp_path, monkeypatch, classifier):
    """As a folder in a clone, whose module is called like those of the package."""
    import saliency_bench.metrics as plugins

    (tmp_path / "saliency_sly").mkdir()
    (tmp_path / "saliency_sly" / "score.py").write_text(METRIC)
    (tmp_path / "saliency_sly" / "saliency_sly.py").write_text("")
    monkeypatch.setattr(plugins, "__path__", [*plugins.__path__, str(tmp_path)])
    monkeypatch.setattr(plugins.__spec__, "submodule_search_locations", plugins.__path__)
    metric = sb.load_metric("saliency_sly")
    assert metric.function.__module__ == "saliency_bench.metrics.saliency_sly.score"
    with pytest.raises(ChangedError, match=r"the weights of the model.*metric saliency_sly"):
        inputs_of(classifier).score(metric)


class Picky(nn.Module):
    """Raises for pictures whose first pixel is one of these; `error` is made at the end, as by a broken layer."""

    def __init__(self, error=RuntimeError):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head, self.error, self.bad = nn.Linear(8, 8), error, []

    def forward(self, images):
        if any(torch.equal(image[:, 0, 0], bad) for image in images for bad in self.bad):
            raise self.error("no such picture, please")
        return self.head(self.body(images))


@pytest.mark.sample(1)
@pytest.mark.parametrize("error", [RuntimeError, ZeroDivisionError, ValueError, KeyError, AssertionError])
def test_samples_for_which_the_model_raises_are_left_out_and_no_others(error, shapes, tmp_path):
    model = Picky(error)
    classifier = sb.load_classifier(model, mean=0, std=1, size=(32, 32), labels=None)
    explainers = ["gradient", "random"]
    whole = started(tmp_path / "whole", shapes, classifier, explainers)
    ids = pq.read_table(whole.folder / "predictions.parquet")["image_id"].to_pylist()
    first, ninth = ids[0], ids[9]
    bad = [row for row in sb.load_dataset(shapes) if row["image_id"] in (first, ninth)]
    model.bad = list(classifier.prepare(bad).images[:, :, 0, 0])
    result = started(tmp_path / "some", shapes, classifier, explainers)
    for name in explainers:
        pairs = zip(rows_of(result.folder, name), rows_of(whole.folder, name), strict=True)
        for now, before in pairs:
            if now["image_id"] in (first, ninth):
                assert now["value"] is None
                assert now["reason"].startswith("the model raised")
                assert "no such picture, please" in now["reason"]
            elif name == "random" and now["metric"] == "saliency_miou":
                assert now == before
            else:
                assert now["value"] == pytest.approx(before["value"], abs=1e-5)
    assert {cell["n"] for cell in result.summary["cells"]} == {10}
    assert sum(result.summary["faults"].values()) == 2 * 4
    assert result.summary["model"]["accuracy"]["n"] == 10
    before = (result.folder / "records.parquet").read_bytes()
    assert (started(result.folder, shapes, classifier, explainers).folder / "records.parquet").read_bytes() == before
    with pytest.raises(UserError, match=rf"{first}.*no such picture"):
        started(tmp_path / "strict", shapes, classifier, explainers, strict=True)


def test_a_model_that_raises_for_a_picture_that_a_metric_makes_leaves_the_samples_out(shapes, tmp_path):
    model = Picky()
    model.bad = [torch.zeros(3)]  # black comes with insertion
    classifier = sb.load_classifier(model, mean=0, std=1, size=(32, 32), labels=None)
    result = started(tmp_path / "run", shapes, classifier, ["random"])
    cells = {cell["metric"]: cell for cell in result.summary["cells"]}
    assert cells["saliency_miou"]["n"] == 12
    assert cells["saliency_insertion"]["left_out"] == {"the metric raised RuntimeError: no such picture, please": 12}


def test_a_model_that_raises_for_every_picture_is_not_run(shapes, tmp_path):
    model = Picky(ValueError)
    model.forward = lambda images: 1 / 0
    with pytest.raises(
        UserError, match="module:Picky raised ZeroDivisionError: division by zero for each of the first 8"
    ):
        started(tmp_path / "run", shapes, sb.load_classifier(model, mean=0, std=1, size=(32, 32)), ["random"])
    assert not (tmp_path / "run").exists()
