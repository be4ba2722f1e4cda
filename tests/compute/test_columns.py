"""Test further dataset columns for metrics: they are prepared and hashed, and samples without a value are left out."""

from io import BytesIO

import numpy as np
import pytest
from datasets import Image as ImageFeature
from datasets import Value
from PIL import Image
from refusals import refused

import saliency_bench as sb
from saliency_bench.bound_metric import as_metric
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.errors import UserError

LIMIT = 12


@sb.metric(higher_is_better=True, range=(0, 1), columns=("image_without_object", "scene"))
def brightness(maps, columns):
    """Return the mean of the scene without its object, or 0 for a forest."""
    means = columns["image_without_object"].mean(dim=(1, 2, 3)).double().numpy()
    return np.where(np.array(columns["scene"]) == "forest", 0, means)


def png(picture):
    buffer = BytesIO()
    picture.save(buffer, format="png")
    return {"bytes": buffer.getvalue(), "path": None}


def settings(shapes, resnet, **changes):
    return {"dataset": shapes, "model": resnet, "explainers": "edges", "metrics": [brightness], "limit": LIMIT,
            "batch_size": 5, "device": "cpu", "progress": False} | changes  # fmt: skip


def scores(done):
    rows = [row for row in done.records() if row["metric"] == "brightness"]
    return {row["image_id"]: row["value"] for row in rows}, {row["image_id"]: row["reason"] for row in rows}


def replaced(rows, column, feature):
    name = "image_without_object"
    return rows.remove_columns(name).add_column(name, column, feature=feature)


def changed(rows, change):
    """Return rows whose `image_without_object` is change(image_id, picture)."""
    column = list(map(change, rows["image_id"], rows["image_without_object"]))
    return replaced(rows, column, ImageFeature())


@pytest.fixture(scope="module")
def whole(shapes, resnet, tmp_path_factory):
    return sb.run(**settings(shapes, resnet), out=tmp_path_factory.mktemp("columns") / "run")


def test_columns_hold_prepared_pictures_and_class_names(whole, shapes, resnet):
    values, reasons = scores(whole)
    assert len(values) == LIMIT
    assert set(reasons.values()) == {None}
    rows = sb.load_dataset(shapes)
    rows = rows.select([index for index, name in enumerate(rows["image_id"]) if name in values])
    classifier = sb.load_classifier(resnet, device="cpu")
    scenes = [rows.features["scene"].int2str(scene) for scene in rows["scene"]]
    pictures = classifier.prepare([{"image": picture} for picture in rows["image_without_object"]]).images
    means = pictures.double().mean(dim=(1, 2, 3)).tolist()
    expected = [0 if scene == "forest" else mean for scene, mean in zip(scenes, means, strict=True)]
    assert [values[name] for name in rows["image_id"]] == pytest.approx(expected, abs=1e-6)
    assert len(set(values.values())) > 5
    batch = classifier.prepare(rows[:], columns=["image_without_object"])
    columns = {"image_without_object": batch.columns["image_without_object"].values, "scene": scenes}
    given = {"batch_size": 5, "image_ids": batch.ids}
    found = score_samples(brightness, batch.images, classifier, "edges", columns=columns, **given)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with_gap = columns | {"scene": [None, *scenes[1:]]}
    assert np.isnan(score_samples(brightness, batch.images, classifier, "edges", columns=with_gap, **given)).sum() == 1
    for wrong, words in (
        ({}, "brightness needs the column image_without_object"),
        (columns | {"more": scenes}, "needs no column more"),
        (columns | {"scene": scenes[1:]}, "scene has 11 values for 12 images"),
        (columns | {"image_without_object": batch.images[:, :, 1:]}, "prepare them like the images"),
        (columns | {"image_without_object": batch.images * 255}, "in \\[0, 1\\]"),
    ):
        refused(words, score_samples, brightness, batch.images, classifier, "edges", columns=wrong, **given)


def test_score_samples_accepts_masks(shapes, resnet):
    classifier = sb.load_classifier(resnet, device="cpu")
    batch = classifier.prepare(sb.load_dataset(shapes)[:4])
    masks = batch.masks.numpy().copy()
    masks[1] = False

    def scored(masks, metric="saliency_energy", **options):
        return score_samples(metric, batch.images, classifier, "edges", masks=masks, **options)

    found = scored(masks, batch_size=3)
    maps = sb.load_explainer("edges")(classifier, batch.images, classifier(batch.images).detach())
    np.testing.assert_allclose(found, sb.load_metric("saliency_energy")(maps.numpy(), masks), rtol=1e-6)
    assert np.isnan(found).tolist() == [False, True, False, False]
    np.testing.assert_array_equal(scored(masks * 255, batch_size=3), found)
    refused(r"shape \(4, 32, 32\)", scored, masks[:, 1:])
    refused(r"masks must be binary.*two values, neither of them 0 \(1, 2\).*masks == 1", scored, masks + 1)
    refused("saliency_insertion needs no masks", scored, masks, "saliency_insertion")


def test_missing_column_is_reported_and_gives_no_scores(shapes, resnet, tmp_path, capsys):
    rows = sb.load_dataset(shapes).remove_columns("image_without_object")
    done = sb.run(**settings(rows, resnet, metrics=[brightness, "saliency_miou"]), out=tmp_path / "run")
    said = [line for line in capsys.readouterr().err.splitlines() if "image_without_object" in line]
    assert len(said) == 1
    assert "the dataset in-memory has no column image_without_object" in said[0]
    assert "brightness has no scores" in said[0]
    cells = {cell.metric: cell for cell in done.cells}
    assert cells["brightness"].left_out == {"not defined for this sample: no image_without_object": LIMIT}
    assert cells["saliency_miou"].n == LIMIT
    assert done.summary["faults"] == {}


def test_unusable_column_value_affects_only_its_metric(whole, shapes, resnet, tmp_path):
    values, _ = scores(whole)
    first, second, third, *rest = sorted(values)
    wrong = {first: None, second: {"bytes": b"not a picture", "path": None}, third: png(Image.new("RGB", (31, 32)))}
    rows = changed(sb.load_dataset(shapes), lambda name, picture: wrong.get(name, png(picture)))
    given = settings(rows, resnet, metrics=[brightness, "saliency_miou"])
    done = sb.run(**given, out=tmp_path / "run")
    found, reasons = scores(done)
    assert {name: found[name] for name in rest} == {name: values[name] for name in rest}
    assert reasons[first] == "not defined for this sample: no image_without_object"
    assert "image_without_object cannot be read" in reasons[second]
    assert "image_without_object is 31 x 32, but the image is 32 x 32" in reasons[third]
    assert next(cell for cell in done.cells if cell.metric == "saliency_miou").n == LIMIT
    assert sum(done.summary["faults"].values()) == 2
    refused("image_without_object", sb.run, **given, out=tmp_path / "strict", strict=True)


def test_only_column_content_changes_ids_of_its_metrics(whole, shapes, resnet, tmp_path):
    """Add the metric to a run, then read the same pictures as encoded bytes, then change pictures and scenes."""

    def started(rows, out, *metrics):
        done = sb.run(**settings(rows, resnet, metrics=["saliency_miou", *metrics]), out=tmp_path / out)
        return done, {cell.metric: cell.cell_id for cell in done.cells}

    rows = sb.load_dataset(shapes)
    _, without = started(rows, "run")
    added, base = started(rows, "run", brightness)
    assert base == without | {"brightness": whole.cells[0].cell_id}
    pictures = [png(picture)["bytes"] for picture in rows["image_without_object"]]
    encoded, same = started(replaced(rows, pictures, Value("binary")), "encoded", brightness)
    assert same == base
    assert scores(added) == scores(encoded) == scores(whole)
    last = rows["image_id"][-1]
    darker = changed(rows, lambda name, picture: png(picture.point(lambda v: v // 2) if name == last else picture))
    other_scenes = rows.cast_column("scene", rows.features["scene"])
    flipped = other_scenes.map(lambda row: {"scene": (row["scene"] + 1) % 8})
    for name, differing in (("darker", darker), ("flipped", flipped)):
        _, ids = started(differing, name, brightness)
        assert ids["saliency_miou"] == base["saliency_miou"]
        assert ids["brightness"] != base["brightness"]
    with pytest.raises(UserError, match="a different column image_without_object"):
        sb.run(**settings(darker, resnet, explainers="random"), out=whole.folder)


def test_invalid_column_declarations_are_rejected(shapes, resnet, tmp_path):
    def declared(function, *columns):
        return sb.metric(higher_is_better=True, columns=columns)(function)

    for function, columns, words in (
        (lambda maps, columns: 0, (), r"has the parameter `columns`; declare the columns with @sb.metric\(columns=\["),
        (lambda maps, columns: 0, ("mask",), "the column mask; .* parameter masks"),
    ):
        refused(words, declared, function, *columns)
    rows = sb.load_dataset(shapes)
    listed = rows.add_column("boxes", [[1, 2]] * len(rows))
    boxes = declared(lambda maps, columns: maps[:, 0, 0], "boxes")
    refused("the column boxes contains", sb.run, **settings(listed, resnet, metrics=[boxes]), out=tmp_path / "run")
    assert as_metric(brightness).declaration.columns == ("image_without_object", "scene")
