"""Test the modules for `evaluate`: their descriptions and options, and batches that are added one by one.

`test_evaluate_input.py` tests valid and invalid inputs of every module.
"""

import re
from pathlib import Path

import evaluate
import numpy as np
import pytest
import torch
from metric_modules import loader
from torch import nn

from saliency_bench import load_classifier, load_metric, registry
from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.compute.targets import contrast
from saliency_bench.metrics.saliency_insertion.score import saliency_insertion
from saliency_bench.metrics.saliency_miou.score import saliency_miou, saliency_miou_sweep
from saliency_bench.metrics.saliency_pointing_game.score import saliency_pointing_game
from saliency_bench.options import defaults
from saliency_bench.target_weights import one_hot

RNG = np.random.default_rng(0)
MAPS = RNG.normal(size=(6, 8, 9)).astype(np.float32)
MASKS = RNG.random((6, 8, 9)) > 0.7


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    yield from loader(tmp_path_factory.mktemp("evaluate"))


def test_options_and_sweep(load):
    metric = load("saliency_miou")
    for options in ({"threshold": "mask_area"}, {"threshold": 0, "normalise": False}):
        result = metric.compute(predictions=MAPS, references=MASKS, **options)
        assert result["saliency_miou"] == saliency_miou(MAPS, MASKS, **options).mean()
    swept = saliency_miou_sweep(MAPS, MASKS, [0.5, 0.2, "mask_area"])
    result = metric.compute(predictions=MAPS, references=MASKS, threshold=[0.5, 0.2, "mask_area"], per_sample=True)
    assert result == {"saliency_miou": swept.mean(axis=0).tolist(), "scores": swept.tolist()}
    result = load("saliency_pointing_game").compute(predictions=MAPS, references=MASKS, tolerance=2, ties="any")
    assert result["saliency_pointing_game"] == saliency_pointing_game(MAPS, MASKS, tolerance=2, ties="any").mean()


def test_batches_and_single_maps_are_collected(load):
    metric = load("saliency_miou")
    metric.add_batch(predictions=MAPS[:2], references=MASKS[:2])
    metric.add(prediction=MAPS[2], reference=MASKS[2])
    metric.add(prediction=torch.tensor(MAPS[3]), reference=MASKS[3].tolist())
    result = metric.compute(predictions=MAPS[4:], references=MASKS[4:], per_sample=True)
    assert result["scores"] == saliency_miou(MAPS, MASKS).tolist()
    metric.add_batch(predictions=MAPS[:2], references=MASKS[:2])
    with pytest.raises(ValueError, match=r"4 x 4.*8 x 9"):
        metric.add_batch(predictions=np.eye(4), references=np.eye(4))
    result = metric.compute()
    assert result == {"saliency_miou": saliency_miou(MAPS[:2], MASKS[:2]).mean()}
    assert type(result["saliency_miou"]) is float


@pytest.mark.parametrize("named", [True, False])
def test_combined_modules_collect_as_each_alone(load, named):
    names = ("saliency_miou", "saliency_energy", "saliency_pointing_game")
    combined = evaluate.combine([load(name) for name in names])
    for values, inside in zip(MAPS[:4], MASKS[:4], strict=True):
        combined.add(**{"prediction": values, "reference": inside}) if named else combined.add(values, inside)
    combined.add_batch(predictions=MAPS[4:], references=MASKS[4:])
    expected = {name: load(name).compute(predictions=MAPS, references=MASKS)[name] for name in names}
    assert combined.compute() == expected == combined.compute(predictions=MAPS, references=MASKS)


@pytest.mark.parametrize("in_memory", [False, True])
def test_one_module_serves_map_size_after_map_size(load, in_memory):
    metric = load("saliency_miou", keep_in_memory=in_memory)
    for size in (4, 11, 4):
        assert metric.compute(predictions=[np.eye(size)], references=[np.eye(size)]) == {"saliency_miou": 1.0}
        expected = saliency_miou(MAPS, MASKS).mean()
        assert metric.compute(predictions=MAPS, references=MASKS) == {"saliency_miou": expected}


@pytest.mark.parametrize("name", registry.names("metrics"))
def test_describes_itself_its_inputs_and_options(load, name):
    module, metric = load(name), load_metric(name)
    assert (module.name, module.citation) == (name, metric.declaration.paper)
    assert module.description.startswith(registry.summary(registry.score_file("metrics", name)))
    assert module.reference_urls == [metric.declaration.paper_line.rpartition(", ")[2]]
    text = module.inputs_description
    usual = {} if "retrained" in metric.inputs else defaults(metric.function)
    for option in ("predictions" if "predictions:" in text else "images", *usual, "per_sample"):
        assert re.search(rf"^    {option}: \S.*\w", text, flags=re.MULTILINE), option
    assert re.search(r"Returns:\n    {name: the mean over samples}. Per sample: \S+", text)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 72, 5))


def images():
    return torch.rand(6, 3, 8, 9)


def plain():
    return load_classifier(network(), mean=0, std=1, device="cpu")


def test_insertion_through_evaluate(load):
    classifier = load_classifier(network(), mean=(0.5,) * 3, std=(0.2,) * 3, device="cpu")
    images, labels, metric = torch.rand(6, 3, 8, 9), [0, 1, 2, 3, 4, 0], load("saliency_insertion")
    expected = saliency_insertion(Curves(classifier, images, one_hot(labels, 5), MAPS))
    given = {"predictions": MAPS, "images": images.numpy(), "classifier": classifier, "per_sample": True}
    for options in ({}, {"batch_size": 4}):
        assert metric.compute(references=labels, **options, **given)["scores"] == pytest.approx(expected)
    other = metric.compute(references=labels, **(given | {"classifier": plain()}))
    assert other["scores"] != pytest.approx(expected)  # another normalisation
    target = contrast(labels, [1, 2, 3, 4, 0, 1], 5)
    expected = saliency_insertion(Curves(classifier, images, target, MAPS), reference="blur", steps=3)
    result = metric.compute(references=None, target=target, reference="blur", steps=3, **given)
    assert result["scores"] == pytest.approx(expected)


def brightness(classifier, images, target):
    return images.mean(dim=1) * target[:, :1, None]


def asking(**wrong):
    return {"images": images(), "classifier": plain(), "explainer": brightness} | wrong


def test_metrics_that_make_their_maps_through_evaluate(load):
    given, metric = asking(), load("saliency_ccs")
    groups = {"all": [0, 1, 2, 3, 4]}
    expected = score_samples("saliency_ccs", given["images"], plain(), brightness, groups=groups, reference="blur")
    options = {"groups": groups, "reference": "blur", "per_sample": True}
    assert metric.compute(**given, **options)["scores"] == pytest.approx(expected)
    assert metric.compute(**given, **options, batch_size=4)["scores"] == pytest.approx(expected, abs=1e-6)
    metric.add_batch(images=given["images"][:4].numpy())
    metric.add(image=given["images"][4])
    with pytest.raises(ValueError, match=r"4 x 4.*8 x 9"):
        metric.add_batch(images=torch.rand(2, 3, 4, 4))
    rest = {"classifier": plain(), "explainer": brightness, "images": given["images"][5:]}
    assert metric.compute(**rest, **options)["scores"] == pytest.approx(expected)


def test_a_class_for_each_image_or_weights_or_the_predicted_one(load):
    given, metric = asking(per_sample=True, draws=2), load("saliency_max_sensitivity")
    labels = [0, 0, 0, 0, 0, 0]
    ours = metric.compute(**given, references=labels)["scores"]
    weights = torch.eye(5)[labels]
    assert metric.compute(**given, target=weights)["scores"] == ours
    assert metric.compute(**given, target=weights[:1])["scores"] == ours
    with torch.no_grad():
        predicted = network()(given["images"]).argmax(dim=1)
    assert (predicted != 0).any()
    with pytest.warns(UserWarning, match="flat map") as caught:  # this classifier has class 0 only
        scores = metric.compute(**given, references=[0, 1, 0, 0, 0, 0])["scores"]
    assert Path(caught[0].filename).name == Path(__file__).name
    assert np.isnan(scores).tolist() == [False, True, False, False, False, False]


GIVEN = {
    "miou": lambda: {"predictions": MAPS, "references": MASKS},
    "max_sensitivity": lambda: asking(explainer="gradient"),
    "class_sensitivity": lambda: asking(explainer="gradient"),
}


@pytest.mark.parametrize(("name", "wrong", "line"), [
    ("miou", {"threshold": 7}, "threshold=7"),
    ("max_sensitivity", {"images": None, "predictions": MAPS}, "computes the maps itself; pass images"),
    ("max_sensitivity", {"predictions": MAPS}, "computes the maps itself"),
    ("max_sensitivity", {"explainer": "gradcan"}, "gradcan.*gradcam"),
    ("max_sensitivity", {"radius": -1.0}, "radius > 0"),
    ("class_sensitivity", {"references": [0] * 6}, "chooses its own classes"),
    ("class_sensitivity", {"target": torch.eye(5)[:1]}, "chooses its own classes"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_one_line_and_the_module_goes_on(load, name, wrong, line):
    metric, given = load(f"saliency_{name}"), GIVEN[name]()
    with pytest.raises(ValueError, match=line) as caught:
        metric.compute(**given | wrong)
    assert "\n" not in str(caught.value)
    assert np.isfinite(metric.compute(**given)[metric.name])


ALONE = '''"""Number of salient pixels."""
import evaluate
from saliency_bench.compute.scoring.evaluate_shell import MapOnlyShell

def saliency_count(maps, *, least=0.0):
    count = (maps > least).sum(axis=(1, 2)).astype(float)
    count[count == 0] = float("nan")
    return count

class SaliencyCount(MapOnlyShell, evaluate.Metric):
    """Pixels above zero; not defined for a map of zeros."""
    function = staticmethod(saliency_count)
'''


def test_a_metric_of_maps_alone_takes_no_references(load, tmp_path, monkeypatch):
    file = tmp_path / "saliency_count" / "saliency_count.py"
    file.parent.mkdir()
    file.write_text(ALONE)
    monkeypatch.setattr(registry, "files", lambda kind: {"saliency_count": file})
    count, expected = load("saliency_count"), (MAPS > 0).sum(axis=(1, 2)).tolist()
    result = count.compute(predictions=MAPS, per_sample=True)
    assert result == {"saliency_count": np.mean(expected), "scores": expected}
    assert count.compute(predictions=MAPS, least=1.0) == {"saliency_count": (MAPS > 1).sum(axis=(1, 2)).mean()}
    for refused in (count.compute, count.add_batch):
        with pytest.raises(ValueError, match="saliency_count uses only the maps"):
            refused(predictions=MAPS, references=MASKS)
    with pytest.raises(ValueError, match=r"\(B, H, W\)"):
        count.compute(predictions=MAPS[0, 0])
    count.add_batch(predictions=MAPS[:2])
    count.add(prediction=MAPS[2])
    with pytest.warns(UserWarning, match="saliency_count: 1 of 4 samples left out"):
        scores = count.compute(predictions=np.zeros_like(MAPS[:1]), per_sample=True)["scores"]
    assert scores[:3] == expected[:3]
    assert np.isnan(scores[3])
    count.add_batch(predictions=MAPS)
    with pytest.raises(ValueError, match="use one size per computation"):
        count.add_batch(predictions=MAPS[:, :4])
