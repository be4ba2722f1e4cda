"""Tests of grids of images that a classifier recognises: positions, classifier and options."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from commands import said
from datasets import load_dataset as load_folder
from refusals import refused

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.data.fingerprints import fingerprint
from saliency_bench.hub_builders._grids import confident, grids_of, joined


@pytest.fixture(scope="session")
def fitted(shapes, resnet, tmp_path_factory):
    """Return the tiny ResNet with a last layer that is certain and correct for 12 test images of six classes."""
    from transformers import ResNetForImageClassification, ViTImageProcessor

    rows = load_folder(str(shapes), split="test")
    places = [place for label in range(6) for place in np.flatnonzero(np.array(rows["label"]) == label)[:2]]
    classifier = sb.load_classifier(str(resnet), device="cpu").eval()
    network = ResNetForImageClassification.from_pretrained(resnet).eval()
    batch = classifier.prepare([rows[int(place)] for place in places])
    with torch.no_grad():
        pooled = network.resnet((batch.images - classifier.mean) / classifier.std).pooler_output.flatten(1).double()
        inputs = torch.cat([pooled, torch.ones(len(pooled), 1)], dim=1)
        wanted = 40 * torch.nn.functional.one_hot(batch.labels, 8).double()
        solved = torch.linalg.lstsq(inputs, wanted).solution.T.float()
        network.classifier[1].weight.copy_(solved[:, :-1])
        network.classifier[1].bias.copy_(solved[:, -1])
    path = tmp_path_factory.mktemp("models") / "fitted"
    network.save_pretrained(path)
    ViTImageProcessor.from_pretrained(resnet).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def grids(shapes, fitted, tmp_path_factory):
    out = tmp_path_factory.mktemp("grids") / "grids"
    return sb.build("grid-xai", out, source=shapes, model=str(fitted), progress=False)


def test_grid_cells_show_distinct_confident_classes(shapes, fitted, grids):
    rows, source = load_folder(str(grids), split="test"), load_folder(str(shapes), split="test")
    classifier = sb.load_classifier(str(fitted), device="cpu")
    by_id = {row["image_id"]: row for row in source}
    assert len(rows) >= 3
    used, places = Counter(), set()
    for row in rows:
        ids, labels = row["images_of_cells"].split(", "), row["labels_of_cells"].split(", ")
        used.update(ids)
        assert len(set(labels)) == 4
        assert labels == [source.features["label"].int2str(by_id[one]["label"]) for one in ids]
        batch = classifier.prepare([by_id[one] for one in ids])
        p = classifier(batch.images).softmax(dim=1)
        assert p.argmax(dim=1).tolist() == batch.labels.tolist()
        assert (p.max(dim=1).values >= 0.99).all()
        pixels, mask = np.asarray(row["image"]), np.asarray(row["mask"]) > 0
        assert (pixels.shape, mask.sum()) == ((64, 64, 3), 32 * 32)
        for cell, image in enumerate(batch.images):
            box = np.s_[cell // 2 * 32 : cell // 2 * 32 + 32, cell % 2 * 32 : cell % 2 * 32 + 32]
            np.testing.assert_allclose(pixels[box] / 255, image.permute(1, 2, 0), atol=0.5 / 255 + 1e-6)
            assert mask[box].all() == mask[box].any() == (labels[cell] == rows.features["label"].int2str(row["label"]))
        places.add(labels.index(rows.features["label"].int2str(row["label"])))
    assert max(used.values()) == 1
    assert max(places) > 1, "the target class may be in any row"


def test_ids_and_fingerprint_contain_the_choosing_model(shapes, resnet, grids, tmp_path):
    rows, report = load_folder(str(grids), split="test"), json.loads((grids / "build_report.json").read_text())
    digest = rows[0]["chosen_by_digest"]
    assert all(row["image_id"].startswith(digest[:8]) for row in rows)
    assert (set(rows["chosen_by"]), report["splits"].keys()) == ({"folder:fitted"}, {"test"})
    renamed = rows.map(lambda row: {"image_id": "0" * 8 + row["image_id"][8:]})
    assert fingerprint(rows) == report["splits"]["test"]["fingerprint"] != fingerprint(renamed)


def test_run_of_another_classifier_reports_the_choosing_model(grids, fitted, resnet, tmp_path):
    def started(model):
        out = tmp_path / model.name
        return sb.run(dataset=str(grids), model=str(model), explainers="centre", metrics="saliency_energy", out=out,
                      device="cpu", progress=False)  # fmt: skip

    own, other = started(fitted), started(resnet)
    assert own.summary["dataset"]["chosen_by"] is None
    assert "chosen by" not in str(own)
    assert other.summary["dataset"]["chosen_by"] == "folder:fitted"
    assert "images chosen by another model (folder:fitted)" in str(other)
    assert "Images chosen by" in other.report.read_text()


def test_command_builds_grids_and_requires_a_model(shapes, fitted, grids, tmp_path, capsys):
    given = ["build", "grid-xai", "--from", str(shapes), "--model", str(fitted), "--out", str(tmp_path / "out")]
    assert main([*given, "--count", "2", "--quiet"]) == 0
    rows = load_folder(str(tmp_path / "out"), split="test")
    assert rows["image_id"] == load_folder(str(grids), split="test")["image_id"][:2]
    assert "--model M" in said(capsys, given[:4] + given[6:-1] + [str(tmp_path / "none")], 2)
    assert "known: test, train, validation (--split)" in said(
        capsys, [*given[:-1], str(tmp_path / "none"), "--split", "nothing"], 2
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [({"cells": 1}, "cells must be at least 2"), ({"confidence": 1.5}, "confidence"), ({"count": 0}, "count"),
     ({"cells": 3}, r"a grid needs images of 9 classes.*--confidence")],
)  # fmt: skip
def test_invalid_grid_options_are_rejected(shapes, fitted, tmp_path, options, line):
    refused(line, sb.build, "grid-xai", tmp_path / "out", source=shapes, model=str(fitted), progress=False, **options)


def test_grids_use_largest_classes_and_no_image_twice():
    chosen = {0: [0, 1, 2, 3], 1: [10, 11], 2: [20, 21], 3: [30, 31], 4: [40]}
    grids = grids_of(chosen, 4, 500, seed=0)
    label_of = {image: label for label, images in chosen.items() for image in images}
    assert len(grids) == 2
    assert all(len({label_of[image] for image in grid}) == 4 for grid in grids)
    assert max(Counter(image for grid in grids for image in grid).values()) == 1
    assert 0 in {label_of[image] for image in grids[0]}
    assert grids_of(chosen, 4, 1, seed=0) == grids[:1]
    assert grids_of(chosen, 4, 500, seed=1) != grids
    assert grids_of(chosen, 9, 500, seed=0) == grids_of({}, 4, 500, seed=0) == []


def test_cells_are_joined_row_by_row():
    images = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 2, 3) * 10 / 255
    grid, mask = joined(images, 2)
    assert grid[:, :, 0].tolist() == [[0, 0, 0, 10, 10, 10]] * 2 + [[20, 20, 20, 30, 30, 30]] * 2
    assert mask.tolist() == [[False] * 6] * 2 + [[True] * 3 + [False] * 3] * 2


def test_unlabelled_images_and_used_groups_are_not_chosen(shapes, fitted):
    rows = load_folder(str(shapes), split="test")
    names, classifier = rows.features["label"].names, sb.load_classifier(str(fitted), device="cpu")
    plain = confident(rows, classifier, names, None, 0.99)
    first = plain[0][0]
    unlabelled = rows.map(lambda row, place: {"label": None if place == first else row["label"]}, with_indices=True)
    assert confident(unlabelled, classifier, names, None, 0.99) == plain | {0: plain[0][1:]}
    photograph = sorted(place for places in (plain[0], plain[1]) for place in places)
    grouped = rows.map(lambda row, place: {"group": "one" if place in photograph else None}, with_indices=True)
    found = confident(grouped, classifier, names, None, 0.99)
    assert [place for places in (found.get(0, []), found.get(1, [])) for place in places] == photograph[:1]
    assert all(found[label] == plain[label] for label in plain if label > 1)
