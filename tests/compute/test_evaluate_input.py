"""Test every metric, as a function and as an `evaluate` module: any input gives a correct score or a one-line error."""

import re
import warnings
from pathlib import Path

import contracts
import evaluate
import numpy as np
import pytest
import torch
from metric_modules import loader, with_different_inputs
from torch import nn

from saliency_bench import load_classifier, registry
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.scoring.samples import score_parts, score_samples
from saliency_bench.compute.targets import contrast
from saliency_bench.metrics.saliency_insertion.score import saliency_insertion
from saliency_bench.metrics.saliency_miou.score import saliency_miou, saliency_miou_sweep
from saliency_bench.metrics.saliency_pointing_game.score import saliency_pointing_game
from saliency_bench.options import defaults
from saliency_bench.target_weights import one_hot

METRICS = [load_metric(name) for name in contracts.complete("metrics")]
ALIGNMENT = [metric.name for metric in METRICS if metric.inputs == ("maps", "masks")]
CURVES = [metric.name for metric in METRICS if "curves" in metric.inputs]
LABELLED = [metric.name for metric in METRICS if metric.inputs == ("curves", "labels")]
BOTH = ALIGNMENT + CURVES
ALONE = [metric.name for metric in METRICS if metric.inputs == ("maps",)]
ASKING = [metric.name for metric in METRICS if "explain" in metric.inputs]
TOGETHER = [metric.name for metric in METRICS if metric.declaration.plan is not None]  # of several images
CLASSED = [metric.name for metric in METRICS if metric.name in ASKING and "target" in metric.inputs]
PAIRED = [metric.name for metric in METRICS if "other" in metric.inputs]
# Metrics with accuracies as input are tested in tests/compute/test_retraining.py
RETRAINING = [metric.name for metric in METRICS if metric.declaration.keeps or "first_right" in metric.inputs]
GROUPED = [metric.name for metric in METRICS if "groups" in metric.inputs]

RNG = np.random.default_rng(0)
MAPS = RNG.integers(0, 200, (4, 6, 7)).astype(np.float32)
MASKS = RNG.random((4, 6, 7)) > 0.6
LABELS = [0, 1, 2, 1]

KINDS = {
    "float64": lambda x: x.astype(np.float64),
    "uint8": lambda x: x.astype(np.uint8),
    "int64": lambda x: x.astype(np.int64),
    "float16": lambda x: x.astype(np.float16),
    "list": lambda x: x.tolist(),
    "list of arrays": list,
    "torch": torch.tensor,
    "torch bfloat16": lambda x: torch.tensor(x).bfloat16(),
    "list of tensors": lambda x: [torch.as_tensor(one) for one in x],
}


def plain():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 42, 3))
    network[1].weight.data *= 4
    return load_classifier(network, mean=0.5, std=1, device="cpu")


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    yield from loader(tmp_path_factory.mktemp("evaluate"))


def images(count):
    return torch.rand(count, 3, 6, 7, generator=torch.Generator().manual_seed(0))


def given(name, maps=MAPS, masks=MASKS, labels=LABELS, **more):
    """Return the arguments of the module for these samples."""
    if name in ALIGNMENT:
        return {"predictions": maps, "references": masks} | more
    return {"predictions": maps, "references": labels, "images": images(len(maps)), "classifier": plain()} | more


def directly(name, maps=MAPS, masks=MASKS, labels=LABELS):
    metric = load_metric(name)
    if name in ALIGNMENT:
        return metric(maps, masks)
    target = one_hot(labels, 3)
    inputs = [target.numpy().astype(bool)] if name in LABELLED else []
    return metric(Curves(plain(), images(len(labels)), target, maps), *inputs)


def says(load, name, line, **inputs):
    """Check that the module raises a one-line error with these words."""
    with pytest.raises(ValueError, match=line) as caught:
        load(name).compute(**inputs)
    assert "\n" not in str(caught.value)


def test_lists_cover_every_metric():
    assert sorted(BOTH + ALONE + ASKING + TOGETHER + RETRAINING) == registry.names("metrics")
    assert set(CLASSED) | set(GROUPED) < set(ASKING)


def occluded(classifier, images, target):
    """Return maps that depend on the image, the network and the target, and that are never flat."""
    weights = torch.einsum("bk,kp->bp", target, classifier.model[1].weight.detach())
    return (weights.view(images.shape) * (images + 0.1)).sum(dim=1)


def paired(name, count):
    """Return arguments with a second classifier and one mask for all images. Every class counts as correct."""
    every, needs = np.ones((count, 3), bool), load_metric(name).inputs
    mask = np.pad(np.ones((3, 3), bool), ((1, 2), (2, 2)))
    given = {"masks": np.repeat(mask[None], count, axis=0), "other": plain(), "other_labels": every}
    given |= {"labels": every} if "labels" in needs else {}
    return given | ({"columns": {"image_without_object": torch.zeros(count, 3, 6, 7)}} if "columns" in needs else {})


def asking(name, count=4, **more):
    """Return the arguments of a module that computes its maps itself."""
    groups = {"groups": {"two": [0, 1], "one": [2]}} if name in GROUPED else {}
    given = more.get("images")
    groups |= paired(name, len(given) if hasattr(given, "__len__") else count) if name in PAIRED else {}
    return {"images": images(count), "classifier": plain(), "explainer": occluded, "per_sample": True} | groups | more


def scored(name, images, **more):
    """Return the result of `score_samples`, with NaN for an undefined score."""
    given = {key: value for key, value in asking(name, **more).items() if key not in ("images", "per_sample")}
    return score_samples(name, images, **given)


@pytest.mark.sample(2, 3)
@pytest.mark.filterwarnings("ignore:.*samples left out")
@pytest.mark.parametrize("name", ASKING)
def test_module_matches_score_samples_for_any_image_type(load, name):
    pictures = (images(4) * 64).round() / 64  # exact in all types
    expected = scored(name, pictures)
    assert np.isfinite(expected).any()
    for kind, read in KINDS.items():
        if kind in ("uint8", "int64"):
            continue  # image values are shares of white
        given = pictures if kind.startswith(("torch", "list of t")) else pictures.numpy()
        result = load(name).compute(**asking(name, images=read(given)))
        np.testing.assert_allclose(result["scores"], expected, rtol=1e-4, atol=1e-6, err_msg=kind)
        assert result[name] == pytest.approx(np.nanmean(expected), rel=1e-4, abs=1e-6)
    which = int(np.flatnonzero(np.isfinite(expected))[0])
    single = load(name).compute(**asking(name, images=pictures[which : which + 1]))
    np.testing.assert_allclose(single["scores"], expected[which : which + 1], rtol=1e-4, atol=1e-6)
    pictures = images(4) > 0.5  # black and white
    expected = scored(name, pictures.float())
    assert np.isfinite(expected).any()
    for read in (pictures, pictures.numpy(), pictures.byte(), pictures.numpy().astype(np.int64)):
        found = load(name).compute(**asking(name, images=read))["scores"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.filterwarnings("ignore:.*samples left out")
def test_jointly_scored_images_accept_any_type_and_need_classes(load, name):
    pictures, labels = (images(8) * 64).round() / 64, [0, 1, 2, 1, 0, 1, 2, 0]  # exact in all types
    given = {"classifier": plain(), "explainer": occluded, "k": 1}
    parts = score_parts(name, pictures, given["classifier"], occluded, labels=labels, k=1)
    metric = load_metric(name, k=1)
    expected = metric.reduced(np.nan_to_num(parts[np.isfinite(parts).any(axis=1)].mean(axis=0))[None])[0]
    for kind, read in KINDS.items():
        if kind not in ("uint8", "int64"):  # image values are shares of white
            result = load(name).compute(images=read(pictures.numpy()), references=labels, **given)
            assert result[name] == pytest.approx(expected, rel=1e-4), kind
    for wrong in ({}, {"references": labels, "target": labels}, {"references": [*labels[:-1], 9]}):
        with pytest.raises(ValueError, match="class"):
            load(name).compute(images=pictures, **given, **wrong)


@pytest.mark.parametrize("name", with_different_inputs(ASKING))
def test_invalid_images_and_arguments_are_rejected(load, name):
    shape = r"images must have shape \(B, 3, H, W\)"
    for bad in (images(4)[:, :2], images(4)[0], 3.0):
        says(load, name, shape, **asking(name, images=bad))
    says(load, name, "call `add` or `add_batch`", **asking(name, images=None))  # raised by evaluate itself
    says(load, name, "no sample|no image|have shape", **asking(name, images=images(4)[:0]))
    says(
        load,
        name,
        "all arrays must have the same size|real numbers",
        **asking(name, images=[images(1)[0], images(1)[0, :, :3]]),
    )
    says(load, name, "numbers", **asking(name, images=[["a"]]))
    for bad in (np.nan, np.inf, 255):
        changed = images(4)
        changed[2, 1, 1, 1] = bad
        says(load, name, r"finite and in \[0, 1\]", **asking(name, images=changed))
    says(load, name, "batch_size must .* got 0", **asking(name, batch_size=0))
    says(load, name, "one seed", **asking(name, seeds=[1, 2]))
    says(load, name, "needs classifier= and explainer=", **asking(name, explainer=None))
    assert np.isfinite(load(name).compute(**asking(name, count=2, images=images(2)))[name])  # still usable


@pytest.mark.parametrize("name", with_different_inputs(ASKING))
def test_explainers_with_invalid_maps_are_rejected(load, name):
    def third(value):
        def explainer(classifier, pictures, target):
            maps = occluded(classifier, pictures, target)
            maps[torch.isclose(pictures, images(4)[2]).flatten(1).all(dim=1), 0, 0] = value
            return maps

        return explainer

    for value in (float("nan"), float("inf")):
        if name not in GROUPED:
            line = f"{name} of explainer, image 2: the map holds NaN or infinite values"
            says(load, name, line, **asking(name, explainer=third(value)))
        every = asking(name, explainer=lambda *given, by=value: occluded(*given) * by)
        says(load, name, "map holds NaN or infinite", **every)
    says(load, name, r"maps|shape", **asking(name, explainer=lambda *given: occluded(*given)[:, 1:]))


LEAVING_OUT_CONSTANT_MAPS = ("class_sensitivity", "consistency", "max_sensitivity", "randomisation")


@pytest.mark.filterwarnings("ignore:.*samples left out")
@pytest.mark.parametrize("name", ASKING)
def test_constant_maps_are_scored_or_left_out(load, name):
    low, high = load_metric(name).range

    def flat(classifier, images, target):
        return torch.ones(len(images), *images.shape[2:])

    if name.removeprefix("saliency_") in LEAVING_OUT_CONSTANT_MAPS:
        says(load, name, "all 4 samples are left out: ", **asking(name, explainer=flat))
    else:
        assert low <= load(name).compute(**asking(name, explainer=flat))[name] <= high


@pytest.mark.parametrize("name", with_different_inputs(CLASSED))
def test_invalid_classes_are_rejected(load, name):
    says(load, name, "one class .* for each of the 4 images", **asking(name, references=[0, 1]))
    says(load, name, "classes must be whole numbers from 0 to 2", **asking(name, references=[0, 1, 2, 3]))
    says(load, name, "5 classes", **asking(name, target=torch.ones(1, 5)))
    says(load, name, "finite", **asking(name, target=torch.full((4, 3), np.nan)))


@pytest.mark.parametrize("name", GROUPED)
def test_invalid_groups_are_rejected(load, name):
    says(load, name, "needs groups of classes", **asking(name, groups=None))
    says(load, name, "contain no class in two", **asking(name, groups={"two": []}))
    says(load, name, "7", **asking(name, groups={"two": [0, 7]}))


@pytest.mark.parametrize("name", ALIGNMENT + with_different_inputs(CURVES))
def test_functions_and_modules_accept_any_number_type(load, name):
    maps, masks = np.round(MAPS / 2), MASKS.astype(np.float32) * 255
    expected = directly(name, maps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for read in KINDS.values():
            np.testing.assert_allclose(directly(name, read(maps), read(masks)), expected)
            result = load(name).compute(**given(name, read(maps), read(masks), per_sample=True))
            assert result["scores"] == pytest.approx(expected, abs=1e-6)
            assert result[name] == pytest.approx(expected.mean(), abs=1e-6)
    assert np.array_equal(maps, np.round(MAPS / 2))
    assert np.array_equal(masks, MASKS.astype(np.float32) * 255)
    bools = directly(name, MAPS > 100)
    np.testing.assert_allclose(bools, directly(name, (MAPS > 100).astype(np.float32)))
    result = load(name).compute(**given(name, MAPS > 100, per_sample=True))
    assert result["scores"] == pytest.approx(bools, abs=1e-6)
    np.testing.assert_allclose(directly(name, maps[:1], MASKS[:1], LABELS[:1]), expected[:1], atol=1e-6)
    if name in ALIGNMENT:
        assert directly(name, maps[:0], MASKS[:0]).shape == (0,)


@pytest.mark.parametrize("name", BOTH)
def test_single_and_constant_maps_score_within_range(load, name):
    low, high = load_metric(name).range
    for maps in (MAPS[:1], np.zeros((1, 6, 7)), np.full((1, 6, 7), 255, np.uint8), np.full((1, 6, 7), -1e30)):
        result = load(name).compute(**given(name, maps, MASKS[:1], [0]))
        assert low <= result[name] <= high
        assert result[name] == pytest.approx(directly(name, maps.astype(np.float32), MASKS[:1], [0])[0], abs=1e-6)


def with_value(value):
    maps = MAPS.astype(np.float64)
    maps[2, 1, 1] = value
    return maps


@pytest.mark.parametrize("name", ALIGNMENT + with_different_inputs(CURVES))
def test_invalid_maps_and_mismatched_inputs_are_rejected(load, name):
    shape = r"maps must have shape \(B, H, W\)"
    for maps, line in (
        (MAPS[:3], r"\(3, 6, 7\)|for each of the 3 maps"), (MAPS[:, 1:], r"\(4, 5, 7\)"),
        (MAPS[:, None], shape), (None, shape),
        *((with_value(value), "map 2 contains NaN or infinite values") for value in (np.nan, np.inf, -np.inf, 1e300)),
        ([["a"]], "must be real numbers"), (MAPS + 1j, "must be real numbers"),
        ([MAPS[0], MAPS[1, :3]], "all arrays must have the same size"),
    ):  # fmt: skip
        says(load, name, line, **given(name) | {"predictions": maps})
        with pytest.raises(ValueError, match=line) as caught:
            directly(name, maps)
        assert "\n" not in str(caught.value)
    says(load, name, "there is no sample to score|have shape", **given(name, np.zeros((0, 6, 7)), MASKS[:0], []))
    says(load, name, r"got \(0,\)", **given(name) | {"predictions": [], "references": []})
    if name in ALIGNMENT:
        says(load, name, r"\(4, 6, 7\) but masks have shape \(3, 6, 7\)", **given(name, masks=MASKS[:3]))
        says(load, name, r"\(4, 6, 7\) but masks have shape \(4, 6, 6\)", **given(name, masks=MASKS[:, :, :6]))
    else:
        says(load, name, "one class .* for each of the 4 maps", **given(name, labels=[0, 1, 2]))
        says(load, name, r"need images of shape \(4, 3, 6, 7\)", **given(name, images=images(3)))
        says(load, name, r"need images of shape \(4, 3, 6, 7\)", **given(name, images=images(4)[..., :5]))
    assert load(name).compute(**given(name))[name] == pytest.approx(directly(name).mean(), abs=1e-6)  # still usable


@pytest.mark.parametrize("name", BOTH + ASKING)
def test_unknown_options_and_wrong_types_are_rejected(load, name):
    inputs = asking(name) if name in ASKING else given(name, per_sample=True)
    says(load, name, f"unknown option of {name} 'treshold'", **inputs, treshold=0.5)
    says(load, name, "'per_samples'; did you mean per_sample", **inputs, per_samples=True)
    says(load, name, f"per_sample of {name} must be True or False; got 'yes'", **inputs | {"per_sample": "yes"})
    if name not in ALIGNMENT:
        says(load, name, "'batchsize'; did you mean batch_size", **inputs, batchsize=4)
        says(load, name, "batch_size must .* got a", **inputs, batch_size="a")
    for option, value in load_metric(name).options:
        wrong = {"a": 1} if value is None or isinstance(value, int | float) else 17
        says(load, name, f"option {option} of {name} must be .*; got", **inputs, **{option: wrong})
    assert load(name).compute(**inputs)["scores"]  # still usable


def test_metric_with_options_rejects_further_options():
    metric = load_metric("saliency_max_sensitivity")
    with pytest.raises(ValueError, match="saliency_max_sensitivity already has its options; remove draws="):
        score_samples(metric, images(2), plain(), occluded, draws=3)


@pytest.mark.parametrize("name", ALIGNMENT)
def test_masks_must_be_binary_and_empty_masks_are_left_out(load, name):
    thirds = np.where(MASKS, 2.0, 0.0)
    assert load(name).compute(**given(name, masks=thirds)) == load(name).compute(**given(name))
    thirds[0, 0, 0] = 1
    for masks in (thirds, -1 * MASKS, np.where(MASKS, np.nan, 0)):
        says(load, name, "masks must be binary", **given(name, masks=masks))
    for masks, line in ((MAPS, "masks must be binary"), (None, r"masks must have shape \(B, H, W\)")):
        says(load, name, line, **given(name, masks=masks))
        with pytest.raises(ValueError, match=line):
            directly(name, MAPS, masks)
    masks = MASKS.copy()
    masks[1] = False
    with pytest.warns(UserWarning, match=f"{name}.*1 of 4.*empty mask") as caught:
        result = load(name).compute(**given(name, masks=masks, per_sample=True))
    assert Path(caught[0].filename).name == Path(__file__).name
    assert np.isnan(result["scores"]).tolist() == [False, True, False, False]
    assert result[name] == pytest.approx(np.nanmean(directly(name, masks=masks)))
    says(load, name, "all 4 samples are left out: an empty mask", **given(name, masks=np.zeros_like(MASKS)))


@pytest.mark.parametrize("name", with_different_inputs(CURVES))
def test_curve_metrics_reject_missing_or_invalid_inputs(load, name):
    for labels in (["a"] * 4, [0, 1, np.nan, 2], [0.5] * 4):
        says(load, name, "one class .* for each of the 4 maps", **given(name, labels=labels))
    for labels in ([0, 1, 2, 3], [0, 1, 2, -5]):
        says(load, name, "classes must be whole numbers from 0 to 2", **given(name, labels=labels))
    missing = "pass references= instead of target=" if name in LABELLED else "needs references= .* or target="
    says(load, name, missing, **given(name, labels=None))
    says(load, name, "needs images=", **given(name, images=None))
    says(load, name, "needs images=", **given(name, classifier=None))
    says(load, name, r"images must be finite and in \[0, 1\]", **given(name, images=255 * images(4)))
    says(load, name, r"images must be finite and in \[0, 1\]", **given(name, images=np.nan * images(4)))
    says(load, name, "batch_size must .* got 0", **given(name, batch_size=0))
    broken = plain()
    broken.model[1].weight.data[:] = np.nan
    says(load, name, "all 4 samples are left out: a score that is not a number", **given(name, classifier=broken))
    if name in LABELLED:
        says(load, name, missing, **given(name, target=one_hot(LABELS, 3)))
        return
    says(load, name, "target", **given(name, target=torch.full((4, 3), np.nan)))
    says(load, name, "5 classes, but the classifier has 3", **given(name, target=torch.ones(1, 5)))
    result = load(name).compute(**given(name, labels=None, target=one_hot(LABELS, 3).numpy()))
    assert result[name] == pytest.approx(directly(name).mean(), abs=1e-6)


# Descriptions and options of the modules, and batches that are added one by one


def test_module_accepts_options_and_sweeps(load):
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
    metric.add_batch(predictions=MAPS[:1], references=MASKS[:1])
    metric.add(prediction=MAPS[1], reference=MASKS[1])
    metric.add(prediction=torch.tensor(MAPS[2]), reference=MASKS[2].tolist())
    result = metric.compute(predictions=MAPS[3:], references=MASKS[3:], per_sample=True)
    assert result["scores"] == saliency_miou(MAPS, MASKS).tolist()
    metric.add_batch(predictions=MAPS[:2], references=MASKS[:2])
    with pytest.raises(ValueError, match=r"4 x 4.*6 x 7"):
        metric.add_batch(predictions=np.eye(4), references=np.eye(4))
    result = metric.compute()
    assert result == {"saliency_miou": saliency_miou(MAPS[:2], MASKS[:2]).mean()}
    assert type(result["saliency_miou"]) is float


@pytest.mark.parametrize("named", [True, False])
def test_combined_modules_match_single_modules(load, named):
    names = ("saliency_miou", "saliency_energy", "saliency_pointing_game")
    combined = evaluate.combine([load(name) for name in names])
    for values, inside in zip(MAPS[:2], MASKS[:2], strict=True):
        combined.add(**{"prediction": values, "reference": inside}) if named else combined.add(values, inside)
    combined.add_batch(predictions=MAPS[2:], references=MASKS[2:])
    expected = {name: load(name).compute(predictions=MAPS, references=MASKS)[name] for name in names}
    assert combined.compute() == expected == combined.compute(predictions=MAPS, references=MASKS)


@pytest.mark.parametrize("in_memory", [False, True])
def test_module_accepts_different_map_sizes_in_turn(load, in_memory):
    metric = load("saliency_miou", keep_in_memory=in_memory)
    for size in (4, 11, 4):
        assert metric.compute(predictions=[np.eye(size)], references=[np.eye(size)]) == {"saliency_miou": 1.0}
        expected = saliency_miou(MAPS, MASKS).mean()
        assert metric.compute(predictions=MAPS, references=MASKS) == {"saliency_miou": expected}


@pytest.mark.parametrize("name", registry.names("metrics"))
def test_module_describes_inputs_and_options(load, name):
    module, metric = load(name), load_metric(name)
    assert (module.name, module.citation) == (name, metric.declaration.paper)
    assert module.description.startswith(registry.summary(registry.score_file("metrics", name)))
    assert module.reference_urls == [metric.declaration.paper_line.rpartition(", ")[2]]
    text = module.inputs_description
    usual = {} if "retrained" in metric.inputs else defaults(metric.function)
    for option in ("predictions" if "predictions:" in text else "images", *usual, "per_sample"):
        assert re.search(rf"^    {option}: \S.*\w", text, flags=re.MULTILINE), option
    assert re.search(r"Returns:\n    {name: the mean over samples}. Per sample: \S+", text)


def test_insertion_module_matches_function(load):
    expected, metric = directly("saliency_insertion"), load("saliency_insertion")
    for options in ({}, {"batch_size": 3}):
        found = metric.compute(**given("saliency_insertion", per_sample=True), **options)["scores"]
        assert found == pytest.approx(expected)
    other = load_classifier(plain().model, mean=0, std=1, device="cpu")
    found = metric.compute(**given("saliency_insertion", per_sample=True) | {"classifier": other})["scores"]
    assert found != pytest.approx(expected)  # another normalisation
    target = contrast(LABELS, [1, 2, 0, 2], 3)
    expected = saliency_insertion(Curves(plain(), images(4), target, MAPS), reference="blur", steps=3)
    options = {"target": target, "reference": "blur", "steps": 3, "per_sample": True}
    assert metric.compute(**given("saliency_insertion", labels=None), **options)["scores"] == pytest.approx(expected)


def test_module_that_computes_maps_accepts_single_images(load):
    given, metric = asking("saliency_ccs", reference="blur"), load("saliency_ccs")
    expected = scored("saliency_ccs", images(4), reference="blur")
    assert metric.compute(**given | {"batch_size": 3})["scores"] == pytest.approx(expected, abs=1e-6, nan_ok=True)
    metric.add_batch(images=images(4)[:2].numpy())
    metric.add(image=images(4)[2])
    with pytest.raises(ValueError, match=r"4 x 4.*6 x 7"):
        metric.add_batch(images=torch.rand(2, 3, 4, 4))
    found = metric.compute(**given | {"images": images(4)[3:]})["scores"]
    assert found == pytest.approx(expected, nan_ok=True)


def test_module_accepts_classes_or_target_weights(load):
    def brightness(classifier, images, target):
        return images.mean(dim=1) * target[:, :1, None]

    metric = load("saliency_max_sensitivity")
    given = {"images": images(4), "classifier": plain(), "explainer": brightness, "per_sample": True, "draws": 2}
    ours = metric.compute(**given, references=[0] * 4)["scores"]
    weights = torch.eye(3)[[0] * 4]
    assert metric.compute(**given, target=weights)["scores"] == ours
    assert metric.compute(**given, target=weights[:1])["scores"] == ours
    assert (plain()(images(4)).argmax(dim=1) != 0).any()
    with pytest.warns(UserWarning, match="flat map") as caught:  # this explainer has maps of class 0 only
        scores = metric.compute(**given, references=[0, 1, 0, 0])["scores"]
    assert Path(caught[0].filename).name == Path(__file__).name
    assert np.isnan(scores).tolist() == [False, True, False, False]


@pytest.mark.parametrize(("name", "wrong", "line"), [
    ("miou", {"threshold": 7}, "threshold must .* got 7"),
    ("max_sensitivity", {"images": None, "predictions": MAPS}, "computes the maps itself; pass images"),
    ("max_sensitivity", {"predictions": MAPS}, "computes the maps itself"),
    ("max_sensitivity", {"explainer": "gradcan"}, "gradcan.*gradcam"),
    ("max_sensitivity", {"radius": -1.0}, "radius > 0"),
    ("class_sensitivity", {"references": [0] * 4}, "chooses its own classes"),
    ("class_sensitivity", {"target": torch.eye(3)[:1]}, "chooses its own classes"),
])  # fmt: skip
def test_module_stays_usable_after_invalid_input(load, name, wrong, line):
    name = f"saliency_{name}"
    metric, inputs = load(name), given(name) if name in ALIGNMENT else asking(name, explainer="gradient")
    with pytest.raises(ValueError, match=line) as caught:
        metric.compute(**inputs | wrong)
    assert "\n" not in str(caught.value)
    assert np.isfinite(metric.compute(**inputs)[name])


COUNT = '''"""Number of salient pixels."""
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


def test_map_only_metric_rejects_references(load, tmp_path, monkeypatch):
    file = tmp_path / "saliency_count" / "saliency_count.py"
    file.parent.mkdir()
    file.write_text(COUNT)
    monkeypatch.setattr(registry, "files", lambda kind: {"saliency_count": file})
    count, expected = load("saliency_count"), (MAPS > 0).sum(axis=(1, 2)).tolist()
    result = count.compute(predictions=MAPS, per_sample=True)
    assert result == {"saliency_count": np.mean(expected), "scores": expected}
    assert count.compute(predictions=MAPS, least=1.0) == {"saliency_count": (MAPS > 1).sum(axis=(1, 2)).mean()}
    for call in (count.compute, count.add_batch):
        with pytest.raises(ValueError, match="saliency_count uses only the maps"):
            call(predictions=MAPS, references=MASKS)
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
