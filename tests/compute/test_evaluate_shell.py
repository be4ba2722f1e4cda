"""Our modules for `evaluate`, loaded from their folders: what goes in, what comes out, what is said when it cannot."""

import re
import sys
import warnings
from pathlib import Path

import evaluate
import numpy as np
import pytest
import torch
from torch import nn

from saliency_bench import load_metric, registry
from saliency_bench.metrics.saliency_miou.score import saliency_miou, saliency_miou_sweep
from saliency_bench.metrics.saliency_pointing_game.score import saliency_pointing_game
from saliency_bench.options import defaults

RNG = np.random.default_rng(0)
MAPS = RNG.normal(size=(6, 8, 9)).astype(np.float32)
MASKS = RNG.random((6, 8, 9)) > 0.7


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    from evaluate.loading import evaluation_module_factory, import_main_class, init_dynamic_modules

    modules = init_dynamic_modules("evaluate_shell_test", str(folder / "modules"))

    def loaded(name, **options):
        found = evaluation_module_factory(str(registry.files("metrics")[name].parent), dynamic_modules_path=modules)
        return import_main_class(found.module_path)(cache_dir=str(folder / "cache"), hash=found.hash, **options)

    yield loaded
    sys.path.remove(str(folder / "modules"))


def test_mean_and_scores(load):
    for name, function in (("saliency_miou", saliency_miou), ("saliency_pointing_game", saliency_pointing_game)):
        expected = function(MAPS, MASKS)
        result = load(name).compute(predictions=MAPS, references=MASKS, per_sample=True)
        assert result == {name: expected.mean(), "scores": expected.tolist()}
        assert type(result[name]) is float
        assert load(name).compute(predictions=MAPS, references=MASKS) == {name: expected.mean()}


@pytest.mark.parametrize(
    "kind", [list, np.float64, torch.tensor, lambda x: [torch.tensor(one) for one in x], np.float32]
)
def test_any_kind_of_array(load, kind):
    maps, masks = np.round(MAPS * 8), MASKS.astype(np.uint8) * 255
    result = load("saliency_miou").compute(predictions=kind(maps.tolist()), references=kind(masks.tolist()))
    assert result == {"saliency_miou": saliency_miou(maps, MASKS).mean()}


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float16])
def test_any_type_of_number(load, dtype):
    maps = np.abs(MAPS * 3).astype(dtype)
    result = load("saliency_pointing_game").compute(predictions=maps, references=MASKS.astype(dtype))
    assert result["saliency_pointing_game"] == saliency_pointing_game(maps, MASKS).mean()


def test_options_and_sweep(load):
    metric = load("saliency_miou")
    result = metric.compute(predictions=MAPS, references=MASKS, threshold="mask_area")
    assert result["saliency_miou"] == saliency_miou(MAPS, MASKS, threshold="mask_area").mean()
    result = metric.compute(predictions=MAPS, references=MASKS, threshold=0, normalise=False)
    assert result["saliency_miou"] == saliency_miou(MAPS, MASKS, threshold=0, normalise=False).mean()
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
    assert metric.compute() == {"saliency_miou": saliency_miou(MAPS[:2], MASKS[:2]).mean()}


@pytest.mark.parametrize("named", [True, False])
def test_combined_modules_collect_as_each_alone(load, named):
    names = ("saliency_miou", "saliency_energy", "saliency_pointing_game")
    combined = evaluate.combine([load(name) for name in names])
    for values, inside in zip(MAPS[:4], MASKS[:4], strict=True):
        combined.add(**{"prediction": values, "reference": inside}) if named else combined.add(values, inside)
    combined.add_batch(predictions=MAPS[4:], references=MASKS[4:])
    expected = {name: load(name).compute(predictions=MAPS, references=MASKS)[name] for name in names}
    assert combined.compute() == expected == combined.compute(predictions=MAPS, references=MASKS)


def test_one_module_serves_map_size_after_map_size(load):
    metric = load("saliency_miou")
    for size in (4, 11, 4):
        mask = np.eye(size)
        assert metric.compute(predictions=[mask], references=[mask]) == {"saliency_miou": 1.0}


def test_in_memory(load):
    metric = load("saliency_miou", keep_in_memory=True)
    for _ in range(2):
        assert metric.compute(predictions=MAPS, references=MASKS) == {
            "saliency_miou": saliency_miou(MAPS, MASKS).mean()
        }


def test_empty_masks_are_left_out_and_said(load):
    masks = MASKS.copy()
    masks[1] = masks[4] = False
    for name in ("saliency_miou", "saliency_pointing_game"):
        with pytest.warns(UserWarning, match=f"{name}.*2 of 6.*empty mask") as caught:
            result = load(name).compute(predictions=MAPS, references=masks, per_sample=True)
        assert Path(caught[0].filename).name == Path(__file__).name
        scores = np.array(result["scores"])
        assert np.isnan(scores).tolist() == [False, True, False, False, True, False]
        assert result[name] == np.nanmean(scores)


BAD = [
    ({"references": MASKS[:5]}, r"\(6, 8, 9\) but masks \(5, 8, 9\)"),
    ({"references": MASKS[:, :4]}, r"\(6, 8, 9\) but masks \(6, 4, 9\)"),
    ({"predictions": np.where(MASKS, np.nan, MAPS)}, "map 0 holds NaN"),
    ({"references": MAPS}, "must be binary"),
    ({"references": None}, r"masks must have shape \(B, H, W\)"),
    ({"predictions": None}, r"maps must have shape \(B, H, W\)"),
    ({"references": np.zeros_like(MASKS)}, r"\b6 samples.*empty mask"),
    ({"threshold": 7}, "threshold=7"),
    ({"threshold": "half"}, "threshold of saliency_miou 'half'.*float.*mask_area"),
]


@pytest.mark.parametrize(("wrong", "line"), BAD)
def test_what_is_wrong_is_said_in_one_line_and_the_module_goes_on(load, wrong, line):
    metric = load("saliency_miou")
    with pytest.raises(ValueError, match=line) as caught:
        metric.compute(**({"predictions": MAPS, "references": MASKS} | wrong))
    assert "\n" not in str(caught.value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = metric.compute(predictions=MAPS, references=MASKS)
    assert result == {"saliency_miou": saliency_miou(MAPS, MASKS).mean()}


def test_another_size_in_a_later_batch_is_refused_and_the_first_kept(load):
    metric = load("saliency_miou")
    metric.add_batch(predictions=MAPS, references=MASKS)
    with pytest.raises(ValueError, match=r"4 x 4.*8 x 9"):
        metric.add_batch(predictions=np.eye(4), references=np.eye(4))
    assert metric.compute() == {"saliency_miou": saliency_miou(MAPS, MASKS).mean()}


def test_unknown_option_is_named(load):
    with pytest.raises(ValueError, match="unknown option of saliency_miou 'treshold'; did you mean threshold"):
        load("saliency_miou").compute(predictions=MAPS, references=MASKS, treshold=0.2)


def test_inputs_are_not_changed(load):
    maps, masks = MAPS.copy(), MASKS.copy()
    load("saliency_miou").compute(predictions=maps, references=masks)
    assert np.array_equal(maps, MAPS)
    assert np.array_equal(masks, MASKS)


@pytest.mark.parametrize("name", registry.names("metrics"))
def test_describes_itself(load, name):
    metric = load(name)
    assert metric.name == name
    assert metric.citation == load_metric(name).declaration.paper
    assert metric.description.startswith(registry.summary(registry.score_file("metrics", name)))
    assert metric.reference_urls == [load_metric(name).declaration.paper_line.rpartition(", ")[2]]


@pytest.mark.parametrize("name", registry.names("metrics"))
def test_inputs_and_options_are_described(load, name):
    text = load(name).inputs_description
    usual = {} if "retrained" in load_metric(name).inputs else defaults(load_metric(name).function)
    for option in ("predictions" if "predictions:" in text else "images", *usual, "per_sample"):
        assert re.search(rf"^    {option}: \S.*\w", text, flags=re.MULTILINE), option
    assert re.search(r"Returns:\n    {name: the mean over samples}. Per sample: \S+", text)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3 * 72, 5)

    def forward(self, images):
        return self.linear(images.flatten(1))


def plain():
    from saliency_bench import load_classifier

    return load_classifier(Plain(), mean=0, std=1, device="cpu")


def test_insertion_through_evaluate(load):
    from saliency_bench.compute.classifiers.loading import load_classifier
    from saliency_bench.compute.scoring.perturbation import Curves
    from saliency_bench.compute.targets import contrast
    from saliency_bench.metrics.saliency_insertion.score import saliency_insertion
    from saliency_bench.target_weights import one_hot

    classifier = load_classifier(Plain(), mean=(0.5,) * 3, std=(0.2,) * 3, device="cpu")
    images, labels, metric = torch.rand(6, 3, 8, 9), [0, 1, 2, 3, 4, 0], load("saliency_insertion")
    expected = saliency_insertion(Curves(classifier, images, one_hot(labels, 5), MAPS))
    given = {"predictions": MAPS, "images": images.numpy(), "classifier": classifier, "per_sample": True}
    assert metric.compute(references=labels, **given)["scores"] == pytest.approx(expected)
    assert metric.compute(references=labels, batch_size=4, **given)["scores"] == pytest.approx(expected)
    other = metric.compute(references=labels, **(given | {"classifier": plain()}))
    assert other["scores"] != pytest.approx(expected)  # another normalisation
    target = contrast(labels, [1, 2, 3, 4, 0, 1], 5)
    expected = saliency_insertion(Curves(classifier, images, target, MAPS), reference="blur", steps=3)
    result = metric.compute(references=None, target=target, reference="blur", steps=3, **given)
    assert result["scores"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"references": [0]}, "one class"),
        ({"references": [0.5] * 6}, "one class"),
        ({"references": [9] * 6}, "from 0 to 4"),
        ({"images": None}, "needs images"),
        ({"images": torch.rand(5, 3, 8, 9)}, r"need images of shape \(6, 3, 8, 9\)"),
        ({"images": torch.rand(6, 3, 7, 9)}, r"need images of shape \(6, 3, 8, 9\)"),
        ({"reference": "blakc"}, r"blakc.*\bblack\b"),
    ],
)
def test_insertion_names_what_is_wrong(load, wrong, line):
    given = {"predictions": MAPS, "references": [0] * 6, "images": torch.rand(6, 3, 8, 9), "classifier": plain()}
    metric = load("saliency_insertion")
    with pytest.raises(ValueError, match=line) as caught:
        metric.compute(**(given | wrong))
    assert "\n" not in str(caught.value)


def brightness(classifier, images, target):
    return images.mean(dim=1) * target[:, :1, None]


def asking(**wrong):
    return {"images": torch.rand(6, 3, 8, 9), "classifier": plain(), "explainer": brightness} | wrong


def test_metrics_that_make_their_maps_through_evaluate(load):
    from saliency_bench.compute.scoring.samples import score_samples

    given, metric = asking(), load("saliency_ccs")
    groups = {"all": [0, 1, 2, 3, 4]}
    expected = score_samples("saliency_ccs", given["images"], plain(), brightness, groups=groups, reference="blur")
    options = {"groups": groups, "reference": "blur", "per_sample": True}
    assert metric.compute(**given, **options)["scores"] == pytest.approx(expected)
    assert metric.compute(**given, **options, batch_size=4)["scores"] == pytest.approx(expected, abs=1e-6)
    metric.add_batch(images=given["images"][:4].numpy())
    metric.add(image=given["images"][4])
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
        predicted = Plain()(given["images"]).argmax(dim=1)
    assert (predicted != 0).any()
    with pytest.warns(UserWarning, match="flat map") as caught:  # brightness knows class 0 only
        scores = metric.compute(**given, references=[0, 1, 0, 0, 0, 0])["scores"]
    assert Path(caught[0].filename).name == Path(__file__).name
    assert np.isnan(scores).tolist() == [False, True, False, False, False, False]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"images": None, "predictions": MAPS}, "computes the maps itself: give images"),
        ({"predictions": MAPS}, "computes the maps itself"),
        ({"images": torch.rand(3, 8, 9)}, r"images have shape \(B, 3, H, W\)"),
        ({"classifier": None}, "needs classifier= and explainer="),
        ({"explainer": "gradcan"}, "gradcan.*gradcam"),
        ({"references": [0]}, "one class"),
        ({"references": [7] * 6}, "from 0 to 4"),
        ({"target": torch.eye(5)[:3]}, "for each of the 6 images"),
        ({"radius": -1.0}, "radius > 0"),
        ({"drows": 3}, "drows.*draws"),
        ({"batch_size": 0}, "1 or more"),
        ({"explainer": lambda *given: brightness(*given) / 0}, "image 0: .*NaN"),
    ],
)
def test_metrics_that_make_their_maps_name_what_is_wrong_and_go_on(load, wrong, line):
    metric = load("saliency_max_sensitivity")
    with pytest.raises(ValueError, match=line) as caught:
        metric.compute(**asking(**wrong))
    assert "\n" not in str(caught.value)
    assert metric.compute(**asking(), references=[0] * 6, draws=1)["saliency_max_sensitivity"] > 0


@pytest.mark.parametrize("given", [{"references": [0] * 6}, {"target": torch.eye(5)[:1]}])
def test_a_class_that_a_metric_would_not_look_at_is_refused(load, given):
    with pytest.raises(ValueError, match="chooses its own classes"):
        load("saliency_class_sensitivity").compute(**asking(), **given)


def test_images_of_another_size_in_a_later_batch_are_refused(load):
    metric = load("saliency_class_sensitivity")
    metric.add_batch(images=torch.rand(2, 3, 8, 9))
    with pytest.raises(ValueError, match=r"4 x 4.*8 x 9"):
        metric.add_batch(images=torch.rand(2, 3, 4, 4))


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


@pytest.fixture
def count(tmp_path, monkeypatch, load):
    """A module of maps alone."""
    folder = tmp_path / "saliency_count"
    folder.mkdir()
    (folder / "saliency_count.py").write_text(ALONE)
    monkeypatch.setattr(registry, "files", lambda kind: {"saliency_count": folder / "saliency_count.py"})
    return load("saliency_count")


def test_a_metric_of_maps_alone_takes_no_references(count):
    expected = (MAPS > 0).sum(axis=(1, 2)).tolist()
    result = count.compute(predictions=MAPS, per_sample=True)
    assert result == {"saliency_count": np.mean(expected), "scores": expected}
    assert count.compute(predictions=MAPS, least=1.0) == {"saliency_count": (MAPS > 1).sum(axis=(1, 2)).mean()}
    for refused in (count.compute, count.add_batch):
        with pytest.raises(ValueError, match="saliency_count looks at the maps alone"):
            refused(predictions=MAPS, references=MASKS)
    with pytest.raises(ValueError, match=r"\(B, H, W\)"):
        count.compute(predictions=MAPS[0, 0])


def test_a_metric_of_maps_alone_collects_batches_and_leaves_out_what_has_no_score(count):
    count.add_batch(predictions=MAPS[:2])
    count.add(prediction=MAPS[2])
    flat = np.zeros_like(MAPS[:1])
    with pytest.warns(UserWarning, match="saliency_count: 1 of 4 samples left out"):
        scores = count.compute(predictions=flat, per_sample=True)["scores"]
    assert scores[:3] == (MAPS[:3] > 0).sum(axis=(1, 2)).tolist()
    assert np.isnan(scores[3])
    count.add_batch(predictions=MAPS)
    with pytest.raises(ValueError, match="use one size in a computation"):
        count.add_batch(predictions=MAPS[:, :4])
