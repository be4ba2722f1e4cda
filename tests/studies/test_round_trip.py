"""Tests of export and import: all answers of a person are restored, and no answers of other people."""

import json

import numpy as np
import pytest
from pages import dataset, import_masks, study_of
from refusals import refused

from saliency_bench.studies.annotation_report import annotation_report
from saliency_bench.studies.exporting import export, module_of
from saliency_bench.studies.formats.regions import FORMATS

FILES = {"coco": "annotations.json", "label-studio": "tasks.json"}  # files with the answers of all people
PEOPLE = ("p-a", "p-b", "p-c")


def drawn(seed, marked=0.3):
    return np.random.default_rng(seed).random((60, 80)) < marked


@pytest.fixture
def annotated(tmp_path):
    """Return a study of six images and three people, with masks, answers of "no region", and one unanswered image."""
    annotating = study_of(tmp_path, dataset(6))
    for number, person in enumerate(PEOPLE):
        for image in range(6):
            unit, request = f"image-{image:03d}", f"{person} {image}"
            if image == 3 or (image == 2 and number == 1):
                annotating.study.record(person, unit, request, {"kind": "no_region"})
            elif image == 4 and number == 2:
                annotating.study.record(person, unit, request, {"kind": "skip", "reason": "blurred"})
            else:
                mask = drawn(image) ^ drawn(10 * image + number, 0.05)
                annotating.study.record(person, unit, request, {"kind": "mask"}, mask=mask)
    return annotating


@pytest.fixture
def other(tmp_path):
    return study_of(tmp_path / "other", dataset(6))


def answers(annotating):
    """Return {(person, unit): mask, or None for no region} of the answers that were not skipped."""
    found = [one for one in annotating.study.answers() if one.payload["kind"] != "skip"]
    return {(one.person, one.unit): None if one.pixels is None else one.pixels.tobytes() for one in found}


@pytest.mark.parametrize("format", FORMATS)
def test_round_trip_restores_every_answer(annotated, other, tmp_path, format):
    assert export(annotated, tmp_path / "out", format) == 6
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700, "it names people"
    for person in PEOPLE:
        import_masks(other, tmp_path / "out", format, person)
    assert answers(other) == answers(annotated)
    assert [unit for (_, unit), mask in answers(other).items() if mask is None].count("image-003") == 3
    read, drawn = (annotation_report(one)["agreement"] for one in (other, annotated))
    assert {name: one["n"] for name, one in read.items()} == dict.fromkeys(drawn, 6)
    values = {name: one["value"] for name, one in drawn.items()}
    assert {name: one["value"] for name, one in read.items()} == pytest.approx(values, rel=1e-12)


@pytest.mark.sample(3)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("person", ["ada", "p"])
def test_import_rejects_a_person_without_masks(annotated, other, tmp_path, format, person):
    export(annotated, tmp_path / "out", format)
    words = rf"has no masks of {person}; set --person to one of: p-a, p-b, p-c$"
    refused(words, import_masks, other, tmp_path / "out", format, person)
    assert other.study.answers() == []


@pytest.mark.parametrize("format", FILES)
def test_import_accepts_file_or_folder(annotated, other, tmp_path, format):
    export(annotated, tmp_path / "out", format)
    assert import_masks(other, tmp_path / "out" / FILES[format], format, "p-c") == (5, [])
    words = f"is a folder without {FILES[format]}; specify the file"
    refused(words, import_masks, other, tmp_path / "other", format, "p-a")


@pytest.mark.sample(4)
@pytest.mark.parametrize("person", ["consensus", "Consensus", "../../x", "/tmp/x", "a/b", "a\\b", ".hidden", "..", "",
                                    " ", "a b", "x" * 101, "a\nb"])  # fmt: skip
def test_import_rejects_invalid_pseudonyms(annotated, other, tmp_path, person):
    export(annotated, tmp_path / "out", "coco")
    refused("--person", import_masks, other, tmp_path / "out", "coco", person)
    assert other.study.answers() == []


@pytest.mark.sample(4)
@pytest.mark.parametrize("format", ["png", "cvat"])
@pytest.mark.parametrize("person", ["../../outside", "/tmp/outside", "..", ".", ".git", "a/b", "a\\b", "ü" * 101])
def test_export_rejects_person_names_that_are_paths(annotated, tmp_path, format, person):
    annotated.study.record(person, "image-000", "a request", {"kind": "mask"}, mask=drawn(1))
    before = sorted(tmp_path.rglob("*"))
    words = r"name .* of a person cannot be a folder name; export as coco or label-studio"
    refused(words, export, annotated, tmp_path / "out", format)
    assert sorted(tmp_path.rglob("*")) == before
    export(annotated, tmp_path / "out", format, people=False)


@pytest.mark.parametrize("format", FORMATS)
def test_export_rejects_a_person_called_consensus(annotated, tmp_path, format):
    annotated.study.record("consensus", "image-000", "a request", {"kind": "mask"}, mask=drawn(1))
    refused("has a person called consensus", export, annotated, tmp_path / "out", format)
    assert not (tmp_path / "out").exists()


def test_png_export_rejects_colliding_file_names(tmp_path):
    rows = dataset(2).remove_columns("image_id").add_column("image_id", ["a/b_c", "a_b/c"])
    annotating = study_of(tmp_path, rows)
    for unit in ("a/b_c", "a_b/c"):
        annotating.study.record("p-a", unit, unit, {"kind": "mask"}, mask=drawn(1))
    refused("export as cvat, coco or label-studio", export, annotating, tmp_path / "out", "png")
    assert export(annotating, tmp_path / "out", "cvat") == 2


def test_images_without_annotations_stay_unanswered(tmp_path):
    """Leave images without annotations unanswered, because nobody may have seen them yet."""
    size = {"height": 60, "width": 80}
    content = {"images": [{"id": 1, "file_name": "a.jpg"} | size], "annotations": []}
    (tmp_path / "coco").write_text(json.dumps(content))
    (tmp_path / "label-studio").write_text(json.dumps([{"data": {"image": "a.jpg"}, "annotations": [{"result": []}]}]))
    (tmp_path / "cvat").write_text('<annotations><image id="0" name="a.jpg" height="60" width="80"/></annotations>')
    for format in ("coco", "label-studio", "cvat"):
        assert module_of(format).read(tmp_path / format, "ada") == {}


def label_studio(path, accounts):
    """Return a file with one image per account. The account has answered that the image has no region."""
    annotations = [{"completed_by": account, "result": [], "no_region": [60, 80]} for account in accounts]
    tasks = [{"data": {"image": f"image-{number:03d}"}, "annotations": [one]} for number, one in enumerate(annotations)]
    path.write_text(json.dumps(tasks))
    return path


@pytest.mark.parametrize("account", [7, {"id": 7, "email": "anna@example.org"}, None])
def test_single_label_studio_account_maps_to_the_person(tmp_path, account):
    path = label_studio(tmp_path / "a.json", [account, account])
    assert list(module_of("label-studio").read(path, "ada")) == ["image-000", "image-001"]


def test_label_studio_accounts_are_separate_people(tmp_path):
    path = label_studio(
        tmp_path / "a.json", [7, {"id": 8, "email": "anna@example.org"}, {"email": "b@c"}, {"email": "b@d"}]
    )
    refused(r"one of: 7, anna, b\.c, b\.d$", lambda: module_of("label-studio").read(path, "ada"))
    for person, image in {"7": 0, "anna": 1, "b.c": 2, "b.d": 3}.items():
        assert list(module_of("label-studio").read(path, person)) == [f"image-{image:03d}"]


def test_coco_annotations_are_separated_by_person(tmp_path):
    size = {"height": 1, "width": 2}
    annotation = {"image_id": 1, "segmentation": {"size": [1, 2], "counts": [0, 1, 1]}}
    other = {"image_id": 1, "segmentation": {"size": [1, 2], "counts": [1, 1]}, "person": "bob"}
    content = {"images": [{"id": 1, "file_name": "a.jpg"} | size], "annotations": [annotation, other]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert module_of("coco").read(tmp_path / "a.json", "bob")["a.jpg"].tolist() == [[False, True]]
    content["annotations"] = [annotation, annotation | {"segmentation": other["segmentation"]}]
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert module_of("coco").read(tmp_path / "a.json", "bob")["a.jpg"].tolist() == [[True, True]]
