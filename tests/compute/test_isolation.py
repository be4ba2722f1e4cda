"""Test that explainers and metrics do not affect each other: each gets copies, and a run detects a changed network."""

import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from refusals import refused
from torch import nn
from torch.nn import functional as F

import saliency_bench as sb
from saliency_bench.bound_explainer import as_explainer
from saliency_bench.compute.explain import depends_on_batch, differ
from saliency_bench.compute.probe import SETTINGS, Probe
from saliency_bench.compute.scoring.inputs import MetricInputs
from saliency_bench.errors import UserError
from saliency_bench.target_weights import one_hot
from saliency_bench.types import Batch
from saliency_bench.utils.seeds import seed_of
from saliency_bench.utils.untouched import reset_generators, untouched


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.drop, self.fc, self.scale = nn.Dropout(0.1), nn.Linear(4, 3), 1.0

    def forward(self, images):
        return self.fc(self.drop(F.relu(self.layer1(self.scale * images)).mean(dim=(2, 3))))


@pytest.fixture
def classifier():
    return sb.load_classifier(Small(), mean=0, std=1, labels=["a", "b", "c"])


IMAGES = torch.rand(2, 3, 6, 5, generator=torch.Generator().manual_seed(1))
TARGET = one_hot([0, 2], 3)


def inner(classifier):
    return classifier.model


def normalised(classifier):
    norm = inner(classifier).layer1[1]
    F.batch_norm(torch.rand(2, 4, 3, 3), norm.running_mean, norm.running_var, training=True)


def with_no_grad(classifier):
    with torch.no_grad():
        inner(classifier).fc.weight.mul_(2)


def doubles_gradient(module, inputs, output):
    if output.requires_grad:
        output.register_hook(lambda gradient: 2 * gradient)


SABOTEURS = {
    "in place": with_no_grad,
    "through data": lambda c: inner(c).fc.weight.data.add_(1),
    "through numpy": lambda c: np.add(bias := inner(c).fc.bias.detach().numpy(), 1, out=bias),
    "exchanged": lambda c: inner(c).layer1[0].weight.data.copy_(inner(c).layer1[0].weight.data.flip(0)),
    "other data": lambda c: setattr(inner(c).fc.weight, "data", torch.zeros(3, 4)),
    "other parameter": lambda c: setattr(inner(c).fc, "weight", nn.Parameter(torch.zeros(3, 4))),
    "train mode": lambda c: c.train()(IMAGES),
    "batch norm": normalised,
    "plain attribute": lambda c: setattr(inner(c), "scale", 0.1),
    "forward hook": lambda c: inner(c).layer1[0].register_forward_hook(lambda m, i, o: 0 * o),
    "backward hook": lambda c: inner(c).fc.register_full_backward_hook(lambda m, i, o: tuple(2 * x for x in i)),
    "gradient of an output": lambda c: inner(c).layer1[0].register_forward_hook(doubles_gradient),
    "module": lambda c: setattr(inner(c), "drop", nn.Flatten(0)),
    "module inside": lambda c: inner(c).layer1.__setitem__(2, nn.GELU()),
    "method": lambda c: setattr(inner(c).fc, "forward", lambda x: x[:, :3]),
    "stride": lambda c: setattr(inner(c).layer1[0], "stride", (2, 2)),
    "mean": lambda c: c.mean.add_(1),
    "precision": lambda c: setattr(c, "precision", "bf16"),
    "dtype": lambda c: torch.set_default_dtype(torch.float64),
    "device": lambda c: torch.set_default_device("meta"),
    "deterministic": lambda c: torch.use_deterministic_algorithms(True),
    "threads": lambda c: torch.set_num_threads(torch.get_num_threads() + 1),
}
# Reloading the network does not undo changes outside the network.
LASTING = {
    "class": lambda c: setattr(nn.ReLU, "forward", lambda self, images: images.abs()),
    "function": lambda c: setattr(F, "relu", lambda images, inplace=False: images.abs()),
}


@pytest.fixture
def put_back():
    """Restore the settings of torch after a test."""
    settings, relu = {name: get() for name, (get, _) in SETTINGS.items()}, F.relu
    methods = {kind: dict(vars(kind)) for kind in (nn.ReLU, nn.Conv2d, nn.Linear, nn.Module)}
    yield
    for kind, before in methods.items():
        for name in vars(kind).keys() - before.keys():
            delattr(kind, name)
        for name, value in before.items():
            if vars(kind)[name] is not value:
                setattr(kind, name, value)
    F.relu = relu
    for name, (get, put) in SETTINGS.items():
        if get() != settings[name]:
            put(settings[name])


@pytest.mark.usefixtures("put_back")
@pytest.mark.parametrize("sabotage", SABOTEURS.values(), ids=SABOTEURS)
def test_probe_detects_and_restores_changed_network(sabotage, classifier):
    expected, logits = sb.load_explainer("gradient")(classifier, IMAGES, TARGET), classifier(IMAGES)
    passes, state = classifier.passes, torch.get_rng_state()
    probe = Probe(classifier, IMAGES)
    assert not probe.differs()
    assert classifier.passes == passes
    assert torch.equal(torch.get_rng_state(), state)
    sabotage(classifier)
    assert probe.differs()
    probe.restore("somebody")
    assert not probe.differs()
    assert torch.equal(classifier(IMAGES), logits)
    assert torch.equal(sb.load_explainer("gradient")(classifier, IMAGES, TARGET), expected)
    assert classifier.passes >= passes


def test_probe_detects_changed_gradients_of_large_images(classifier):
    """The tolerance must not grow with the number of pixels."""
    probe = Probe(classifier, F.interpolate(IMAGES, size=(128, 128)))
    SABOTEURS["gradient of an output"](classifier)
    assert probe.differs()


@pytest.mark.usefixtures("put_back")
@pytest.mark.parametrize("sabotage", LASTING.values(), ids=LASTING)
def test_probe_rejects_changes_of_torch_itself(sabotage, classifier):
    probe = Probe(classifier, IMAGES)
    sabotage(classifier)
    assert probe.differs()
    refused("explainer patching changed the output of module:Small", probe.restore, "explainer patching")


def test_probe_rejects_changed_uncopyable_network(classifier):
    inner(classifier).held = (letter for letter in "ab")
    probe = Probe(classifier, IMAGES)
    with_no_grad(classifier)
    assert probe.differs()
    refused("explainer x changed the network module:Small, which cannot be copied", probe.restore, "explainer x")


def test_probe_reports_nondeterministic_network(capsys):
    class Counting(Small):
        calls = 0

        def forward(self, images):
            self.calls += 1
            return super().forward(images) * self.calls

    probe = Probe(sb.load_classifier(Counting(), mean=0, std=1), IMAGES)
    assert "returns different logits for the same image at each call" in capsys.readouterr().err
    assert not probe.differs()


def test_differ_detects_maps_that_depend_on_batch():
    maps = torch.rand(4, 5, 5, generator=torch.Generator().manual_seed(3))
    by_little, far = torch.ones(4, 1, 1), torch.ones(4, 1, 1)
    by_little[0], far[0] = 1.004, 1.5  # a ReLU whose input is zero up to the last bits; use another image
    changed = (maps, maps * (1 + 1e-5), maps * by_little, maps - maps.mean(), maps * far)
    assert [differ(other, maps) for other in changed] == [False, False, False, True, True]


def in_place(classifier, images, target):
    """Explainer that changes its arguments in place, which is allowed."""
    images.mul_(0)
    target.zero_()
    images.data.add_(1)
    return images.mean(dim=1)


def switching(classifier, images, target):
    """Explainer that changes modes, gradients, autograd and global generators, which is allowed."""
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
def test_explainer_side_effects_are_undone(own, classifier):
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
    assert not any(module.training for module in classifier.modules())
    assert [parameter.requires_grad for parameter in classifier.parameters()] == flags
    assert weight.grad is gradient
    assert torch.equal(gradient, torch.ones_like(weight)) or own is switching
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert (np.random.get_state()[1] == drawn[1]).all()
    assert random.getstate() == drawn[2]
    assert torch.equal(sb.load_explainer("gradient")(classifier, images, target), expected)


def test_checks_of_network_leave_other_gpus_alone(classifier, shapes, resnet, tmp_path, monkeypatch):
    """Fail if a check seeds all GPUs, because only the generators of the network's own devices are restored."""
    expected = torch.rand(3, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("another GPU was seeded"))
    with untouched(classifier):
        reset_generators(classifier)
        assert torch.equal(torch.rand(3), expected)
    for explainers in (["gradcam"], ["gradcam", "gradient"]):
        sb.run(dataset=str(shapes), model=str(resnet), explainers=explainers, metrics=["saliency_miou"], limit=4,
               out=tmp_path / "run", device="cpu", progress=False)  # fmt: skip


def test_explainer_maps_are_copied(classifier):
    kept = torch.zeros(2, 6, 5)

    def reusing(classifier, images, target):
        return kept.add_(1)

    first = as_explainer(reusing)(classifier, IMAGES, TARGET)
    as_explainer(reusing)(classifier, IMAGES, TARGET)
    assert (first == 1).all()


def started(out, shapes, resnet, explainers, metrics=("saliency_miou", "saliency_insertion:steps=4"), **options):
    return sb.run(dataset=shapes, model=resnet, explainers=explainers, metrics=list(metrics), out=out, limit=12,
                  batch_size=8, device="cpu", progress=False, **options)  # fmt: skip


def rows_of(folder, name):
    return [row for row in pq.read_table(folder / "records.parquet").to_pylist() if row["explainer"] == name]


class Scaled(nn.Module):
    """Network that reads a plain attribute, which a snapshot of weights, hooks and settings does not contain."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8))
        self.k = 1.0

    def forward(self, images):
        return self.body(self.k * images)


def rescaling(classifier, images, target):
    classifier.model.k = 0.1
    return images.mean(dim=1)


@pytest.mark.slow
def test_network_changing_explainer_affects_no_other_scores(shapes, tmp_path):
    def scored(out, explainers, **options):
        classifier = sb.load_classifier(Scaled(), mean=0, std=1, size=(32, 32))
        return started(tmp_path / out, shapes, classifier, explainers, **options)

    alone, both = scored("alone", ["gradient", "random"]), scored("both", [rescaling, in_place, "gradient", "random"])
    for name in ("gradient", "random"):
        assert rows_of(both.folder, name) == rows_of(alone.folder, name)
    own = [cell for cell in both.summary["cells"] if cell["explainer"] == "rescaling"]
    assert [cell["n"] for cell in own] == [0, 0]
    assert [cell["left_out"] for cell in own] == [{"changes the network": 12}] * 2
    assert "changes the network" in str(both)
    assert "changes the network" in both.report.read_text()
    words = "rescaling, or one of its metrics, changes the network module:Scaled"
    refused(words, scored, "strict", [rescaling], strict=True)


class Mixing(Scaled):
    """Network that mixes the images of a batch and counts all images that pass through it."""

    def __init__(self, mix):
        super().__init__()
        self.mix, self.seen = mix, [0]

    def forward(self, images):
        self.seen[0] += len(images)
        return super().forward(self.mix(images))


def normalising(classifier, images, target):
    maps = sb.load_explainer("gradient")(classifier, images, target)
    return maps / maps.std() - maps.mean()


# {effect of the batch on a network: (function, {explainer: whether its maps depend on the batch})}. Pictures cover the
# range from 0 to 1, so stretching does not change their logits, but it changes gradients and the logits of intermediate
# pictures.
MIXED = {
    "subtracted": (lambda x: x - x.mean(dim=0),
                   {"gradient": True, "gradcam:layer=body.1": True, "occlusion:window=2": True}),
    "whitened": (lambda x: F.batch_norm(x, None, None, training=True), {"gradient": True, "rise:masks=20": True}),
    "stretched": (lambda x: (x - x.min()) / (x.max() - x.min()),
                  {"input_x_gradient": True, "gradcam:layer=body.1": False, "integrated_gradients:steps=4": True,
                   "occlusion:window=2": False, "rise:masks=20": True}),
    "stretched by numbers": (lambda x: (x - x.min().item()) / (x.max().item() - x.min().item()),
                             {"gradient": False, "smoothgrad:samples=4": True, "rise:masks=20": True}),
    "straight through": (lambda x: x + x.mean(dim=0) - x.mean(dim=0).detach(),
                         {"gradient": True, "gradcam:layer=body.1": False, "occlusion:window=2": False,
                          "rise:masks=20": False, "scorecam:layer=body.1": False}),
    "untouched": (lambda x: x, {"gradient": False, "integrated_gradients:steps=4": False, "rise:masks=20": False,
                                normalising: True}),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("mix", MIXED)
def test_depends_on_batch_finds_only_batch_dependent_maps(mix, size):
    images = torch.rand(size, 3, 6, 5, generator=torch.Generator().manual_seed(1))
    images[:, :, 0, 0], images[:, :, 0, 1] = 0, 1
    function, expected = MIXED[mix]
    classifier = sb.load_classifier(Mixing(function), mean=0, std=1, size=(6, 5))
    ids = list(map(str, range(size)))
    batch = Batch(images, torch.ones(size, 6, 5) > 0, torch.zeros(size), ids, [None] * size)
    target = one_hot([0] * size, 8)
    with torch.no_grad():
        logits = classifier(images)[-1].tolist()
    for name, depends in expected.items():
        explainer = sb.load_explainer(name)
        maps = explainer(classifier, images, target, seeds=[seed_of(0, image_id, "explain") for image_id in ids])
        before = classifier.passes
        found = depends_on_batch(classifier, batch, explainer, target, maps, logits, seed=0)
        # A single image is explained alone, but the pictures derived from it may mix.
        assert found == (depends and (size > 1 or "batch_size" in dict(explainer.options))), name
        assert classifier.passes == before


@pytest.mark.slow
def test_batch_check_reruns_only_for_mixing_networks(shapes, tmp_path):
    def made(mix, explainer):
        network = Mixing(MIXED[mix][0])
        classifier = sb.load_classifier(network, mean=0, std=1, size=(32, 32))
        network.seen[0] = 0
        done = started(tmp_path / mix, shapes, classifier, [explainer], ["saliency_pointing_game"])
        return {mark for cell in done.summary["cells"] for mark in cell["marked"]}, network.seen[0]

    batch = "depends on its batch"
    assert batch in made("stretched", "input_x_gradient")[0]
    marks, seen = made("untouched", "integrated_gradients:steps=10")
    assert batch not in marks
    assert seen < 16 * 10 + 16 + 30  # steps, predictions and probes, but no image explained again


def of_everything(maps, masks, curves, classifier, images, target, logits, labels, seeds):
    for array in (maps, masks, labels):
        array[:] = 0
    for tensor in (images, target, logits):
        tensor.data.zero_()
    curves.images.zero_()
    curves.maps[:] = 0
    seeds.clear()
    return np.zeros(len(masks))


def own_metric(function, *needs):
    return replace(sb.load_metric("saliency_miou"), name=f"saliency_{function.__name__}", function=function,
                   inputs=needs, options=())  # fmt: skip


OF_ALL = ("maps", "masks", "curves", "classifier", "images", "target", "logits", "labels", "seeds")


def inputs_of(classifier):
    return MetricInputs(
        classifier, sb.load_explainer("gradient"), IMAGES.clone(), TARGET.clone(), classifier(IMAGES).detach(),
        lambda sample, purpose: sample, maps=torch.rand(2, 6, 5, generator=torch.Generator().manual_seed(2)),
        masks=np.eye(6, 5, dtype=bool)[None].repeat(2, axis=0), unusable=[None, None],
        labels=np.eye(3, dtype=bool)[[0, 2]],
    )  # fmt: skip


def test_metric_cannot_change_inputs_of_other_metrics(classifier):
    metrics = [sb.load_metric(name) for name in ("saliency_miou", "saliency_deletion", "saliency_class_sensitivity")]
    alone = inputs_of(classifier)
    expected = [alone.score(metric).values for metric in metrics]
    for before in (True, False):
        inputs = inputs_of(classifier)
        if not before:
            assert [inputs.score(metric).values for metric in metrics] == expected
        assert inputs.score(own_metric(of_everything, *OF_ALL)).values == [0, 0]
        assert [inputs.score(metric).values for metric in metrics] == expected


@pytest.mark.slow
def test_run_detects_metric_that_changes_network(shapes, resnet, tmp_path):
    def hooking(maps, masks, classifier):
        classifier.register_forward_hook(lambda module, inputs, output: 0 * output)
        return np.zeros(len(masks))

    done = started(tmp_path / "run", shapes, resnet, ["gradcam"], metrics=["saliency_miou", hooking])
    assert {cell["n"] for cell in done.summary["cells"]} == {0}
    assert done.summary["faults"] == {"changes the network": 24}


class Picky(Scaled):
    """Network that raises an error for pictures whose first pixel has one of these values, as a broken layer would."""

    def __init__(self, error=RuntimeError):
        super().__init__()
        self.error, self.bad = error, []

    def forward(self, images):
        if any(torch.equal(image[:, 0, 0], bad) for image in images for bad in self.bad):
            raise self.error("no such picture, please")
        return super().forward(images)


@pytest.mark.sample(1)
@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_only_samples_with_model_errors_are_left_out(error, shapes, tmp_path):
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
        # The list of bad pictures is part of the network, so its cells have other ids.
        both = [
            {(row["metric"], row["image_id"], row["part"]): row for row in rows_of(done.folder, name)}
            for done in (result, whole)
        ]
        assert both[0].keys() == both[1].keys()
        for key, now in both[0].items():
            before = both[1][key]
            if now["image_id"] in (first, ninth):
                assert now["value"] is None
                assert now["reason"].startswith("the model raised")
                assert "no such picture, please" in now["reason"]
            elif name == "random" and now["metric"] == "saliency_miou":
                assert now["value"] == before["value"]
            else:
                assert now["value"] == pytest.approx(before["value"], abs=1e-5)
    assert {cell["n"] for cell in result.summary["cells"]} == {10}
    assert sum(result.summary["faults"].values()) == 2 * 4
    assert result.summary["model"]["accuracy"]["n"] == 10
    before = (result.folder / "records.parquet").read_bytes()
    assert (started(result.folder, shapes, classifier, explainers).folder / "records.parquet").read_bytes() == before
    with pytest.raises(UserError, match=rf"{first}.*no such picture"):
        started(tmp_path / "strict", shapes, classifier, explainers, strict=True)


def test_model_that_fails_for_every_image_is_rejected(shapes, tmp_path):
    model = Picky()
    model.bad = [torch.zeros(3)]  # insertion passes black pictures
    classifier = sb.load_classifier(model, mean=0, std=1, size=(32, 32), labels=None)
    cells = {cell["metric"]: cell for cell in started(tmp_path, shapes, classifier, ["random"]).summary["cells"]}
    assert cells["saliency_miou"]["n"] == 12
    assert cells["saliency_insertion"]["left_out"] == {"the metric raised RuntimeError: no such picture, please": 12}
    model.forward = lambda images: 1 / 0
    words = "module:Picky raised ZeroDivisionError: division by zero for each of the first 8"
    classifier = sb.load_classifier(model, mean=0, std=1, size=(32, 32))
    refused(words, started, tmp_path / "run", shapes, classifier, ["random"])
    assert not (tmp_path / "run").exists()
