"""Tests of building a dataset without masks, annotating it in a study, and building it again with the masks."""

import numpy as np
import pytest
from refusals import refused

from saliency_bench import build, load_dataset
from saliency_bench.data.build_report import read_report
from saliency_bench.data.fingerprints import fingerprint
from saliency_bench.hub_builders import environment_xai, gender_xai
from saliency_bench.studies.annotating import open_study
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.images import StudyImages

BUILDERS = {"gender-xai": gender_xai, "environment-xai": environment_xai}


@pytest.fixture(params=BUILDERS)
def case(request, tmp_path):
    """Return (name, source without masks, options, rows of one split)."""
    name = request.param
    source = tmp_path / "raw"
    BUILDERS[name].example(source, 12, 48)
    for path in sorted((source / "masks").rglob("*.png")):
        path.unlink()
    options = {"min_area": 0.0} if name == "gender-xai" else {}
    build(name, tmp_path / "before", source, progress=False, **options)
    split = max(read_report(tmp_path / "before")["splits"].items(), key=lambda item: item[1].get("num_examples", 0))[0]
    return name, source, options, split, load_dataset(tmp_path / "before", split)


def study_of(tmp_path, rows):
    return open_study(Store(tmp_path / "study.db"), "noise", StudyImages(rows), fingerprint(rows))


def test_build_uses_consensus_masks_of_a_study(case, tmp_path):
    name, source, options, split, rows = case
    assert len(rows) > 2
    annotating = study_of(tmp_path, rows)
    first, second = annotating.images.units[:2]
    shown = annotating.images.shown(first)
    random = np.random.default_rng(0)
    masks = [random.random((shown.height, shown.width)) > 0.5 for _ in range(3)]
    masks.append(masks[0])  # equal masks of two people are two votes
    for index, mask in enumerate(masks):
        annotating.study.record(
            f"p-{index}", first, f"r{index}", {"kind": "mask"}, mask=mask, image_sha256=shown.sha256
        )
    annotating.study.record("p-4", first, "r4", {"kind": "no_region"}, image_sha256=shown.sha256)  # a vote
    annotating.study.record("p-0", second, "none", {"kind": "mask"}, mask=masks[0], image_sha256="0" * 64)
    third = annotating.images.units[2]
    no_region = annotating.images.shown(third).sha256
    annotating.study.record("p-0", third, "region", {"kind": "no_region"}, image_sha256=no_region)
    store = str(tmp_path / "study.db")
    build(name, tmp_path / "after", source, progress=False, annotations=store, **options)
    after = {row["image_id"]: row for row in load_dataset(tmp_path / "after", split)}
    np.testing.assert_array_equal(np.asarray(after[first]["mask"]) > 0, 2 * sum(map(np.int64, masks)) >= 5)
    assert after[second]["mask"] is None
    report = read_report(tmp_path / "after")
    reasons = {entry["id"]: entry["reason"] for entry in report["left_out"] if entry["what"] == "mask"}
    assert (reasons[third], reasons[second]) == ("empty mask", "the mask was drawn on a different image")
    assert store not in str(report), "a path of this machine"


def test_build_rejects_a_store_without_annotation_study(case, tmp_path):
    name, source, options, *_ = case
    for place, words in ((tmp_path / "missing.db", "there is no store"), (tmp_path / "empty.db", "no such study")):
        if "empty" in place.name:
            Store(place).study("assess", "other")
        refused(words, build, name, tmp_path / "out", source, progress=False, annotations=str(place), **options)
